"""OpenAI Responses as the openai SDK speaks it, and what the store keeps of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from gate import MODEL, Gate, Served, extends, gate, listening, sdk

CALL = {"name": "look", "arguments": {"at": "the sky", "n": [1, None]}}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "description": "Look.",
    "parameters": {"type": "object"},
    "strict": False,
}


async def ask(client: Any, stream: bool, **fields: Any) -> Any:
    """The final response, as the SDK reads it."""
    if not stream:
        return await client.responses.create(model=MODEL, **fields)
    async with client.responses.stream(model=MODEL, **fields) as events:
        async for event in events:
            last = event
    assert last.type in ("response.completed", "response.incomplete")
    return last.response


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_text_and_calls_reach_the_client(tmp_path: Path, stream: bool) -> None:
    script = [{"text": "It is blue: ☃.", "reasoning": "hm,\n\nwell", "tool_calls": [CALL, CALL]}]
    async with listening(tmp_path, script) as address, sdk(address) as client:
        found = await ask(client, stream, input="hi", tools=[TOOL], instructions="Be brief.")
    thought, message, first, second = found.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "hm,\n\nwell")
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert found.output_text == "It is blue: ☃."
    assert [(one.type, one.name) for one in (first, second)] == [("function_call", "look")] * 2
    assert json.loads(first.arguments) == CALL["arguments"]
    assert first.call_id != second.call_id
    assert len({one.id for one in found.output}) == 4
    assert (found.status, found.error, found.incomplete_details) == ("completed", None, None)
    assert found.instructions == "Be brief." and found.id.startswith("resp_t")
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    # One token a byte: <think>, a line end, the thought, a line end, </think>.
    assert found.usage.output_tokens_details.reasoning_tokens == len(
        "<think>\nhm,\n\nwell\n</think>"
    )


async def test_events_come_in_openais_order(tmp_path: Path) -> None:
    script = [{"text": "one two", "reasoning": "hm", "tool_calls": [CALL]}]
    async with gate(tmp_path, script, engine__piece_tokens=100) as opened:
        answer = await _post(opened, input="x", tools=[TOOL], stream=True)
        (turn,) = await opened.all_turns()
    lines = [event.split("\n") for event in answer.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert [name.removeprefix("event: ") for name, _ in lines] == [e["type"] for e in events]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    names = [(e["type"].removeprefix("response."), e.get("output_index")) for e in events]
    assert names == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("completed", None),
    ]
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert last["id"] == first["id"] == f"resp_{turn.id}"
    assert last["output"] == [e["item"] for e in events if e["type"].endswith("item.done")]
    assert last["usage"]["input_tokens"] == len(turn.prompt_ids)
    ids = {e["item_id"] for e in events if "item_id" in e}
    assert ids == {item["id"] for item in last["output"]}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_loop_by_response_id(tmp_path: Path, stream: bool) -> None:
    script = [{"text": "I look.", "tool_calls": [CALL]}, {"text": "Blue."}, {"text": "Bye."}]
    async with listening(tmp_path, script) as address, sdk(address) as client:
        fields: dict[str, Any] = {"tools": [TOOL], "instructions": "Be brief."}
        one = await ask(client, stream, input="What colour is the sky?", **fields)
        call = one.output[-1].call_id
        result = {"type": "function_call_output", "call_id": call, "output": "blue"}
        two = await ask(client, stream, input=[result], previous_response_id=one.id, **fields)
        assert (two.output_text, two.previous_response_id) == ("Blue.", one.id)
        three = await ask(client, stream, input="bye", previous_response_id=two.id)
        shown = await client.responses.retrieve(one.id)
        assert shown.output_text == "I look." and shown.output[-1].call_id == call
    async with gate(tmp_path) as opened:
        (session,) = await opened.system.store.sessions("local")
        first, second, third = await opened.turns(session.id)
    assert extends(second, first)
    assert second.messages[-1] == {"role": "tool", "tool_call_id": call, "content": "blue"}
    # Instructions are those of one call: the last one brought none.
    assert [m["role"] for m in third.messages][:2] == ["user", "assistant"]
    assert third.parent == second.id and three.id == f"resp_{third.id}"


async def test_a_response_is_gone_on_from_after_a_restart(
    tmp_path: Path, served: Callable[..., Served]
) -> None:
    one = served(script=[{"text": "My name is Ada."}])
    async with sdk(await one.start()) as client:
        first = await client.responses.create(model=MODEL, input="Who are you?")
    one.kill()
    two = served(script=[{"text": "Ada."}])
    async with sdk(await two.start()) as client:
        await client.responses.create(model=MODEL, input="Again?", previous_response_id=first.id)
    await two.stop()
    before, after = await two.export()
    assert after["session"] == before["session"] and after["parent"] == before["turn"]
    ids = before["prompt_ids"] + before["sampled_ids"]
    assert after["prompt_ids"][: len(ids)] == ids


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_reply_is_incomplete(tmp_path: Path, stream: bool) -> None:
    async with (
        listening(tmp_path, [{"text": "one two"}]) as address,
        sdk(address) as client,
    ):
        found = await ask(client, stream, input="x", max_output_tokens=3)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.output_text, found.output[0].status) == ("one", "incomplete")


@pytest.mark.parametrize("stream", [True, False])
async def test_custom_tools_and_namespaces(tmp_path: Path, stream: bool) -> None:
    patch = {"name": "apply_patch", "arguments": {"input": "*** Begin\n☃"}}
    spawn = {"name": "agents.spawn", "arguments": {"n": 1}}
    script = [{"tool_calls": [patch, spawn]}, {"text": "ok"}]
    tools: list[dict[str, Any]] = [
        {"type": "custom", "name": "apply_patch", "format": {"type": "text"}},
        {
            "type": "namespace",
            "name": "agents",
            "description": "x",
            "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}],
        },
        {"type": "web_search"},
        {"type": "image_generation"},
    ]
    async with gate(tmp_path, script) as opened:
        history: list[Any] = [said("x")]
        answer = await _post(opened, input=history, tools=tools, stream=stream)
        if stream:
            last = json.loads(answer.text.strip().split("\n\n")[-1].split("data: ")[1])
            assert "event: response.custom_tool_call_input.delta\n" in answer.text
        output = last["response"]["output"] if stream else answer.json()["output"]
        edit, start = output
        assert (edit["type"], edit["input"]) == ("custom_tool_call", "*** Begin\n☃")
        assert (start["type"], start["name"], start["namespace"]) == (
            *("function_call", "spawn", "agents"),
        )
        done = {"type": "custom_tool_call_output", "call_id": edit["call_id"], "output": "y"}
        made = {"type": "function_call_output", "call_id": start["call_id"], "output": "z"}
        await _post(opened, input=[*history, *output, done, made], tools=tools)
        one, two = await opened.all_turns()
    assert extends(two, one)
    assert [tool["function"]["name"] for tool in one.tools] == ["apply_patch", "agents.spawn"]


async def test_what_codex_sends(tmp_path: Path) -> None:
    """Its fields and items, as version 0.166.0 sent them."""
    session = "01a1dcdb-f31c-7c32-a9f6-b7ad870b0b6a"

    def message(role: str, *texts: str, kind: str = "input_text") -> dict[str, Any]:
        parts = [{"type": kind, "text": text} for text in texts]
        return {"type": "message", "role": role, "content": parts}

    history = [
        message("developer", "You are a coding agent running in the Codex CLI."),
        message("developer", "<skills_instructions>", "<permissions instructions>"),
        message("user", "<environment_context>"),
        message("user", "say hi from codex"),
    ]
    fields: dict[str, Any] = {
        "tools": [TOOL, {"type": "web_search", "external_web_access": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": session,
        "client_metadata": {"x": "y"},
    }
    async with gate(tmp_path, [{"text": "Hi.", "reasoning": "hm"}, {"text": "Again."}]) as opened:
        headers = {"session-id": session, "thread-id": session, "originator": "codex_exec"}
        answer = await _post(opened, headers=headers, input=history, **fields)
        assert "event: response.completed\n" in answer.text
        reply = message("assistant", "Hi.", kind="output_text")
        again = [*history, {"type": "reasoning", "summary": []}, reply, message("user", "second")]
        await _post(opened, headers=headers, input=again, **fields)
        one, two = await opened.turns(session)
    assert extends(two, one)
    assert [m["role"] for m in one.messages] == ["developer", "developer", "user", "user"]


async def _post(opened: Gate, *, headers: Any = None, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, **fields}
    answer = await opened.http.post("/v1/responses", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer
