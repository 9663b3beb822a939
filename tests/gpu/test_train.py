"""A step of training on a GPU in bfloat16 against the same in float32 with masks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from instar.batch.credit import Credit, Judged
from instar.batch.merge import merge
from instar.config import TrainingConfig
from instar.train.step import TorchTrainer
from instar.types import Batch, Sampling, Turn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    home = tmp_path_factory.mktemp("model")
    Qwen3ForCausalLM(config).save_pretrained(home)
    return home


def comb() -> Batch:
    draw = torch.Generator().manual_seed(1)

    def tokens(count: int) -> list[int]:
        return torch.randint(10, 500, (count,), generator=draw).tolist()

    trunk, turns = tokens(300), []
    for number in range(4):
        prompt, reply = trunk + tokens(20), tokens(40)
        turn = Turn(
            id=f"t{number}",
            owner="o",
            session="s",
            parent=None,
            extends=False,
            kind="main",
            prompt_ids=tuple(prompt),
            sampled_ids=tuple(reply),
            logprobs=(-6.0,) * len(reply),
            settings=Sampling(),
            version="base",
            finish="stop",
            messages=(),
            reply={},
            created=0.0,
        )
        ones = (1.0,) * len(reply)
        turns.append((Judged(turn=turn), Credit(advantages=ones, distill_weights=(0.0,) * 40)))
        trunk = trunk + reply
    return Batch(samples=merge(turns).samples, version="base")


def gradients(folder: Path, dtype: str) -> torch.Tensor:
    training = TrainingConfig(lora_target_modules=["all-linear"])
    trainer = TorchTrainer(folder, training, device="cuda", dtype=dtype)
    parameters = trainer.model.trainable()
    torch.manual_seed(2)
    with torch.no_grad():  # an adapter of zeros has no gradient in its other half
        for name in sorted(parameters):
            if ".lora_B." in name:
                parameters[name].copy_(0.02 * torch.randn(parameters[name].shape))
    trainer.accumulate(comb())
    grads = [parameters[name].grad for name in sorted(parameters)]
    return torch.cat([one.flatten().float() for one in grads if one is not None])


def test_fused_kernels_give_the_gradients_that_masks_give(folder: Path) -> None:
    exact, fast = gradients(folder, "float32"), gradients(folder, "bfloat16")
    assert torch.isfinite(fast).all()
    distance = float((exact - fast).norm() / exact.norm())
    print(f"relative distance of the gradients {distance:.4f}")
    assert distance < 0.03
