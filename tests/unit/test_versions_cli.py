"""`instar versions`, `instar learning` and `instar sessions forget`, on stores and files."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from store_turns import make_turn, user
from typer.testing import CliRunner

from instar.cli import app
from instar.ids import new_id, share_of
from instar.publish.gate import Measured, decide
from instar.publish.versions import ADAPTER, VersionFiles
from instar.record.judged import JudgedTurns
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.types import Hint, Version

Run = Callable[..., Any]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def run(home: Path) -> Run:
    def runs(*args: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [*args, "--home", str(home)], env={"COLUMNS": "160"})
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        if "--json" in args and code == 0:
            return json.loads(result.stdout)
        return result.output

    return runs


def fill(folder: Path) -> None:
    (folder / ADAPTER[0]).write_text("{}")
    (folder / ADAPTER[1]).write_bytes(b"weights")


async def publish(
    store: TurnStore, home: Path, *turns: str, owner: str = "local", live: bool = True
) -> str:
    book = VersionBook(store)
    name, parent = await book.reserve(owner), await book.live_name(owner)
    version = Version(
        name=name,
        owner=owner,
        parent=parent,
        state="candidate",
        folder=f"{owner}/{name}",
        turns=turns,
        metrics={"loss": 0.125, "grad_norm": float("nan")},
    )
    VersionFiles.of_home(home).write(version, fill)
    assert await book.add(version)
    if live:
        await book.promote(owner, name)
    return name


@pytest.fixture
def stocked(home: Path) -> Path:
    """v1 from session one, v2 from session two, live."""

    home.mkdir()

    async def stock() -> None:
        async with open_store(f"sqlite:///{home}/instar.db") as store:
            for turn, session in (("t1", "one"), ("t2", "two")):
                await store.record(make_turn(turn, owner="local", session=session))
                await publish(store, home, turn)
            report = decide(
                candidate="v2",
                live="v1",
                old=Measured(),
                new=Measured(),
                base=Measured(),
                references=(),
                base_answers=(),
                new_answers=(),
                tolerance=0.02,
                min_retention=0.95,
            )
            await VersionBook(store).note_gate("local", "v2", report.to_json())

    asyncio.run(stock())
    return home


def test_nothing_yet(run: Run) -> None:
    assert "No versions yet" in run("versions", "list")
    assert run("versions", "list", "--json") == []
    assert "found no version v1 of local" in run("versions", "show", "v1", code=2)
    assert "base is the model as it came" in run("versions", "show", "base", code=2)
    assert "nothing before it" in run("versions", "rollback", code=2)


def test_list_and_show(run: Run, stocked: Path) -> None:
    listed = run("versions", "list")
    assert "v2" in listed and "live" in listed and "accepted" in listed
    listed = run("versions", "list", "--json")
    assert [one["name"] for one in listed] == ["v1", "v2"]
    assert listed[0]["metrics"] == {"loss": 0.125, "grad_norm": None}, "JSON has no NaN"
    shown = run("versions", "show", "v2")
    assert "v2 < v1 < base" in shown and "whole" in shown and "loss 0.125" in shown
    assert "v2 against v1: accepted" in shown
    found = run("versions", "show", "v2", "--json")
    assert (found["line"], found["all_turns"], found["damage"]) == (
        ["v2", "v1"],
        ["t1", "t2"],
        None,
    )


def test_promote_and_rollback(run: Run, stocked: Path) -> None:
    assert "v1 is live for local now; before it was v2" in run("versions", "rollback")
    done = run("versions", "rollback", "--json")
    assert done == {"owner": "local", "before": "v1", "live": "base"}
    assert run("versions", "promote", "v2", "--json")["before"] == "base"
    assert "already" in run("versions", "promote", "v2")
    assert "before it was v2" in run("versions", "promote", "base")
    assert "found no version v7" in run("versions", "promote", "v7", code=2)


def test_what_the_gate_did_not_see_is_not_promoted(run: Run, stocked: Path) -> None:
    """As a trainer leaves it that died before it had measured it."""

    async def train() -> None:
        async with open_store(f"sqlite:///{stocked}/instar.db") as store:
            await store.record(make_turn("t3", owner="local", session="three"))
            await publish(store, stocked, "t3", live=False)

    asyncio.run(train())
    assert "v3 of local was not measured yet" in run("versions", "promote", "v3", code=2)
    assert live(run) == ["v2"]
    assert "v3 is live" in run("versions", "promote", "v3", "--anyway")


def test_a_damaged_version_is_not_promoted(run: Run, stocked: Path) -> None:
    folder = VersionFiles.of_home(stocked).folder("local", "v1")
    (folder / ADAPTER[1]).write_bytes(b"other")
    assert "Version v1 of local is damaged" in run("versions", "promote", "v1", code=2)
    assert "v1 of local is damaged" in run("versions", "show", "v1")
    states = {one["name"]: one["state"] for one in run("versions", "list", "--json")}
    assert states == {"v1": "retired", "v2": "live"}


def spoil(home: Path, name: str) -> None:
    (VersionFiles.of_home(home).folder("local", name) / ADAPTER[1]).write_bytes(b"other")


def live(run: Run) -> list[str]:
    return [v["name"] for v in run("versions", "list", "--json") if v["state"] == "live"]


def test_a_rollback_passes_over_what_is_damaged(run: Run, stocked: Path) -> None:
    async def third() -> None:
        async with open_store(f"sqlite:///{stocked}/instar.db") as store:
            await publish(store, stocked)

    asyncio.run(third())
    spoil(stocked, "v2")
    said = run("versions", "rollback")
    assert "v2 is passed over. Version v2 of local is damaged" in said
    assert "v1 is live for local now; before it was v3" in said
    assert live(run) == ["v1"]


def test_a_rollback_ends_at_the_base_where_nothing_is_whole(run: Run, stocked: Path) -> None:
    spoil(stocked, "v1")
    spoil(stocked, "v2")  # what is live may well be damaged: that is why somebody goes back
    done = run("versions", "rollback", "--json")
    assert (done["before"], done["live"], list(done["damaged"])) == ("v2", "base", ["v1"])
    assert "is not the file that was written" in done["damaged"]["v1"]
    assert live(run) == []


def test_several_owners_must_be_named(run: Run, stocked: Path) -> None:
    async def another() -> None:
        async with open_store(f"sqlite:///{stocked}/instar.db") as store:
            await publish(store, stocked, owner="ann")

    asyncio.run(another())
    assert "name one with --owner" in run("versions", "rollback", code=2)
    assert run("versions", "rollback", "--owner", "ann", "--json")["live"] == "base"
    assert len(run("versions", "list", "--owner", "ann", "--json")) == 1


def test_forget_names_versions_and_removes_their_files(run: Run, stocked: Path) -> None:
    said = run("sessions", "forget", "two", "--json")
    assert (said["turns"], said["trained"], said["tainted"]) == (1, ["v2"], ["v2"])
    assert (said["was_live"], said["live"]) == ("v2", "v1")
    files = VersionFiles.of_home(stocked)
    assert not files.folder("local", "v2").exists() and files.folder("local", "v1").exists()
    status = run("learning", "status", "--json")
    assert [one["start"] for one in status["rebuilds"]] == ["v1"]
    assert "v2 of local waits to be trained again from v1" in run("learning", "status")
    assert "0 turns are removed" in run("sessions", "forget", "two")
    said = run("sessions", "forget", "one")
    assert "learned from it and are removed: v1, v2" in said
    assert "base serves instead of v1" in said
    assert "found no session three" in run("sessions", "forget", "three", code=2)


def test_forgetting_once_more_takes_no_session_that_begins_alike(home: Path, run: Run) -> None:
    home.mkdir()
    own = new_id("s")

    async def stock() -> None:
        async with open_store(f"sqlite:///{home}/instar.db") as store:
            for turn, session in (("t1", "chat-1"), ("t2", "chat-10"), ("t3", own)):
                await store.record(make_turn(turn, owner="local", session=session))

    asyncio.run(stock())
    assert run("sessions", "forget", "chat-1", "--json")["turns"] == 1
    said = run("sessions", "forget", "chat-1", code=2)
    assert "found no session chat-1, only chat-10 of local" in said
    assert run("sessions", "forget", own[:-3], "--json")["session"] == own
    assert [one["id"] for one in run("sessions", "list", "--json")] == ["chat-10"]


def test_an_empty_id_means_no_session(home: Path, run: Run) -> None:
    home.mkdir()

    async def stock() -> None:
        async with open_store(f"sqlite:///{home}/instar.db") as store:
            await store.record(make_turn("t1", owner="local", session=new_id("s")))

    asyncio.run(stock())
    assert "found an empty id" in run("sessions", "forget", "", code=2)
    assert len(run("sessions", "list", "--json")) == 1


def test_status_says_what_teaches_nothing(run: Run, stocked: Path) -> None:
    async def learner(counts: dict[str, int]) -> None:
        async with open_store(f"sqlite:///{stocked}/instar.db") as store:
            await JudgedTurns(store).note_passed("local", counts)

    asyncio.run(learner({"stale": 2}))
    asyncio.run(learner({"too_long": 16, "neutral": 3}))
    told = run("learning", "status")
    assert "judged turns of local that teach nothing as it is set: 3 neutral, 16 too_long" in told
    found = run("learning", "status", "--json")["passed_over"]
    assert found == {"local": {"neutral": 3, "too_long": 16}}
    asyncio.run(learner({}))
    assert run("learning", "status", "--json")["passed_over"] == {}
    assert run("versions", "list", "--json"), "other counters are left alone"


def test_learning_is_paused_and_resumed(run: Run) -> None:
    assert "Learning is on" in run("learning", "status")
    assert "Learning is paused." in run("learning", "pause")
    assert "already" in run("learning", "pause")
    assert "" in run("learning", "status", "--json")["paused"]
    assert "paused for everybody" in run("learning", "status")
    assert "goes on" in run("learning", "resume")
    assert run("learning", "pause", "--owner", "ann", "--json")["changed"] is True
    assert "paused for ann" in run("learning", "status")
    assert run("learning", "resume", "--owner", "ann", "--json")["changed"] is True
    assert "was not paused" in run("learning", "resume")


class Gateway(BaseHTTPRequestHandler):
    """Answers with the model that was asked for."""

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        body = json.loads(self.rfile.read(size))
        self.server.asked.append((dict(self.headers), body))  # type: ignore[attr-defined]
        wrong = body["model"].endswith(":v9") or self.path != "/v1/chat/completions"
        answer: dict[str, Any] = {"error": {"message": "no such model"}}
        if not wrong:
            text = f"{body['model']} says hello"
            answer = {"choices": [{"message": {"role": "assistant", "content": text}}]}
        data = json.dumps(answer).encode()
        self.send_response(404 if wrong else 200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def gateway() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url_of(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/v1"


def test_diff_asks_both_versions_the_same(run: Run, stocked: Path, gateway: HTTPServer) -> None:
    name = next(f"h{n}" for n in range(1000) if share_of(f"h{n}") < 0.15)

    async def correct() -> None:
        async with open_store(f"sqlite:///{stocked}/instar.db") as store:
            turn = make_turn(name, owner="local", messages=(user("What is rain?"),), hint=HINT)
            await store.record(turn)

    asyncio.run(correct())
    asked = gateway.asked  # type: ignore[attr-defined]
    found = run("versions", "diff", "base", "v2", "--url", url_of(gateway), "--json")
    assert [(one["prompt"], one["hint"]) for one in found] == [("What is rain?", "Be brief.")]
    assert {v: a.split(" ")[0].split(":")[1] for v, a in found[0]["answers"].items()} == {
        "base": "base",
        "v2": "v2",
    }
    headers, body = asked[0]
    assert body["temperature"] == 0 and body["messages"][0]["content"] == "What is rain?"
    assert headers["x-no-record"] == headers["x-no-train"] == "1"
    assert headers["x-turn-type"] == "side"
    bare = url_of(gateway).removesuffix("/v1")  # as a browser has it
    shown = run("versions", "diff", "base", "v2", "--url", bare)
    assert "What is rain?" in shown and "asked for: Be brief." in shown
    refused = run("versions", "diff", "base", "v9", "--url", url_of(gateway), code=2)
    assert "refused v9 for local: no such model" in refused


HINT = Hint(text="Be brief.")


def test_diff_without_corrections_or_gateway(run: Run, stocked: Path, gateway: HTTPServer) -> None:
    found = run("versions", "diff", "v1", "v2", "--url", url_of(gateway), "--limit", "4", "--json")
    assert len({one["prompt"] for one in found}) == 4
    gone = run("versions", "diff", "v1", "v2", "--url", "http://127.0.0.1:9/v1", code=2)
    assert "no gateway answers" in gone and "instar up" in gone
