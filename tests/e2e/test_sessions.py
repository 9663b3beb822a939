"""Which session a request belongs to, and how sessions end and go on."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from gate import Gate, body, extends, gate, problem, until, user

from instar.record.keys import Keys


async def two_turns(
    system: Gate, first: dict[str, Any], second: dict[str, Any] | None = None
) -> None:
    """Two turns of one conversation, named each time by these headers or body fields."""
    reply = await system.say("hi", **first)
    await system.say([user("hi"), reply, user("go on")], **(second or first))


@pytest.mark.parametrize(
    ("first", "second", "session"),
    [
        ({"headers": {"X-Session-Id": "a:1"}}, None, "a:1"),
        (
            {"headers": {"x-session-affinity": "a:1"}},
            {"headers": {"x-session-affinity": "a:2"}},
            "a",
        ),
        ({"headers": {"session_id": "a"}}, None, "a"),
        ({"headers": {"session-id": "a"}}, None, "a"),
        ({"headers": {"session_id": "a:1"}}, {"headers": {"session-id": "a:2"}}, "a"),
        ({"session_id": "a:1"}, None, "a:1"),
        (
            {"headers": {"X-Session-Id": "caf\u00e9".encode()}},
            {"session_id": "caf\u00e9"},
            "caf\u00e9",
        ),
        ({"prompt_cache_key": "key:7"}, {"prompt_cache_key": "key"}, "key"),
        ({"session_id": "a"}, None, "a"),
        ({"headers": {"X-Session-Id": "head"}, "session_id": "body"}, None, "head"),
        ({"headers": {"X-Session-Id": " caf\u00e9 ".encode("latin-1")}}, None, "caf\u00e9"),
    ],
)
async def test_a_session_is_named_by_header_or_body(
    system: Gate, first: dict[str, Any], second: dict[str, Any] | None, session: str
) -> None:
    await two_turns(system, first, second)
    root, child = await system.turns(session)
    assert (root.parent, child.parent, child.extends) == (None, root.id, True)


async def test_without_a_name_a_history_finds_its_session(system: Gate) -> None:
    """Though the client trims, drops and rewrites what it resends."""
    first = await system.say([{"role": "system", "content": "Be brief."}, user(" hi\n")])
    history: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": f"<think>\nno\n</think>\n\n{first['content']}\n"},
    ]
    await system.say([*history, user("and?")])
    await system.say("hi")
    continued, other = sorted(
        await system.system.store.sessions("local"), key=lambda session: -session.turns
    )
    root, child = await system.turns(continued.id)
    assert (child.parent, child.extends) == (root.id, True)
    assert extends(child, root)
    assert other.turns == 1, "a new conversation is a new session, though it begins alike"


async def test_a_history_finds_its_session_after_a_restart(tmp_path: Path) -> None:
    async with gate(tmp_path) as opened:
        reply = await opened.say("remember")
    async with gate(tmp_path) as opened:
        await opened.say([user("remember"), reply, user("what?")])
        (session,) = await opened.system.store.sessions("local")
        root, child = await opened.turns(session.id)
    assert (child.parent, extends(child, root)) == (root.id, True)
    assert root.next_state and [m["content"] for m in root.next_state.messages] == ["what?"]


@pytest.mark.parametrize("named", [True, False])
async def test_owners_never_share_a_session(system: Gate, named: bool) -> None:
    keys = Keys(system.system.store)
    head = {"X-Session-Id": "same"} if named else {}
    histories: dict[str, list[Any]] = {}
    for owner in ("ann", "bob"):
        _, secret = await keys.create_key(owner)
        headers = {**head, "Authorization": f"Bearer {secret}"}
        # Bob resends what Ann was told, word for word.
        history = histories.get("ann", [user("hi")])
        reply = await system.say(history, headers=headers)
        histories[owner] = [*history, reply, user("go on")]
    (ann,), (bob,) = await system.all_turns("ann"), await system.all_turns("bob")
    assert ann.owner == "ann" and bob.parent is None
    assert ann.next_state is None, "nothing bob said followed ann's turn"
    assert await system.all_turns("local") == []
    assert (ann.session == bob.session) is named


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"X-Turn-Type": "side"}},
        {"headers": {"X-Turn-Type": " SIDE "}},
        {"turn_type": "side"},
    ],
)
async def test_side_turns_are_named_by_header_or_body(system: Gate, fields: dict[str, Any]) -> None:
    await system.say("x", session_id="s", **fields)
    await system.say("x", session_id="s", turn_type="side", headers={"X-Turn-Type": "main"})
    side, main = await system.turns("s")
    assert (side.kind, main.kind) == ("side", "main"), "a header wins over the body"


async def test_a_run_is_kept_with_its_turns(system: Gate) -> None:
    await system.say("x", session_id="s", headers={"X-Run-Id": "run-1"})
    await system.say("x", session_id="s")
    assert [turn.run for turn in await system.turns("s")] == ["run-1", None]
    bad = await system.post(body("x"), x_run_id="x" * 10_000)
    assert "x-run-id has 10000 characters" in problem(bad, 400)["message"]


async def closed(system: Gate, session: str) -> bool:
    found = await system.system.store.session("local", session)
    assert found is not None
    return found.closed


@pytest.mark.parametrize("stream", [True, False])
async def test_the_last_call_of_a_session_closes_it(system: Gate, stream: bool) -> None:
    headers = {"X-Session-Id": "s"}
    await system.say("x", headers=headers)
    assert not await closed(system, "s")
    answer = await system.post(
        {"model": "smollm2-135m-instruct", "messages": [user("x")], "stream": stream},
        x_session_id="s",
        x_session_done="true",
    )
    assert answer.status_code == 200
    assert await closed(system, "s")
    assert len(system.system.sessions) == 0
    await system.say("x", headers=headers)
    assert not await closed(system, "s"), "it may be used again"


@pytest.mark.parametrize(
    "request_",
    [
        {"headers": {"X-Session-Id": "s"}},
        {"json": {"session_id": "s"}},
        {"content": iter([b'{"session_', b'id": "s"}'])},
    ],
    ids=["header", "body", "chunked"],
)
async def test_done_closes_a_session(system: Gate, request_: dict[str, Any]) -> None:
    await system.say("x", session_id="s")
    if "content" in request_:
        request_ = {"content": pieces(request_["content"])}
    answer = await system.http.post("/v1/session/done", **request_)
    assert (answer.status_code, answer.json()) == (200, {"session": "s", "closed": True})
    assert await closed(system, "s")


async def pieces(parts: Any) -> Any:
    for part in parts:
        yield part


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"json": {"session_id": "nobody"}}, 200),
        ({"json": {}}, 400),
        ({}, 400),
        ({"json": {"session_id": 3}}, 400),
        ({"content": b"{"}, 400),
        ({"json": [1]}, 400),
    ],
)
async def test_done_says_what_it_could_not_close(
    system: Gate, request_: dict[str, Any], status: int
) -> None:
    answer = await system.http.post("/v1/session/done", **request_)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["closed"] is False
    else:
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_an_idle_session_closes_leaves_memory_and_goes_on(tmp_path: Path) -> None:
    async with gate(tmp_path, rollout_config__session_timeout=0.2) as opened:
        reply = await opened.say("hi", session_id="s")
        await until(lambda: len(opened.system.sessions) == 0)
        await until(lambda: closed(opened, "s"))
        await opened.say([user("hi"), reply, user("go on")], session_id="s")
        root, child = await opened.turns("s")
    assert (child.parent, extends(child, root)) == (root.id, True)


async def test_sessions_that_left_memory_early_close_too(tmp_path: Path) -> None:
    """Pushed out by others, or by a restart; what followed their last turn stays unknown."""
    settings = {"rollout_config__max_concurrent_sessions": 1}
    async with gate(tmp_path, **settings) as opened:
        for name in ("a", "b"):
            await opened.say("hi", session_id=name)
        assert len(opened.system.sessions) == 1
    async with gate(tmp_path, rollout_config__session_timeout=0.2, **settings) as opened:
        for name in ("c", "d"):
            await opened.say("hi", session_id=name)
        for name in ("a", "b", "c", "d"):
            await until(lambda name=name: closed(opened, name))  # type: ignore[misc]
        turns = await opened.all_turns()
        assert [turn.next_state for turn in turns] == [None] * 4
        await opened.say("hi", session_id="a")
        assert not await closed(opened, "a"), "it may be used again"


async def test_a_session_is_closed_once_the_store_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("instar.record.store.CHANGE_TIMEOUT_S", 0.1)
    async with gate(tmp_path, rollout_config__session_timeout=0.2) as opened:
        await opened.say("hi", session_id="s")
        with sqlite3.connect(tmp_path / "instar.db", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            await until(lambda: opened.system.store.health()["last_error"])
            assert not await closed(opened, "s") and len(opened.system.sessions) == 0
            other.execute("ROLLBACK")
        other.close()
        await until(lambda: closed(opened, "s"))


async def test_a_session_in_use_never_counts_as_idle(tmp_path: Path) -> None:
    settings = {"rollout_config__session_timeout": 0.05, "engine__delay_ms": 60_000}
    async with gate(tmp_path, gateway__drain_s=0, **settings) as opened:
        task = asyncio.ensure_future(opened.say("hi", session_id="s"))
        await until(lambda: opened.running == 1)
        await asyncio.sleep(0.2)
        assert len(opened.system.sessions) == 1
        task.cancel()
        await until(lambda: len(opened.system.sessions) == 0)


async def test_the_sessions_used_longest_ago_leave_memory(tmp_path: Path) -> None:
    async with gate(tmp_path, rollout_config__max_concurrent_sessions=2) as opened:
        first = await opened.say("hi", session_id="s0")
        for name in ("s1", "s2", "s3"):
            await opened.say("hi", session_id=name)
        assert len(opened.system.sessions) == 2
        await opened.say([user("hi"), first, user("go on")], session_id="s0")
        root, child = await opened.turns("s0")
    assert extends(child, root)


async def test_two_requests_at_once_on_one_session(tmp_path: Path) -> None:
    """Both are served and recorded, as branches of one tree, also where it must be read first."""
    async with gate(tmp_path) as opened:
        reply = await opened.say("hi", session_id="s")
    async with gate(tmp_path, engine__delay_ms=10) as opened:
        histories = [[user("hi"), reply, user(f"branch {n}")] for n in range(8)]
        replies = await asyncio.gather(*(opened.say(h, session_id="s") for h in histories))
        again = [
            [*history, answer, user("more")]
            for history, answer in zip(histories, replies, strict=True)
        ]
        await asyncio.gather(*(opened.say(h, session_id="s") for h in again))
        root, *rest = await opened.turns("s")
    middle, leaves = rest[:8], rest[8:]
    assert [turn.parent for turn in middle] == [root.id] * 8
    assert {turn.parent for turn in leaves} == {turn.id for turn in middle}
    byname = {turn.id: turn for turn in [root, *rest]}
    assert all(extends(turn, byname[str(turn.parent)]) for turn in rest)


async def test_a_turn_that_ends_after_its_session_was_closed_is_still_found(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path, engine__delay_ms=100) as opened:
        early = asyncio.ensure_future(opened.say("one", session_id="s"))
        await until(lambda: opened.running == 1)
        await opened.http.post("/v1/session/done", json={"session_id": "s"})
        late = asyncio.ensure_future(opened.say("two", session_id="s"))
        reply = await early
        await late
        await opened.say([user("one"), reply, user("go on")], session_id="s")
        turns = await opened.turns("s")
    root = next(turn for turn in turns if turn.messages[-1]["content"] == "one")
    assert turns[-1].parent == root.id
