"""What a person who watches is told: /metrics, /readyz and the board."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate import Gate, fake_config, gate, until, user

from instar.errors import StoreError
from instar.loop import Status, serve
from instar.record.store import TurnStore
from instar.text import byte_tokenizer

FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if m.role == 'user' or loop.last else 'said' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Replaces what was said before: the next prompt cannot begin with the last reply."""


def model_folder(folder: Path, template: str) -> Path:
    folder.mkdir()
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"eos_token_id": 257}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (folder / "chat_template.jinja").write_text(template)
    return folder


async def test_turns_that_a_template_cuts_off_are_counted(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", FORGETFUL)
    async with gate(tmp_path, model__checkpoint_path=folder) as opened:
        reply = await opened.say("hi", session_id="s")
        assert await opened.metric('instar_stitched_total{how="template"}') == 0
        await opened.say([user("hi"), reply, user("go on")], session_id="s")
        assert await opened.metric('instar_stitched_total{how="root"}') == 1
        assert await opened.metric('instar_stitched_total{how="template"}') == 1
        first, second = await opened.turns("s")
    assert (second.parent, second.extends) == (first.id, False)


async def test_readyz_says_when_the_engine_is_down(system: Gate) -> None:
    engine: Any = system.system.engine
    assert (await system.http.get("/readyz")).status_code == 200
    up = engine._info
    engine._info = replace(up, ready=False)
    answer = await system.http.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "the engine is starting again"})
    assert (await system.http.get("/healthz")).status_code == 200, "the gateway itself answers"
    engine._info = up
    assert (await system.http.get("/readyz")).json() == {"status": "ready"}


async def test_what_the_store_lost_is_in_the_metrics(system: Gate) -> None:
    system.system.store.lost_states = 2
    system.system.store.read_errors = 3
    assert await system.metric("instar_lost_next_states") == 2
    assert await system.metric("instar_failed_lookups") == 3


@asynccontextmanager
async def watched(home: Path) -> AsyncIterator[list[Status]]:
    """What the board of a gateway is shown."""
    stop, seen = asyncio.Event(), list[Status]()
    config = fake_config(home, gateway__port=0)
    task = asyncio.ensure_future(serve(config, home, stop=stop, on_status=seen.append))
    await until(lambda: seen and seen[-1].state == "serving")
    yield seen
    stop.set()
    await task


async def test_the_board_says_that_the_store_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on with the totals it knew, and stops with them too."""

    async def unreadable(self: TurnStore) -> dict[str, int]:
        raise StoreError("The store cannot be read: disk I/O error.")

    async def known(self: TurnStore) -> dict[str, int]:
        return {"sessions": 3, "turns": 7, "sampled_tokens": 0}

    monkeypatch.setattr(TurnStore, "counts", known)
    async with watched(tmp_path) as seen:
        monkeypatch.setattr(TurnStore, "counts", unreadable)
        await until(lambda: seen[-1].trouble)
        count = len(seen)
        await until(lambda: len(seen) > count)
        assert (seen[-1].sessions, seen[-1].turns, seen[-1].state) == (3, 7, "serving")
        assert "disk I/O error" in seen[-1].trouble
        monkeypatch.setattr(TurnStore, "counts", known)
        await until(lambda: not seen[-1].trouble)
        monkeypatch.setattr(TurnStore, "counts", unreadable)
    assert (seen[-1].state, seen[-1].turns) == ("stopping", 7)


async def test_the_board_goes_on_though_the_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("instar.loop._COUNT_S", 0.05)
    asked = 0

    async def hangs(self: TurnStore) -> dict[str, int]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(1.5)
        return {"sessions": 1, "turns": 1}

    monkeypatch.setattr(TurnStore, "counts", hangs)
    async with watched(tmp_path) as seen:
        await until(lambda: sum("not answered" in one.trouble for one in seen) >= 2)
        assert asked == 1, "questions do not pile up"
        await until(lambda: seen[-1].turns == 1)
