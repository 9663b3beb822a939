"""Anthropic Messages as the anthropic SDK speaks it, and what the store keeps of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic
from gate import MODEL, Gate, extends, gate, listening

from instar.record.keys import Keys

CALL = {"name": "look", "arguments": {"at": "the sky", "n": [1, None]}}
TOOL = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}


@asynccontextmanager
async def speaking(home: Path, script: Any = (), **settings: Any) -> AsyncIterator[Any]:
    async with (
        listening(home, script, **settings) as address,
        AsyncAnthropic(
            base_url=address.removesuffix("/v1"), api_key="sk-none", max_retries=0
        ) as client,
    ):
        yield client


async def ask(client: Any, stream: bool, **fields: Any) -> Any:
    """The final message, as the SDK puts it together."""
    fields = {"model": MODEL, "max_tokens": 1024, **fields}
    if not stream:
        return await client.messages.create(**fields)
    async with client.messages.stream(**fields) as events:
        return await events.get_final_message()


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("stream", [True, False])
async def test_thinking_text_and_calls_reach_the_client(tmp_path: Path, stream: bool) -> None:
    script = [{"text": "It is blue: ☃.", "reasoning": "hm,\n\nwell", "tool_calls": [CALL, CALL]}]
    async with speaking(tmp_path, script) as client:
        message = await ask(client, stream, messages=said("hi"), tools=[TOOL])
    thinking, text, first, second = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "hm,\n\nwell")
    assert thinking.signature
    assert (text.type, text.text) == ("text", "It is blue: ☃.")
    assert [(c.type, c.name, c.input) for c in (first, second)] == [
        ("tool_use", "look", CALL["arguments"])
    ] * 2
    assert first.id != second.id
    assert (message.stop_reason, message.stop_sequence) == ("tool_use", None)
    assert message.id.startswith("msg_t") and message.role == "assistant"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_loop_is_one_session_that_extends(tmp_path: Path, stream: bool) -> None:
    script = [{"text": "I look.", "tool_calls": [CALL]}, {"text": "Blue."}, {"text": "Bye."}]
    async with speaking(tmp_path, script) as client:
        history: list[Any] = said("What colour is the sky?")
        fields = {"tools": [TOOL], "system": [{"type": "text", "text": "Be brief."}]}
        fields["extra_headers"] = {"X-Session-Id": "s"}
        reply = await ask(client, stream, messages=history, **fields)
        call = reply.content[-1]
        inner = [{"type": "text", "text": "blue"}]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": inner}
        history += [
            {"role": "assistant", "content": [one.model_dump() for one in reply.content]},
            {"role": "user", "content": [result]},
        ]
        reply = await ask(client, stream, messages=history, **fields)
        assert (reply.content[0].text, reply.stop_reason) == ("Blue.", "end_turn")
        history += [{"role": "assistant", "content": reply.content}, *said("bye")]
        await ask(client, stream, messages=history, **fields)
    async with gate(tmp_path) as opened:
        first, second, third = await opened.turns("s")
    assert first.messages[0] == {"role": "system", "content": "Be brief."}
    assert second.messages[-1] == {"role": "tool", "tool_call_id": call.id, "content": "blue"}
    assert extends(second, first) and extends(third, second)
    assert first.next_state is not None and first.next_state.messages == second.messages[-1:]


async def test_events_come_in_anthropics_order(tmp_path: Path) -> None:
    script = [{"text": "one two", "reasoning": "hm", "tool_calls": [CALL]}]
    async with gate(tmp_path, script, engine__piece_tokens=100) as opened:
        answer = await _post(opened, messages=said("x"), tools=[TOOL], stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [event.split("\n") for event in answer.text.strip().split("\n\n")]
        assert all(len(event) == 2 for event in lines)
        events = [json.loads(data.removeprefix("data: ")) for _, data in lines]
        assert [name.removeprefix("event: ") for name, _ in lines] == [e["type"] for e in events]
        (turn,) = await opened.all_turns()
    kinds = [(e["type"], e.get("index")) for e in events]
    assert kinds == [
        ("message_start", None),
        ("ping", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
        ("content_block_stop", 2),
        ("message_delta", None),
        ("message_stop", None),
    ]
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas] == [
        *("thinking_delta", "signature_delta", "text_delta", "input_json_delta"),
    ]
    assert json.loads(deltas[3]["partial_json"]) == CALL["arguments"]
    start, last = events[0]["message"], events[-2]
    assert start["id"] == f"msg_{turn.id}" and start["content"] == []
    assert start["usage"]["input_tokens"] == len(turn.prompt_ids)
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert last["usage"]["output_tokens"] == len(turn.sampled_ids)


@pytest.mark.parametrize("stream", [True, False])
async def test_why_a_reply_ended(tmp_path: Path, stream: bool) -> None:
    script = [{"text": "one STOP two"}, {"text": "one two three"}, {"text": "done"}]
    async with speaking(tmp_path, script) as client:
        fields: dict[str, Any] = {"messages": said("x"), "stop_sequences": ["never", "STOP"]}
        stopped = await ask(client, stream, **fields)
        cut = await ask(client, stream, **fields, max_tokens=3)
        ended = await ask(client, stream, **fields)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "STOP")
    assert stopped.content[0].text == "one "
    assert (cut.stop_reason, cut.stop_sequence, cut.content[0].text) == ("max_tokens", None, "one")
    assert (ended.stop_reason, ended.stop_sequence) == ("end_turn", None)


async def test_tokens_are_counted_as_they_are_used(tmp_path: Path) -> None:
    async with speaking(tmp_path) as client:
        fields: dict[str, Any] = {
            "model": MODEL,
            "messages": said("How many?"),
            "system": "Count.",
            "tools": [TOOL],
        }
        counted = await client.messages.count_tokens(**fields)
        reply = await client.messages.create(**fields, max_tokens=5)
    assert counted.input_tokens == reply.usage.input_tokens
    async with gate(tmp_path) as opened:
        (turn,) = await opened.all_turns()
    assert len(turn.prompt_ids) == counted.input_tokens, "counting is not recorded"


async def test_what_claude_code_sends(tmp_path: Path) -> None:
    """Its fields, blocks and a system message in the middle, as version 2.1.325 sent them."""
    session = "c40806f8-cc0b-4346-92c5-8d47277eb21a"
    system = [{"type": "text", "text": "You are.", "cache_control": {"type": "ephemeral"}}]
    first = {
        "role": "user",
        "content": [
            {"type": "text", "text": "<system-reminder>x</system-reminder>"},
            {"type": "text", "text": "say hi from claude code"},
        ],
    }
    middle = {"role": "system", "content": [{"type": "text", "text": "# Environment"}]}
    fields: dict[str, Any] = {
        "system": system,
        "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "metadata": {"user_id": json.dumps({"device_id": "d", "session_id": session})},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    async with gate(tmp_path, [{"text": "Hi."}, {"text": "Again."}]) as opened:
        headers = {"x-session-id": session, "x-api-key": "sk", "anthropic-version": "2023-06-01"}
        found = await _post(opened, headers=headers, messages=[first, middle], **fields)
        assert found.json()["content"] == [{"type": "text", "text": "Hi."}]
        again = [
            first,
            {**middle, "content": "# Environment"},
            {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
            {"role": "user", "content": [{"type": "text", "text": "second turn"}]},
        ]
        await _post(opened, headers=headers, messages=again, **fields)
        one, two = await opened.turns(session)
    assert extends(two, one)
    assert [message["role"] for message in one.messages] == ["system", "user", "system"]
    assert [tool["function"]["name"] for tool in one.tools] == ["look"]


async def test_a_key_may_come_in_x_api_key(tmp_path: Path) -> None:
    async with gate(tmp_path) as opened:
        _, key = await Keys(opened.system.store).create_key("anna")
        await _post(opened, headers={"x-api-key": key}, messages=said("x"))
        assert len(await opened.all_turns("anna")) == 1


async def _post(opened: Gate, *, headers: Any = None, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 1024, **fields}
    answer = await opened.http.post("/v1/messages?beta=true", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer
