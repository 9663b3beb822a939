"""A step of training on a GPU in bfloat16 against the same in float32 with masks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sampled_turns import earned, stir, tiny_llama, turn
from transformers import AutoModelForCausalLM

from instar.batch.merge import merge
from instar.config import TrainingConfig
from instar.train.step import TorchTrainer
from instar.types import Batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")

SHAPE = {"hidden_size": 256, "vocab_size": 512, "head_dim": 64, "max_position_embeddings": 4096}


def comb(prompt: int = 300) -> Batch:
    """Four turns over one trunk; what each prompt ends with is gone from the next."""
    draw = torch.Generator().manual_seed(1)

    def tokens(count: int) -> list[int]:
        found: list[int] = torch.randint(10, 500, (count,), generator=draw).tolist()
        return found

    trunk, turns = tokens(prompt), []
    for number in range(4):
        reply = tokens(40)
        turns.append(earned(turn(f"t{number}", trunk + tokens(20), reply), 1.0))
        trunk = trunk + reply
    return Batch(samples=merge(turns).samples, version="base")


def gradients(folder: Path, dtype: str, prompt: int) -> torch.Tensor:
    training = TrainingConfig(lora_target_modules=["all-linear"])
    trainer = TorchTrainer(folder, training, device="cuda", dtype=dtype)
    stir(trainer)
    trainer.accumulate(comb(prompt))
    found = [value.grad for _, value in sorted(trainer.model.trainable().items())]
    return torch.cat([one.flatten().float() for one in found if one is not None])


@pytest.mark.parametrize("prompt", [300, 2100])
def test_fused_kernels_give_the_gradients_that_masks_give(tmp_path: Path, prompt: int) -> None:
    """A trunk among the branches in one call, and one that is read by itself."""
    folder = tiny_llama(tmp_path, **SHAPE, initializer_range=0.05)
    exact, fast = (gradients(folder, dtype, prompt) for dtype in ("float32", "bfloat16"))
    assert torch.isfinite(fast).all()
    distance = float((exact - fast).norm() / exact.norm())
    print(f"relative distance of the gradients {distance:.4f}")
    assert distance < 0.05


def test_a_broken_gradient_changes_no_weight(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, **SHAPE)
    trainer = TorchTrainer(folder, TrainingConfig(), device="cuda", dtype="bfloat16")
    stir(trainer)
    before = {name: one.clone() for name, one in trainer.model.trainable().items()}
    broken = [earned(turn("t0", [11, 12, 13], [14, 15]), float("inf"))]
    assert trainer.step(Batch(samples=merge(broken).samples, version="base"))["skipped"] == 1
    assert all(torch.equal(before[name], one) for name, one in trainer.model.trainable().items())
    assert trainer.step(comb())["skipped"] == 0
    assert not all(
        torch.equal(before[name], one) for name, one in trainer.model.trainable().items()
    )


def test_a_model_on_the_cpu_beside_it_goes_on_as_before(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, **SHAPE)
    judge = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(10, 30)[None]
    before = judge(input_ids=ids).logits
    TorchTrainer(folder, TrainingConfig(), device="cuda", dtype="bfloat16").accumulate(comb())
    assert torch.equal(judge(input_ids=ids).logits, before)
    late = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(late(input_ids=ids).logits, before)
