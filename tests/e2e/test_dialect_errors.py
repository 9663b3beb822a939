"""Bad input in every dialect: its own error shape, the right status, and nothing recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic, RateLimitError
from gate import MODEL, Gate, gate, listening, sdk, until
from openai import RateLimitError as OpenAIRateLimitError

from instar.errors import EngineError
from instar.record.keys import Keys
from instar.types import Piece, Request

TURN = {"role": "user", "content": "x"}
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [TURN]}),
    "completions": ("/v1/completions", {"prompt": "x"}),
    "responses": ("/v1/responses", {"input": [TURN]}),
    "messages": ("/v1/messages", {"messages": [TURN], "max_tokens": 9}),
}
EACH = pytest.mark.parametrize("name", PATHS)

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "api_error",
}


def problem(name: str, answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, which must have the dialect's own shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    error: dict[str, Any] = found["error"]
    if name == "messages":
        assert set(found) == {"type", "error"} and found["type"] == "error"
        assert set(error) == {"type", "message"} and error["type"] == KINDS[status]
    else:
        assert set(found) == {"error"} and set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    return error


async def post(opened: Gate, name: str, headers: Any = None, **fields: Any) -> httpx.Response:
    path, body = PATHS[name]
    return await opened.http.post(path, json={"model": MODEL, **body, **fields}, headers=headers)


@EACH
async def test_the_bodies_that_the_other_tests_break_are_good(system: Gate, name: str) -> None:
    assert (await post(system, name)).status_code == 200


@EACH
@pytest.mark.parametrize("cut", [1, 10, -1])
async def test_a_truncated_body(system: Gate, name: str, cut: int) -> None:
    path, body = PATHS[name]
    written = json.dumps({"model": MODEL, **body})[:cut]
    error = problem(name, await system.http.post(path, content=written), 400)
    assert "not JSON" in error["message"]
    assert await system.all_turns() == []


@EACH
@pytest.mark.parametrize(
    "headers",
    [{"X-Session-Id": "x" * 10_000}, {"X-Session-Id": b"a\x01b"}, {"X-Turn-Type": "middle"}],
)
async def test_a_bad_header(system: Gate, name: str, headers: Any) -> None:
    error = problem(name, await post(system, name, headers=headers), 400)
    assert "characters" in error["message"] or "turn type" in error["message"]
    assert await system.all_turns() == []


@EACH
async def test_unknown_fields_that_change_nothing_are_ignored(system: Gate, name: str) -> None:
    fields = {"never_heard_of": [1], "user": "me", "service_tier": "auto"}
    assert (await post(system, name, **fields)).status_code == 200


@EACH
async def test_an_unknown_model(system: Gate, name: str) -> None:
    error = problem(name, await post(system, name, model="gpt-9"), 404)
    assert MODEL in error["message"]


@EACH
async def test_a_wrong_method(system: Gate, name: str) -> None:
    answer = await system.http.delete(PATHS[name][0])
    problem(name, answer, 405)
    assert "POST" in answer.headers["allow"]


@EACH
async def test_a_body_that_is_too_large(tmp_path: Path, name: str) -> None:
    async with gate(tmp_path, gateway__max_body_mb=0.001) as opened:
        error = problem(name, await post(opened, name, user="x" * 2000), 413)
    assert "max_body_mb" in error["message"]


@EACH
async def test_no_key(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSTAR_API_KEY", "sk-right")
    async with gate(tmp_path, gateway__host="0.0.0.0") as opened:
        problem(name, await post(opened, name), 401)
        problem(name, await post(opened, name, headers={"x-api-key": "sk-wrong"}), 401)
        assert (await post(opened, name, headers={"x-api-key": "sk-right"})).status_code == 200


def call(name: str, *ids: str) -> list[dict[str, Any]]:
    """A message of the assistant that makes calls, in each dialect."""
    if name == "chat":
        made: list[Any] = [
            {"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            for one in ids
        ]
        return [{"role": "assistant", "content": None, "tool_calls": made}]
    if name == "messages":
        blocks = [{"type": "tool_use", "id": one, "name": "f", "input": {}} for one in ids]
        return [{"role": "assistant", "content": blocks}]
    return [
        {"type": "function_call", "call_id": one, "name": "f", "arguments": "{}"} for one in ids
    ]


def result(name: str, *ids: str) -> list[dict[str, Any]]:
    if name == "chat":
        return [{"role": "tool", "tool_call_id": one, "content": "y"} for one in ids]
    if name == "messages":
        blocks = [{"type": "tool_result", "tool_use_id": one, "content": "y"} for one in ids]
        return [{"role": "user", "content": blocks}]
    return [{"type": "function_call_output", "call_id": one, "output": "y"} for one in ids]


CHATS = pytest.mark.parametrize("name", ["chat", "responses", "messages"])
FIELD = {"chat": "messages", "responses": "input", "messages": "messages"}


@CHATS
async def test_tool_ids(system: Gate, name: str) -> None:
    async def say(*history: list[dict[str, Any]]) -> httpx.Response:
        items = [TURN, *(one for part in history for one in part)]
        return await post(system, name, **{FIELD[name]: items})

    for bad, why in (
        ((call(name, "a", "a"), result(name, "a")), "have the id 'a'"),
        ((call(name, "a"), result(name, "a", "a")), "two results"),
        ((call(name, "a"), result(name, "b")), "'b', which no message before it makes"),
        ((result(name, "a"),), "'a', which no message before it makes"),
    ):
        assert why in problem(name, await say(*bad), 400)["message"]
    assert await system.all_turns() == []
    twice = (call(name, "a"), result(name, "a"), call(name, "a"), result(name, "a"))
    assert (await say(*twice)).status_code == 200, "some clients number the calls of each turn"


@CHATS
async def test_an_empty_message_list(system: Gate, name: str) -> None:
    problem(name, await post(system, name, **{FIELD[name]: []}), 400)
    problem(name, await post(system, name, **{FIELD[name]: None}), 400)
    assert await system.all_turns() == []


UNKNOWN: dict[str, list[tuple[dict[str, Any], str]]] = {
    "chat": [
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "'video'"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ],
    "completions": [
        ({"prompt": []}, "empty"),
        ({"prompt": ["a", "b"]}, "2 prompts"),
        ({"prompt": [10**9]}, "1000000000"),
        ({"prompt": [-1]}, "-1"),
        ({"echo": True, "logprobs": 1}, "log-probs of the prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
    "responses": [
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "'web_search_call'"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference'"),
        ({"input": [{"role": "robot", "content": "x"}]}, "'robot'"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "'input_file'"),
        ({"input": [{}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "call_id"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "call_id"),
        ({"previous_response_id": "resp_nothing"}, "'nothing'"),
        ({"previous_response_id": "☃"}, "☃"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"text": {"format": {"type": "json_object"}}}, "text"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "no name"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
    ],
    "messages": [
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document'"),
        ({"messages": [TURN, {"role": "assistant", "content": "I am"}]}, "assistant's"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"tool_choice": {"type": "any"}, "tools": []}, "tool_choice"),
        ({"tools": [{"input_schema": {}}]}, "no name"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config"),
        ({"thinking": "yes"}, "thinking"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ],
}


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [(name, *case) for name, cases in UNKNOWN.items() for case in cases],
)
async def test_what_is_not_known_is_named(
    system: Gate, name: str, fields: dict[str, Any], why: str
) -> None:
    assert why in problem(name, await post(system, name, **fields), 400)["message"]
    assert await system.all_turns() == []


async def test_a_response_of_somebody_else_is_not_found(system: Gate) -> None:
    owners = {}
    for owner in ("ann", "bob"):
        _, key = await Keys(system.system.store).create_key(owner)
        owners[owner] = {"authorization": f"Bearer {key}"}
    given = (await post(system, "responses", headers=owners["ann"])).json()["id"]
    for name in (given, "resp_nothing"):
        answer = await system.http.get(f"/v1/responses/{name}", headers=owners["bob"])
        assert problem("responses", answer, 404)["code"] == "not_found"
        answer = await post(
            system, "responses", headers=owners["bob"], previous_response_id=name, input="y"
        )
        assert problem("responses", answer, 400)["code"] == "previous_response_not_found"
    assert await system.all_turns("bob") == []
    mine = await system.http.get(f"/v1/responses/{given}", headers=owners["ann"])
    assert mine.json()["id"] == given


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"model": MODEL, "messages": []}, 400, "messages"),
        ({"model": MODEL, "messages": [TURN], "system": 5}, 400, "system"),
        ({"model": MODEL, "messages": [{"role": "user", "content": [{"type": "x"}]}]}, 400, "'x'"),
        ({"model": MODEL, "messages": result("messages", "a")}, 400, "which no message before"),
        ({"model": "gpt-9", "messages": [TURN]}, 404, MODEL),
        ([], 400, "must be an object"),
    ],
)
async def test_what_cannot_be_counted(system: Gate, body: Any, status: int, why: str) -> None:
    answer = await system.http.post("/v1/messages/count_tokens", json=body)
    assert why in problem("messages", answer, status)["message"]


@EACH
@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_queue_says_when_to_come_back(tmp_path: Path, name: str, stream: bool) -> None:
    settings = {"gateway__max_queue": 1, "engine__delay_ms": 60_000, "gateway__drain_s": 0}
    async with gate(tmp_path, **settings) as opened:
        first = asyncio.ensure_future(opened.say("x"))
        await until(lambda: opened.running == 1)
        answer = await post(opened, name, stream=stream)
        problem(name, answer, 429)
        assert int(answer.headers["retry-after"]) >= 1
        first.cancel()
        await until(lambda: opened.system.server.running == 0)


async def test_the_sdks_know_a_full_queue_when_they_see_one(tmp_path: Path) -> None:
    settings = {"gateway__max_queue": 1, "engine__delay_ms": 60_000, "gateway__drain_s": 0}
    async with (
        listening(tmp_path, **settings) as address,
        sdk(address) as client,
        AsyncAnthropic(base_url=address.removesuffix("/v1"), api_key="x", max_retries=0) as other,
    ):
        first = asyncio.ensure_future(client.completions.create(model=MODEL, prompt="x"))
        async with httpx.AsyncClient(base_url=address.removesuffix("/v1")) as http:

            async def busy() -> bool:
                return "instar_requests_in_progress 1.0" in (await http.get("/metrics")).text

            await until(busy)
        with pytest.raises(OpenAIRateLimitError):
            await client.responses.create(model=MODEL, input="x")
        with pytest.raises(RateLimitError):
            await other.messages.create(model=MODEL, messages=[TURN], max_tokens=5)  # type: ignore[list-item]
        first.cancel()


def failing(opened: Gate, monkeypatch: pytest.MonkeyPatch, *, times: int, after: int) -> None:
    """An engine that dies in its next replies, after some pieces."""
    engine: Any = opened.system.engine
    generate = engine.generate
    left = times

    async def dying(request: Request) -> AsyncGenerator[Piece, None]:
        nonlocal left
        dies, left = left > 0, left - 1
        count = 0
        async for piece in generate(request):
            if dies and count == after:
                raise EngineError("the engine died")
            count += 1
            yield piece

    monkeypatch.setattr(engine, "generate", dying)


@EACH
async def test_a_stream_that_breaks_says_so(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(tmp_path, [{"text": "one two three four"}]) as opened:
        failing(opened, monkeypatch, times=1, after=2)
        answer = await post(opened, name, stream=True)
        assert answer.status_code == 200
        assert await opened.all_turns() == []
    lines = answer.text.strip().split("\n")
    last = json.loads(lines[-1].removeprefix("data: "))
    assert "[DONE]" not in answer.text
    if name == "messages":
        assert lines[-2] == "event: error"
        assert last["error"] == {"type": "api_error", "message": "the engine died"}
    elif name == "responses":
        assert lines[-2] == "event: response.failed"
        told = {"code": "server_error", "message": "the engine died"}
        assert (last["response"]["status"], last["response"]["error"]) == ("failed", told)
    else:
        assert last["error"]["code"] == "engine_error"


@EACH
@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_dies_before_the_first_token_is_asked_again(
    tmp_path: Path, name: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(tmp_path) as opened:
        failing(opened, monkeypatch, times=1, after=0)
        assert (await post(opened, name, stream=stream)).status_code == 200
        assert len(await opened.all_turns()) == 1
        failing(opened, monkeypatch, times=2, after=0)
        answer = await post(opened, name, stream=stream)
        assert "died" in problem(name, answer, 503)["message"]
        assert int(answer.headers["retry-after"]) >= 1
        assert len(await opened.all_turns()) == 1


@EACH
async def test_a_reply_takes_feedback_by_the_id_it_came_with(system: Gate, name: str) -> None:
    reply = (await post(system, name)).json()["id"]
    answer = await system.http.post("/v1/feedback", json={"turn": reply, "score": 1})
    assert answer.status_code == 200, answer.text
    (turn,) = await system.all_turns()
    assert answer.json()["turn"] == turn.id and reply.endswith(turn.id)
    assert turn.verdict is not None and turn.verdict.score == 1
