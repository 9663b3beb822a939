"""`stop_token_ids`: the reply ends with such a token, which is recorded and never shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gate import BYTES, END, MODEL, Gate, body, decoded, extends, gate, user

STOP = BYTES.token_to_id("!")
SCRIPT: list[dict[str, Any]] = [{"text": "stop here! or there"}]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("pieces", [1, 4, 100])
async def test_a_reply_ends_with_a_stop_token(tmp_path: Path, stream: bool, pieces: int) -> None:
    async with gate(tmp_path, SCRIPT, engine__piece_tokens=pieces) as opened:
        request = body("x", stop_token_ids=[STOP], stream=stream, session_id="s", logprobs=True)
        answer = await opened.post(request)
        assert answer.status_code == 200, answer.text
        text, logged = shown(answer.text, stream=stream)
        assert text == "stop here" and logged == list("stop here")
        (first,) = await opened.turns("s")
        assert (decoded(first.sampled_ids), first.finish) == ("stop here!", "stop")
        assert first.reply["content"] == text
        await opened.say([user("x"), first.reply, user("more")], session_id="s")
        _, second = await opened.turns("s")
    assert extends(second, first)
    assert decoded(second.prompt_ids[len(first.ids) :]).startswith(END)


def shown(answer: str, *, stream: bool) -> tuple[str, list[str]]:
    """The text and the tokens with log-probs of an answer."""
    if not stream:
        choice = json.loads(answer)["choices"][0]
        return choice["message"]["content"], [e["token"] for e in choice["logprobs"]["content"]]
    chunks = [json.loads(line[6:])["choices"][0] for line in answer.split("\n\n")[:-2]]
    text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
    logged = [e["token"] for chunk in chunks for e in (chunk["logprobs"] or {}).get("content", ())]
    return text, logged


async def test_the_models_own_end_still_counts(system: Gate) -> None:
    await system.say("x", stop_token_ids=[STOP], session_id="s")
    await system.say("x", stop_token_ids=[STOP], session_id="t", ignore_eos=True, max_tokens=5)
    (first,), (second,) = await system.turns("s"), await system.turns("t")
    assert STOP in first.settings.stop_ids and len(first.settings.stop_ids) > 1
    assert second.settings.stop_ids == (STOP,)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 50}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [user("x")], "max_tokens": 50}),
    ],
)
async def test_every_dialect_takes_them(tmp_path: Path, path: str, fields: dict[str, Any]) -> None:
    async with gate(tmp_path, SCRIPT) as opened:
        request = {"model": MODEL, **fields, "stop_token_ids": [STOP]}
        answer = await opened.http.post(path, json=request)
        assert answer.status_code == 200 and "stop here" in answer.text
        (turn,) = await opened.all_turns()
    assert decoded(turn.sampled_ids) == "stop here!" and turn.reply["content"] == "stop here"
