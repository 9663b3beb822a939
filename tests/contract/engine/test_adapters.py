"""Adapter versions: loaded, live, dropped, refused, and back after a crash."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import recomputed
import torch
from asking import Subject, ask, draw, forget, greedy
from engines import LOCAL, MAX_VERSIONS, STARTED, only

from instar.errors import EngineError, ModelError, RequestError
from instar.types import BASE_VERSION

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_an_adapter_speaks_as_peft_would(subject: Subject, adapter: Path) -> None:
    engine = subject.engine
    await engine.load("v1", adapter)
    await engine.load("v1", adapter)
    assert engine.info.versions == (BASE_VERSION, "v1")
    assert engine.info.live == BASE_VERSION
    base = await draw(engine, ask(subject.prompt()))
    named, again = await asyncio.gather(
        draw(engine, ask(subject.prompt(), version="v1")),
        draw(engine, ask(subject.prompt(), version=BASE_VERSION)),
    )
    assert again.ids == base.ids
    await engine.activate("v1")
    live = await draw(engine, ask(subject.prompt()))
    assert {piece.version for piece in live.pieces} == {"v1"}
    assert live.ids == named.ids
    if subject.case.tolerance is not None:
        model = recomputed.load_model(subject.folder, adapter=adapter)
        assert live.ids == greedy(model, subject.prompt(), len(live.ids))
        assert live.ids != base.ids
    await forget(engine)


async def test_a_reply_keeps_its_version_when_another_goes_live(
    subject: Subject, adapter: Path
) -> None:
    engine = subject.engine
    request = ask(subject.prompt(), max_tokens=40)
    alone = await draw(engine, request)
    async with aclosing(engine.generate(request)) as pieces:
        seen = [await anext(pieces)]
        await engine.load("v1", adapter)
        await engine.activate("v1")
        other = await draw(engine, ask(subject.prompt()))
        seen += [piece async for piece in pieces]
    assert {piece.version for piece in seen} == {BASE_VERSION}
    assert tuple(i for piece in seen for i in piece.ids) == alone.ids
    assert {piece.version for piece in other.pieces} == {"v1"}
    await forget(engine)


async def test_dropping_waits_for_replies_and_refuses_the_live_version(
    subject: Subject, adapter: Path
) -> None:
    engine = subject.engine
    await engine.load("v1", adapter)
    await engine.activate("v1")
    with pytest.raises(RequestError, match="v1"):
        await engine.drop("v1")
    async with aclosing(engine.generate(ask(subject.prompt(), max_tokens=40))) as pieces:
        seen = [await anext(pieces)]
        await engine.activate(BASE_VERSION)
        dropping = asyncio.create_task(engine.drop("v1"))
        seen += [piece async for piece in pieces]
    assert seen[-1].finish == "length"
    await dropping
    assert engine.info.versions == (BASE_VERSION,)


async def test_a_broken_adapter_is_refused_by_name(
    subject: Subject, adapter: Path, tmp_path: Path
) -> None:
    engine = subject.engine
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        await engine.load("bad", tmp_path)
    (tmp_path / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors"):
        await engine.load("bad", tmp_path)
    assert engine.info.versions == (BASE_VERSION,)
    if subject.case.tolerance is not None:
        whole = (adapter / "adapter_model.safetensors").read_bytes()
        (tmp_path / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ModelError, match=r"adapter_model\.safetensors"):
            await engine.load("bad", tmp_path)
    assert engine.info.versions == (BASE_VERSION,)
    assert len((await draw(engine, ask(subject.prompt()))).ids) == 12


async def test_a_version_that_is_not_there_is_a_404(subject: Subject) -> None:
    for attempt in (
        draw(subject.engine, ask(subject.prompt(), version="nobody")),
        subject.engine.activate("nobody"),
        subject.engine.drop("nobody"),
    ):
        with pytest.raises(RequestError, match="nobody") as caught:
            await attempt
        assert caught.value.status == 404


@only(LOCAL)
async def test_versions_are_bounded_and_the_error_says_which_to_drop(
    subject: Subject, adapter: Path
) -> None:
    engine = subject.engine
    names = [f"v{at}" for at in range(MAX_VERSIONS)]
    for name in names:
        await engine.load(name, adapter)
    await engine.activate("v0")
    with pytest.raises(RequestError, match="drop one of v1") as caught:
        await engine.load("one-more", adapter)
    assert "v0" not in str(caught.value)
    await forget(engine)


@only(LOCAL)
async def test_an_adapter_of_another_model_is_refused(subject: Subject, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 8}')
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    pair = {name.format("A"): torch.ones(2, 24), name.format("B"): torch.ones(8, 2)}
    save_file(pair, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"model\.layers\.0\.self_attn\.q_proj"):
        await subject.engine.load("foreign", tmp_path)


@only(STARTED)
async def test_a_killed_worker_comes_back_with_its_versions(
    subject: Subject, adapter: Path
) -> None:
    engine: Any = subject.engine
    await engine.load("v1", adapter)
    await engine.activate("v1")
    before = await draw(engine, ask(subject.prompt()))
    killed = engine.pid
    replies = [
        asyncio.create_task(draw(engine, ask(subject.prompt(), max_tokens=400))) for _ in range(3)
    ]
    async with aclosing(engine.generate(ask(subject.prompt(), max_tokens=400))) as pieces:
        await anext(pieces)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(EngineError):
            async for _ in pieces:
                pass
    ended = await asyncio.gather(*replies, return_exceptions=True)
    assert [type(one) for one in ended] == [EngineError] * 3
    after = await draw(engine, ask(subject.prompt()))
    assert after.ids == before.ids
    assert {piece.version for piece in after.pieces} == {"v1"}
    assert engine.pid != killed
    await forget(engine)


@only(LOCAL)
async def test_a_version_damaged_meanwhile_does_not_keep_a_killed_worker_down(
    subject: Subject, adapter: Path, tmp_path: Path
) -> None:
    engine: Any = subject.engine
    folder = tmp_path / "owner%20x" / "v1"
    shutil.copytree(adapter, folder)
    await engine.load("good/v1", adapter)
    await engine.load("owner%20x/v1", folder)
    (folder / "adapter_model.safetensors").write_bytes(b"damaged")
    killed = engine.pid
    os.kill(killed, signal.SIGKILL)
    async with asyncio.timeout(60):
        while engine.pid == killed:  # noqa: ASYNC110 (another process brings it about)
            await asyncio.sleep(0.05)
    after = await draw(engine, ask(subject.prompt(), version="good/v1"))
    assert {piece.version for piece in after.pieces} == {"good/v1"}
    assert engine.info.versions == (BASE_VERSION, "good/v1")
    await forget(engine)
