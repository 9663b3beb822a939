"""The local engine on a CUDA GPU: a large ragged batch, log-probs, adapters and chunks."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))

import recomputed
from safetensors.torch import save_file
from tiny_models import tiny_gpt2, tiny_llama, tiny_qwen3

from instar.backends.torch_local import open_engine
from instar.config import TorchLocalEngine
from instar.types import Request, Sampling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")

BUILDERS = {"llama": tiny_llama, "qwen3": tiny_qwen3, "gpt2": tiny_gpt2}
TEMPERATURE = 0.8


@pytest.mark.parametrize("name", BUILDERS)
async def test_a_large_ragged_batch_keeps_its_logprobs(name: str, tmp_path: Path) -> None:
    folder = BUILDERS[name](tmp_path)
    config = TorchLocalEngine(dtype="float32", max_running=48, prefill_chunk=64)
    async with open_engine(config, model=folder, name=name) as engine:
        assert engine.info.device.startswith("cuda")
        replies = await asyncio.gather(
            *(
                recomputed.reply(
                    engine,
                    Request(
                        id=str(at),
                        prompt_ids=[(7 * at + i) % 90 for i in range(1 + 23 * at)],
                        sampling=Sampling(
                            temperature=TEMPERATURE, top_p=0.9, seed=at, max_tokens=5 + at
                        ),
                    ),
                )
                for at in range(40)
            )
        )
    assert [len(reply.sampled_ids) for reply in replies] == [5 + at for at in range(40)]
    model = recomputed.load_model(folder, device="cuda")
    assert recomputed.difference(model, replies, temperature=TEMPERATURE).max < 1e-3


async def test_an_adapter_in_bfloat16_changes_replies_and_leaves_the_base(tmp_path: Path) -> None:
    folder, adapter = tiny_llama(tmp_path / "model"), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 8}))
    name = "base_model.model.model.layers.1.mlp.down_proj.lora_{}.weight"
    pair = {name.format("A"): torch.randn(4, 96), name.format("B"): torch.randn(64, 4)}
    save_file(pair, adapter / "adapter_model.safetensors")
    config = TorchLocalEngine(dtype="bfloat16")
    async with open_engine(config, model=folder, name="llama") as engine:
        sampling = Sampling(temperature=0.0, max_tokens=16)

        def ask(version: str) -> Request:
            return Request(id=version, prompt_ids=[1, 2, 3], sampling=sampling, version=version)

        before = await recomputed.reply(engine, ask("base"))
        await engine.load("v1", adapter)
        both = await asyncio.gather(*(recomputed.reply(engine, ask(v)) for v in ("base", "v1")))
    assert both[0].sampled_ids == before.sampled_ids
    assert both[1].sampled_ids != before.sampled_ids
