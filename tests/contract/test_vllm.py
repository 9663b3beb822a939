"""What only a real vLLM can show: its log-probs, its restarts, its end, and a server by URL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
import recomputed
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from vllm_engine import TOLERANCE, served, vllm_config

from instar.backends.embedded import embedded_model
from instar.backends.vllm import VersionedEngine, open_engine
from instar.config import VllmEngine
from instar.errors import EngineError
from instar.types import Piece, Request, Sampling

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

MEAN_LIMIT = TOLERANCE / 10
"""A single log-prob may be off by more: the tolerance is for the worst of a thousand."""
SETTINGS = {
    "plain": Sampling(temperature=1.0, max_tokens=48),
    "cut": Sampling(temperature=0.7, top_p=0.9, max_tokens=48),
    "greedy": Sampling(temperature=0.0, max_tokens=48),
}


@pytest.fixture(scope="module")
def model() -> Path:
    return embedded_model(Path.home() / ".instar")


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter, strong enough that no reply of its own is like the base's."""
    config = json.loads((model / "config.json").read_text())
    size, heads = config["hidden_size"], config["num_attention_heads"]
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(8, size, generator=generator) / size**0.5
        out = config.get("head_dim") or size // heads
        tensors[f"{name}.lora_B.weight"] = torch.randn(heads * out, 8, generator=generator)
    folder = tmp_path_factory.mktemp("adapter")
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 8}
    settings |= {"target_modules": ["q_proj"], "base_model_name_or_path": str(model)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Path) -> AsyncIterator[VersionedEngine]:
    async with open_engine(vllm_config(), model=model, name="test") as opened:
        yield opened


@pytest.mark.parametrize("settings", SETTINGS)
async def test_logprobs_are_those_of_transformers(
    engine: VersionedEngine, model: Path, tokenizer: Tokenizer, settings: str
) -> None:
    sampling = SETTINGS[settings]
    replies = await recomputed.sample(engine, tokenizer, sampling)
    found = recomputed.difference(
        recomputed.load_model(model), replies, temperature=sampling.temperature
    )
    print(f"\nlog-probs, {settings}: {found}")
    assert found.tokens > 100
    assert found.mean < MEAN_LIMIT


async def test_logprobs_of_an_adapter_are_those_of_transformers(
    engine: VersionedEngine, model: Path, tokenizer: Tokenizer, adapter: Path
) -> None:
    await engine.load("a", adapter)
    try:
        replies = await recomputed.sample(engine, tokenizer, SETTINGS["cut"], version="a")
    finally:
        await engine.drop("a")
    tuned = recomputed.load_model(model, adapter=adapter)
    found = recomputed.difference(tuned, replies, temperature=0.7)
    print(f"\nlog-probs, adapter: {found}")
    assert found.mean < MEAN_LIMIT


async def test_mixed_settings_in_one_batch_keep_their_own_logprobs(
    engine: VersionedEngine, model: Path, tokenizer: Tokenizer
) -> None:
    groups = await asyncio.gather(
        *(recomputed.sample(engine, tokenizer, sampling) for sampling in SETTINGS.values())
    )
    reference = recomputed.load_model(model)
    for replies, sampling in zip(groups, SETTINGS.values(), strict=True):
        found = recomputed.difference(reference, replies, temperature=sampling.temperature)
        assert found.mean < MEAN_LIMIT, sampling


def server_of(root: int) -> psutil.Process:
    """The server below this process; what it forked has the same command line, but deeper."""
    return next(
        child
        for child in psutil.Process(root).children()
        if "instar.backends.vllm_server" in child.cmdline()
    )


async def whole(engine: VersionedEngine, *, version: str | None = None) -> list[Piece]:
    sampling = Sampling(temperature=0.0, max_tokens=6)
    request = Request(id="whole", prompt_ids=range(5, 60), sampling=sampling, version=version)
    return [piece async for piece in engine.generate(request)]


