"""The store when things break: nothing acknowledged is lost, nothing lost goes unsaid."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import sqlalchemy as sa
from store_turns import follow, make_turn, until, user

from instar.errors import StoreError
from instar.record.store import TurnStore, open_store
from instar.types import NextState, Turn

SOON = 0.2
"""A commit timeout that a test can wait for."""

WRITER = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from store_turns import follow, make_turn
from instar.record.store import open_store

async def talk(store, name):
    turn = make_turn(f"{name}.0", session=name, prompt_ids=tuple(range(200)))
    for number in range(1, 10**6):
        if await store.record(turn):
            print(turn.id, flush=True)
        turn = follow(turn, f"{name}.{number}")

async def main():
    async with open_store(sys.argv[1], commit_timeout_s=60) as store:
        await asyncio.gather(*(talk(store, f"{sys.argv[3]}-{n}") for n in range(8)))

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "instar.db"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another writer holds the database."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


DIARY = b"dear diary, " * 1000


def damage(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(DIARY)


def sqlite_header(path: Path) -> bytes:
    return path.read_bytes()[:16]


def move(path: Path, target: Path) -> None:
    path.rename(target)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def test_killed_at_any_moment_every_acknowledged_turn_is_there(path: Path) -> None:
    acknowledged: list[str] = []
    chance = random.Random(7)
    for run in range(4):
        arguments = [url_of(path), str(Path(__file__).parent), f"run{run}"]
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True
        )
        with child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 400)):
                acknowledged.append(child.stdout.readline().strip())
            os.kill(child.pid, signal.SIGKILL)
            # What it printed before it died was acknowledged too; its last line may be cut.
            acknowledged += [line.strip() for line in child.stdout if line.endswith("\n")]
    stored = asyncio.run(everything(path))
    assert len(acknowledged) == len(set(acknowledged)) > 8
    assert set(acknowledged) <= {turn.id for turn in stored}


async def everything(path: Path) -> list[Turn]:
    async with open_store(url_of(path)) as store:
        found = [turn for key in await store.session_keys() for turn in await store.turns(*key)]
        assert (await store.counts())["turns"] == len(found)
        return found


async def test_a_locked_database_makes_turns_late_not_lost(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = make_turn("t1", anchors=(1,))
    second = follow(first, "t2", anchors=(2,))
    async with open_store(url_of(path), commit_timeout_s=SOON) as store:
        with locked(path):
            assert not await store.record(first)
            await until(lambda: store.health()["last_error"] is not None)
            assert not await store.record(second)
            await store.saw_next("t1", NextState(messages=(user("And then?"),), turn="t2"))
            health = store.health()
            assert (health["backlog"], health["late"], health["lost"]) == (3, 0, 0)
            assert "locked" in str(health["last_error"])
            # What waits in memory is found as if it were stored, so that sessions go on.
            assert await store.find("anna", [2, 1]) == second
            assert await store.find("ben", [2, 1]) is None
            assert await store.turns("anna", "s1") == [first, second]
        await until(lambda: store.health()["backlog"] == 0)
        assert (store.late, store.lost, store.health()["failing_s"]) == (2, 0, 0.0)
        assert [turn.id for turn in await store.ready()] == ["t1"]
    assert [turn.id for turn in await everything(path)] == ["t1", "t2"]
    assert "Turn t1 was not written in time" in caplog.text
    assert "was written late" in caplog.text


async def test_a_full_backlog_loses_turns_aloud_and_children_stay_readable(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = make_turn("kept", prompt_ids=tuple(range(50)))
    gone = follow(kept, "gone")
    async with open_store(url_of(path), commit_timeout_s=SOON, backlog=1) as store:
        with locked(path):
            assert not await store.record(kept)
            assert not await store.record(gone)
            await store.saw_next("kept", NextState(messages=()))
        await until(lambda: store.health()["backlog"] == 0)
        assert (store.late, store.lost, store.lost_states) == (1, 1, 1)
        child = follow(gone, "child")
        assert await store.record(child)
        assert await store.turns("anna", "s1") == [kept, child]
    assert "Turn gone is lost" in caplog.text


async def test_what_cannot_be_written_at_the_end_is_lost_aloud(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(url_of(path), commit_timeout_s=SOON) as store:
        await store.record(make_turn("t1"))
        lock = locked(path)
        lock.__enter__()
        assert not await store.record(make_turn("t2"))
        await store.saw_next("t1", NextState(messages=()))
    lock.__exit__(None, None, None)
    assert (store.late, store.lost, store.lost_states) == (0, 1, 1)
    assert "Turn t2 is lost" in caplog.text
    assert [turn.id for turn in await everything(path)] == ["t1"]


async def test_what_waits_at_the_end_is_still_written(path: Path) -> None:
    async with open_store(url_of(path), commit_timeout_s=30) as store:
        waiting = [asyncio.create_task(store.record(make_turn(f"t{n}"))) for n in range(300)]
        await asyncio.sleep(0)
    assert all(await asyncio.gather(*waiting))
    assert len(await everything(path)) == 300


async def test_a_full_disk_is_survived(path: Path) -> None:
    room = [True]

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={2**30 if room[0] else pages}")

    noise = random.Random(0)
    async with open_store(url_of(path), commit_timeout_s=SOON) as store:
        sa.event.listen(store._database.writer, "connect", limit)
        small = make_turn("small")
        assert await recorded(store, small)
        room[0] = False
        store._database.writer.dispose()
        big = follow(small, "big", sampled_ids=tuple(noise.randrange(10**5) for _ in range(10**5)))
        assert not await store.record(big)
        await until(lambda: "full" in str(store.health()["last_error"]))
        assert await store.turns("anna", "s1") == [small, big]
        room[0] = True
        await until(lambda: store.health()["backlog"] == 0)
        assert (store.late, store.lost) == (1, 0)
    assert await everything(path) == [small, big]


async def recorded(store: TurnStore, turn: Turn) -> bool:
    """Recorded in time, or a little later on a busy machine."""
    in_time = await store.record(turn)
    await until(lambda: store.health()["backlog"] == 0)
    return in_time or store.lost == 0


async def test_a_removed_file_is_noticed_and_waited_for(path: Path) -> None:
    first = make_turn("t1", prompt_ids=tuple(range(50)))
    second = follow(first, "t2")
    async with open_store(url_of(path), commit_timeout_s=SOON) as store:
        assert await recorded(store, first)
        aside = path.with_suffix(".aside")
        move(path, aside)
        before = store.late
        assert not await store.record(second)
        await until(lambda: store.health()["last_error"] is not None)
        assert aside.name in names(path.parent)
        assert path.name not in names(path.parent)
        move(aside, path)
        await until(lambda: store.health()["backlog"] == 0)
        assert (store.late, store.lost) == (before + 1, 0)
    assert await everything(path) == [first, second]


async def test_a_damaged_file_does_not_raise_into_serving(path: Path) -> None:
    async with open_store(url_of(path), commit_timeout_s=SOON) as store:
        assert await recorded(store, make_turn("t1", anchors=(1,)))
        # Closed first: SQLite would otherwise mend the file from the log that it has open.
        store._database.forget_connections()
        damage(path)
        assert not await store.record(make_turn("t2"))
        assert await store.find("anna", [1]) is None
        assert store.health()["read_errors"] == 1
        with pytest.raises(StoreError, match="not a database"):
            await store.sessions()
    assert store.lost == 1


async def test_a_damaged_session_takes_new_turns(path: Path) -> None:
    first = make_turn("t1", prompt_ids=tuple(range(50)))
    async with open_store(url_of(path), commit_timeout_s=30) as store:
        await store.record(first)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE turns SET prompt = x'ff00'")
        connection.commit()
    async with open_store(url_of(path), commit_timeout_s=30) as store:
        assert await store.record(follow(first, "t2"))
        with pytest.raises(StoreError):
            await store.turns("anna", "s1")
        assert await store.delete_session("anna", "s1") == 2


async def test_a_change_that_cannot_be_made_says_so(path: Path) -> None:
    async with open_store(url_of(path)) as store:
        with pytest.raises(StoreError, match="no such table: nowhere"):
            await store.read(lambda c: c.exec_driver_sql("SELECT * FROM nowhere"))
        with pytest.raises(StoreError, match="by zero"):
            await store.write(lambda c: 1 // 0)
        assert await store.record(make_turn("t1"))


@pytest.mark.parametrize(
    "url", ["nonsense", "mysql://host/db", "sqlite://", "sqlite:///:memory:", "sqlite:////proc/x/y"]
)
async def test_a_store_that_cannot_be_opened_says_why(url: str) -> None:
    with pytest.raises(StoreError, match=r"expected|cannot be opened"):
        async with open_store(url):
            pass


async def test_a_file_that_is_no_store_is_left_alone(path: Path) -> None:
    damage(path)
    with pytest.raises(StoreError, match="not a database"):
        async with open_store(url_of(path)):
            pass
    assert sqlite_header(path) == DIARY[:16]


async def test_the_file_is_private(path: Path) -> None:
    async with open_store(url_of(path)) as store:
        await store.record(make_turn("t1"))
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


async def test_what_is_deleted_leaves_the_file(path: Path) -> None:
    said = "a secret that was only said once"
    async with open_store(url_of(path), commit_timeout_s=30) as store:
        await store.record(make_turn("t1", messages=(user(said),)))
    assert said in all_text(path.parent)
    async with open_store(url_of(path)) as store:
        await store.delete_session("anna", "s1")
    assert said not in all_text(path.parent)


def all_text(folder: Path) -> str:
    return "".join(file.read_bytes().decode("latin-1") for file in folder.iterdir())


def hold(path: str, held: Event, release: Event) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        held.set()
        release.wait(60)
        other.execute("ROLLBACK")


async def test_another_process_holds_the_lock(path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    held, release = spawn.Event(), spawn.Event()
    async with open_store(url_of(path), commit_timeout_s=SOON) as store:
        other = spawn.Process(target=hold, args=(str(path), held, release))
        other.start()
        await until(held.is_set)
        try:
            assert not await store.record(make_turn("t1"))
            async with open_store(url_of(path)) as beside:
                assert await beside.sessions() == []
        finally:
            release.set()
            other.join()
        await until(lambda: store.late == 1)


async def test_a_store_that_is_only_read_starts_no_writer(path: Path) -> None:
    async with open_store(url_of(path)) as store:
        assert await store.counts() == {"sessions": 0, "turns": 0, "sampled_tokens": 0}
        assert store._writer._thread is None


async def test_each_kind_of_trouble_is_logged_once_in_a_while(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(url_of(path), commit_timeout_s=SOON, backlog=1) as store:
        with locked(path), caplog.at_level(logging.ERROR):
            await store.record(make_turn("t0"))
            for number in range(1, 50):
                await store.record(make_turn(f"t{number}"))
        assert store.lost == 49
        assert sum("is lost" in message for message in caplog.messages) == 1
        await until(lambda: store.health()["backlog"] == 0)
