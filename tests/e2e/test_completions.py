"""OpenAI Completions as the openai SDK speaks it: a raw prompt, and what follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gate import BYTES, END, MODEL, decoded, extends, gate, listening, sdk


async def ask(client: Any, stream: bool, **fields: Any) -> tuple[str, Any, Any]:
    """Text, finish reason and log-probs."""
    found = await client.completions.create(model=MODEL, stream=stream, **fields)
    if not stream:
        choice = found.choices[0]
        return choice.text, choice.finish_reason, choice.logprobs
    chunks = [chunk async for chunk in found]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    text = "".join(choice.text for choice in choices)
    return text, choices[-1].finish_reason, [c.logprobs for c in choices if c.logprobs]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_is_read_as_it_is(tmp_path: Path, stream: bool) -> None:
    """No template, special tokens are tokens, and all of the reply is text."""
    reply = "<think>\nhm\n</think>\n\nyes"
    async with listening(tmp_path, [{"text": reply}]) as address, sdk(address) as client:
        prompt = f"Once{END} upon"
        found = await ask(client, stream, prompt=prompt, max_tokens=100)
        assert found[:2] == (reply, "stop")
    async with gate(tmp_path) as opened:
        (turn,) = await opened.all_turns()
    assert decoded(turn.prompt_ids) == prompt
    assert turn.prompt_ids == tuple(BYTES.encode(prompt).ids)
    assert BYTES.token_to_id(END) in turn.prompt_ids
    assert turn.messages == ({"role": "user", "content": prompt},)
    assert turn.reply == {"role": "assistant", "content": reply}
    assert (turn.kind, turn.anchors) == ("side", ())


@pytest.mark.parametrize("stream", [True, False])
async def test_echo_ids_stop_and_length(tmp_path: Path, stream: bool) -> None:
    ids = BYTES.encode("abc").ids
    script = [{"text": "one STOP two"}, {"text": "x" * 100}]
    async with listening(tmp_path, script) as address, sdk(address) as client:
        stopped = await ask(client, stream, prompt=ids, echo=True, stop="STOP")
        cut = await ask(client, stream, prompt=[ids])
    assert stopped[:2] == ("abcone ", "stop")
    assert cut[:2] == ("x" * 16, "length"), "sixteen tokens is what this API draws by default"


@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs_are_those_that_are_recorded(tmp_path: Path, stream: bool) -> None:
    async with listening(tmp_path, [{"text": "abcd"}]) as address, sdk(address) as client:
        _, _, found = await ask(client, stream, prompt="x", logprobs=1)
    parts = found if stream else [found]
    tokens = [token for part in parts for token in part.tokens]
    values = [value for part in parts for value in part.token_logprobs]
    async with gate(tmp_path) as opened:
        (turn,) = await opened.all_turns()
    assert tokens == ["a", "b", "c", "d"]
    assert tuple(values) == turn.logprobs[:4]
    assert [offset for part in parts for offset in part.text_offset] == [0, 1, 2, 3]
    assert next(top for part in parts for top in part.top_logprobs) == {"a": values[0]}


async def test_ids_that_go_on_from_a_turn_extend_it(tmp_path: Path) -> None:
    async with gate(tmp_path, [{"text": "one"}, {"text": "two"}]) as opened:
        fields: dict[str, Any] = {"model": MODEL, "session_id": "s", "turn_type": "main"}
        answer = await opened.http.post("/v1/completions", json={**fields, "prompt": "x"})
        assert answer.status_code == 200
        (first,) = await opened.turns("s")
        more = [*first.ids, *BYTES.encode(" and").ids]
        await opened.http.post("/v1/completions", json={**fields, "prompt": more})
        first, second = await opened.turns("s")
    assert extends(second, first) and second.extends and second.parent == first.id
    assert second.kind == "main"
