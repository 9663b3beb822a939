"""Calls of which nothing is kept, and the judge that makes such calls of this very gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from gate import MODEL, Gate, body, gate, problem, user

from instar.judge.llm import Endpoint, LlmHinter, LlmVoter
from instar.judge.panel import PanelJudge
from instar.learn.judging import JudgeWorker
from instar.record.forget import forget_session

SCRIPT = (
    {"when": "You judge whether", "text": '{"score": -1}'},
    {"when": "should have done", "text": '{"hint": "Be brief."}'},
)
SECRET = "My diagnosis is MARKED"


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Gate]:
    """A gateway whose model is also the judge of what it says."""
    async with gate(tmp_path, SCRIPT) as opened:
        yield opened


async def judge(system: Gate) -> None:
    transport = httpx.ASGITransport(app=system.system.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gate/v1/") as client:
        endpoint = Endpoint(client=client, model=MODEL)
        panel = PanelJudge(
            voter=LlmVoter(endpoint=endpoint), hinter=LlmHinter(endpoint=endpoint), count=3
        )
        assert await JudgeWorker(system.system.store, panel).drain()


async def test_a_judge_that_asks_this_engine_leaves_no_copy_of_what_it_judged(
    judged: Gate, tmp_path: Path
) -> None:
    headers = {"x-session-id": "s"}
    reply = await judged.say(SECRET, headers=headers)
    await judged.say([user(SECRET), reply, user("Shorter, please.")], headers=headers)
    await judge(judged)
    store = judged.system.store
    first = (await judged.turns("s"))[0]
    assert first.verdict is not None and first.verdict.votes == (-1, -1, -1)
    assert first.hint is not None and first.hint.text == "Be brief."
    assert [one.id for one in await store.sessions()] == ["s"]
    # Three votes, and as many ways to say what should have been different.
    assert await judged.metric("instar_unrecorded_replies_total") == 6
    assert await judged.metric("instar_turns_total") == 2
    await forget_session(store, "local", "s")
    assert await store.sessions() == [] and await judged.all_turns() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_kept_of_a_call_that_asks_so(system: Gate, stream: bool) -> None:
    reply = await system.say("Hello", headers={"x-session-id": "s"})
    (before,) = await system.turns("s")
    tokens = await system.metric("instar_sampled_tokens_total")
    asked = body([user("Hello"), reply, user("Secret.")], stream=stream)
    answer = await system.post(asked, x_session_id="s", x_no_record="1", x_session_done="1")
    assert answer.status_code == 200 and answer.text
    # Not even as what followed the turn before, and the session that it names stays open.
    assert await system.turns("s") == [before] and before.next_state is None
    assert [(one.id, one.closed) for one in await system.system.store.sessions()] == [("s", False)]
    assert await system.metric("instar_sampled_tokens_total") > tokens
    assert await system.metric("instar_requests_total") == 2


async def test_what_was_not_recorded_cannot_be_gone_on_from(system: Gate) -> None:
    call = {"model": MODEL, "input": "Hello"}
    answer = await system.http.post("/v1/responses", json=call, headers={"X-No-Record": "true"})
    name = answer.json()["id"]
    again = {**call, "previous_response_id": name}
    assert problem(await system.http.post("/v1/responses", json=again), 400)["param"]
    assert (await system.http.get(f"/v1/responses/{name}")).status_code == 404


async def test_who_says_no_is_recorded(system: Gate) -> None:
    await system.say("Hello", headers={"x-no-record": "0", "x-session-id": "s"})
    assert len(await system.turns("s")) == 1


async def test_a_key_is_asked_for_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTAR_API_KEY", "mine")
    async with gate(tmp_path, gateway__host="0.0.0.0") as opened:
        problem(await opened.post(body("Hello"), x_no_record="1"), 401)