async def test_the_base_stays_itself_when_every_version_is_resident(
    engine: VersionedEngine, adapter: Path
) -> None:
    before = [piece.ids for piece in await whole(engine)]
    for version in ("a", "b"):
        await engine.load(version, adapter)
    tuned, base = await asyncio.gather(whole(engine, version="b"), whole(engine))
    alone = await whole(engine)
    for version in ("a", "b"):
        await engine.drop(version)
    assert [piece.ids for piece in base] == before
    assert [piece.ids for piece in alone] == before
    assert [piece.ids for piece in tuned] != before


async def test_a_killed_core_is_a_dead_server(engine: VersionedEngine) -> None:
    server = server_of(os.getpid())
    long = Request(id="long", prompt_ids=[5] * 20, sampling=Sampling(max_tokens=400))
    async with aclosing(engine.generate(long)) as pieces:
        await anext(pieces)
        family = server.children(recursive=True)
        assert family
        for process in family:
            process.kill()
        with pytest.raises(EngineError, match="died"):
            async for _ in pieces:
                pass
    assert (await whole(engine))[-1].finish == "length"
    assert not any(process.is_running() for process in (server, *family))


ORPHAN = """
    import asyncio, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from vllm_engine import vllm_config
    from instar.backends.vllm import open_engine

    async def main() -> None:
        async with open_engine(vllm_config(), model=Path({model!r}), name="test"):
            print("up", flush=True)
            await asyncio.sleep(600)

    asyncio.run(main())
"""


async def test_nothing_outlives_a_killed_instar(model: Path) -> None:
    assert await asyncio.to_thread(left_after_a_kill, model) == []


def left_after_a_kill(model: Path) -> list[psutil.Process]:
    tests = str(Path(__file__).parent)
    code = textwrap.dedent(ORPHAN.format(tests=tests, model=str(model)))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        server = server_of(parent.pid)
        family = [server, *server.children(recursive=True)]
        assert len(family) > 1
        parent.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=30)
    return [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


async def test_a_server_that_cannot_start_says_why(model: Path) -> None:
    config = vllm_config(args=["--no-such-argument"])
    with pytest.raises(EngineError, match="no-such-argument"):
        async with open_engine(config, model=model, name="test"):
            pass


async def test_a_foreign_server_by_url(model: Path, tokenizer: Tokenizer, adapter: Path) -> None:
    async with served(model, plugin="0") as config:
        async with open_engine(config, model=model, name="test") as engine:
            assert engine.info.context == 512
            assert not engine.info.logprobs_scaled
            sampling = SETTINGS["cut"]
            replies = await recomputed.sample(engine, tokenizer, sampling)
            plain = recomputed.load_model(model)
            assert recomputed.difference(plain, replies, temperature=1.0).mean < MEAN_LIMIT
            base = await whole(engine)
            await engine.load("a", adapter)
            tuned = await whole(engine, version="a")
            assert [p.ids for p in base] != [p.ids for p in tuned]
            await engine.drop("a")
        wrong = config.model_copy(update={"url": str(config.url).replace("@", "x@")})
        with pytest.raises(EngineError, match="key"):
            async with open_engine(wrong, model=model, name="test"):
                pass


async def test_two_servers_as_one(model: Path, tokenizer: Tokenizer, adapter: Path) -> None:
    config = vllm_config(replicas=2, gpu_memory=0.4)
    async with open_engine(config, model=model, name="test") as engine:
        sampling = SETTINGS["cut"]
        both = await asyncio.gather(
            *(recomputed.sample(engine, tokenizer, sampling) for _ in range(2))
        )
        plain = recomputed.load_model(model)
        for replies in both:
            gap = recomputed.difference(plain, replies, temperature=sampling.temperature)
            assert gap.mean < MEAN_LIMIT
        await engine.load("a", adapter)
        base, tuned = await whole(engine), await whole(engine, version="a")
        assert [p.ids for p in base] != [p.ids for p in tuned]
        await engine.drop("a")


async def test_a_server_by_url_that_cannot_be_reached(model: Path) -> None:
    config = VllmEngine(url="http://127.0.0.1:9")
    with pytest.raises(EngineError, match="cannot be reached"):
        async with open_engine(config, model=model, name="test"):
            pass
