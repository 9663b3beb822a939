"""What a reply cost, as each API counts it: whole and streamed alike, and true to the record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic.types
import openai.types
import openai.types.responses
import pytest
from gate import MODEL, Gate, gate, user

from instar.types import Piece, Request

REPLY = {"reasoning": "Let me see.", "text": "Done."}
THOUGHT = len("<think>\nLet me see.\n</think>")
"""The fake engine has a token a byte."""
CACHED = 7

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [user("x")]}),
    "completions": ("/v1/completions", {"prompt": "x", "max_tokens": 500}),
    "responses": ("/v1/responses", {"input": "x"}),
    "messages": ("/v1/messages", {"messages": [user("x")], "max_tokens": 500}),
}
KINDS: dict[str, Any] = {
    "chat": openai.types.CompletionUsage,
    "completions": openai.types.CompletionUsage,
    "responses": openai.types.responses.ResponseUsage,
    "messages": anthropic.types.Usage,
}


def expected(name: str, prompt: int, sampled: int, cached: int) -> dict[str, Any]:
    # A raw completion has no thinking: all of it is text.
    thought = 0 if name == "completions" else THOUGHT
    if name == "messages":
        return {
            "input_tokens": prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": sampled,
            "output_tokens_details": {"thinking_tokens": thought},
        }
    if name == "responses":
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": prompt + sampled,
        }
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


async def spent(opened: Gate, name: str, *, stream: bool) -> dict[str, Any]:
    """The usage of one reply."""
    path, body = ASKED[name]
    more = {"stream_options": {"include_usage": True}} if path.endswith("completions") else {}
    body = {"model": MODEL, **body, **(more if stream else {}), "stream": stream}
    answer = await opened.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    if not stream:
        found: dict[str, Any] = answer.json()["usage"]
        return found
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if "{" in line]
    told = [event.get("response", event) for event in map(json.loads, lines)]
    return [event["usage"] for event in told if event.get("usage")][-1]


def with_cached(opened: Gate, monkeypatch: pytest.MonkeyPatch, cached: int) -> None:
    """Let the engine say that it had so many tokens of the prompt already."""
    engine: Any = opened.system.engine
    generate = engine.generate

    async def told(request: Request) -> Any:
        first = True
        async for piece in generate(request):
            assert isinstance(piece, Piece)
            yield replace(piece, cached=cached) if first else piece
            first = False

    monkeypatch.setattr(engine, "generate", told)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ASKED)
async def test_usage_is_what_was_recorded(
    tmp_path: Path, name: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(tmp_path, [REPLY]) as opened:
        cached = 1 if name == "completions" else CACHED
        with_cached(opened, monkeypatch, cached)
        usage = await spent(opened, name, stream=stream)
        (turn,) = await opened.all_turns()
    assert usage == expected(name, len(turn.prompt_ids), len(turn.sampled_ids), cached)
    # Nothing is in it that the API does not have, and nothing it must have is left out.
    read = KINDS[name].model_validate(usage)
    assert not read.model_extra
    assert read.model_dump(exclude_unset=True) == usage


@pytest.mark.parametrize("name", ASKED)
async def test_no_more_was_cached_than_there_is(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine counts what an image takes; the prompt has one token for it."""
    async with gate(tmp_path, [REPLY]) as opened:
        with_cached(opened, monkeypatch, 10_000)
        usage = await spent(opened, name, stream=False)
        (turn,) = await opened.all_turns()
    size = len(turn.prompt_ids)
    assert usage == expected(name, size, len(turn.sampled_ids), size)
