"""Idle sessions are closed whether they are in memory or not, and none that is in use."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from store_turns import make_turn

from instar.errors import StoreError
from instar.gateway.idle import IdleSessions
from instar.gateway.sessions import SessionBook
from instar.record.store import TurnStore, open_store

TIMEOUT = 100.0


@dataclass
class Bench:
    """A store, sessions in memory, and a clock that a test turns."""

    store: TurnStore
    now: float = 1000.0
    failing: bool = False
    looked_at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        def clock() -> float:
            return self.now

        self.book = SessionBook(self.store, timeout_s=TIMEOUT, limit=2, clock=clock)
        self.idle = IdleSessions(self.book, self, timeout_s=TIMEOUT, page=4, clock=clock)

    async def record(self, name: str, owner: str = "anna") -> None:
        turn = make_turn(
            f"t-{owner}-{name}-{self.now}", owner=owner, session=name, created=self.now
        )
        assert await self.store.record(turn)

    async def use(self, name: str) -> None:
        """A turn of a session that is then in memory."""
        session = await self.book.find("anna", name, [])
        turn = make_turn(f"t-{name}-{self.now}", session=name, created=self.now)
        self.book.add(session, turn)
        assert await self.store.record(turn)

    async def open(self) -> set[str]:
        found = await self.store.sessions(None, limit=1000)
        return {one.id for one in found if not one.closed}

    async def quiet_sessions(
        self, before: float, after: tuple[float, str, str] | None, limit: int
    ) -> tuple[list[tuple[str, str]], tuple[float, str, str] | None]:
        found, place = await self.store.quiet_sessions(before, after, limit)
        self.looked_at.append(len(found))
        return found, place

    async def close_quiet(
        self, keys: Sequence[tuple[str, str]], *, before: float, at: float
    ) -> int:
        if self.failing:
            raise StoreError("the disk is full")
        return await self.store.close_quiet(keys, before=before, at=at)


@pytest.fixture
async def bench(store: TurnStore) -> Bench:
    return Bench(store)


async def test_sessions_of_an_earlier_process_are_closed_a_page_at_a_time(bench: Bench) -> None:
    for n in range(10):
        await bench.record(f"s{n}", owner=f"o{n % 2}")
    bench.now += TIMEOUT / 2
    await bench.record("young")
    bench.now += TIMEOUT / 2 + 1
    left = []
    for _ in range(4):
        await bench.idle.sweep()
        left.append(len(await bench.open()))
    assert left == [7, 3, 1, 1]
    assert bench.looked_at == [4, 4, 2, 0], "none is looked at twice"
    bench.now += TIMEOUT
    await bench.idle.sweep()
    assert await bench.open() == set()


async def test_a_session_that_was_pushed_out_of_memory_is_closed(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        await bench.use(name)
    assert ("anna", "a") not in bench.book and ("anna", "c") in bench.book
    await bench.idle.sweep()
    assert await bench.open() == {"a", "b", "c"}, "none of them is idle yet"
    bench.now += TIMEOUT + 1
    await bench.idle.sweep()
    assert await bench.open() == set() and len(bench.book) == 0


async def test_a_session_in_memory_stays_open_however_old_its_last_turn_is(bench: Bench) -> None:
    """Its next reply may be under way, or was refused; once it leaves memory, it is closed."""
    await bench.use("a")
    bench.now += TIMEOUT - 1
    await bench.book.find("anna", "a", [])
    bench.now += TIMEOUT - 1
    for _ in range(2):
        await bench.idle.sweep()
        assert await bench.open() == {"a"}
    bench.book.drop("anna", "a")
    await bench.idle.sweep()
    assert await bench.open() == set()


async def test_what_could_not_be_closed_is_tried_again(bench: Bench) -> None:
    await bench.use("a")
    await bench.record("b")
    bench.now += TIMEOUT + 1
    bench.failing = True
    for _ in range(2):
        with pytest.raises(StoreError):
            await bench.idle.sweep()
        assert await bench.open() == {"a", "b"}
        assert len(bench.book) == 0, "memory is freed all the same"
    bench.failing = False
    await bench.idle.sweep()
    assert await bench.open() == set()


async def test_a_session_that_went_on_meanwhile_is_closed_later(bench: Bench) -> None:
    await bench.record("a")
    bench.now += TIMEOUT + 1
    bench.failing = True
    with pytest.raises(StoreError):
        await bench.idle.sweep()
    bench.failing = False
    await bench.record("a")
    await bench.idle.sweep()
    assert await bench.open() == {"a"}
    bench.now += TIMEOUT + 1
    await bench.idle.sweep()
    assert await bench.open() == set()


async def test_looking_for_them_reads_an_index_from_where_it_ended(tmp_path: Path) -> None:
    """A million sessions that are closed already must cost a sweep nothing."""
    asked: list[tuple[str, Any]] = []

    def note(connection: object, cursor: object, sql: str, values: Any, *_: object) -> None:
        asked.append((sql, values))

    async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
        sa.event.listen(store._database.reader, "before_cursor_execute", note)
        await store.quiet_sessions(5.0, (1.0, "anna", "s"), 10)
    ((sql, values),) = [one for one in asked if "FROM sessions" in one[0]]
    with closing(sqlite3.connect(tmp_path / "instar.db")) as file:
        rows = file.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    (plan,) = [row[-1] for row in rows]
    assert plan.startswith("SEARCH sessions USING INDEX sessions_by_time"), plan
