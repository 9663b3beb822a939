"""What a model can be trained on exactly: how long, without its own noise, in which precision."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sampled_turns import earned, make, tiny_llama, turn

from instar.batch.merge import merge
from instar.config import TrainingConfig
from instar.errors import ModelError
from instar.train.limits import Limit, limit_of, shorter
from instar.train.step import TorchTrainer
from instar.types import Batch

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
SMALL_GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}


def gpt2(**changes: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    return GPT2LMHeadModel(GPT2Config(**(SMALL_GPT2 | changes)))


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**(SMALL | changes)))


def mistral(window: int | None) -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(3)
    return MistralForCausalLM(MistralConfig(sliding_window=window, **SMALL))


def qwen2(**changes: Any) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**(SMALL | changes)))


def phi3() -> Any:
    from transformers import Phi3Config, Phi3ForCausalLM

    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    return Phi3ForCausalLM(
        Phi3Config(
            pad_token_id=0,
            original_max_position_embeddings=20,
            rope_scaling={"rope_type": "longrope", **factors},
            **SMALL,
        )
    )


DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 16}
WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("made", "tokens"),
    [
        (lambda: llama(), None),
        (lambda: llama(**DYNAMIC), 16),
        (lambda: llama(rope_scaling={"rope_type": "linear", "factor": 2.0}), None),
        (lambda: phi3(), 20),
        (lambda: mistral(None), None),
        (lambda: mistral(8), 8),
        (lambda: qwen2(), None),
        (lambda: qwen2(**WINDOW), 8),
        (lambda: qwen2(**WINDOW | {"max_window_layers": 2}), None),
        (lambda: gpt2(), 24),
    ],
)
def test_how_long_a_sequence_may_be(made: Callable[[], Any], tokens: int | None) -> None:
    found = limit_of(made())
    assert (None if found is None else found.tokens) == tokens


def test_the_limit_that_is_met_first_counts() -> None:
    ours, theirs = Limit(tokens=8, why="a"), Limit(tokens=9, why="b")
    assert shorter(ours, theirs) is shorter(theirs, ours) is ours
    assert shorter(ours, None) is ours
    assert str(ours) == "a (8 tokens)"


@pytest.mark.parametrize(
    ("made", "last", "why"),
    [
        (lambda: mistral(8), 8, "attention window"),
        (lambda: gpt2(), 24, "table of positions"),
        (lambda: llama(**DYNAMIC), 16, "dynamic RoPE"),
    ],
)
def test_what_is_longer_is_refused_in_words(
    tmp_path: Path, made: Callable[[], Any], last: int, why: str
) -> None:
    made().save_pretrained(tmp_path)
    trainer = make(tmp_path)
    trainer.logprobs([1] * (last - 2), [4, 5])
    with pytest.raises(ModelError, match=rf"{last + 1} tokens is longer than .*{why}.*{last}"):
        trainer.logprobs([1] * (last - 1), [4, 5])


def one_turn(trainer: TorchTrainer) -> Batch:
    prompt, said = list(range(1, 9)), list(range(9, 17))
    one = turn("a", prompt, said, logprobs=trainer.logprobs(prompt, said))
    return Batch(samples=merge([earned(one, 1.0)]).samples, version="base")


def test_a_models_own_dropout_is_off_and_that_of_the_adapter_is_as_set(tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["resid_pdrop"] == config["attn_pdrop"] == config["embd_pdrop"] == 0.1
    trainer = make(tmp_path)
    before = trainer.step(one_turn(trainer))
    assert before["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert before["kl"] == pytest.approx(0.0, abs=1e-6)
    noisy = make(tmp_path, lora_dropout=0.5)
    assert noisy.step(one_turn(noisy))["kl"] > 1e-4


@pytest.mark.parametrize("use_lora", [True, False])
def test_as_many_weights_move_in_bfloat16_as_in_float32(tmp_path: Path, use_lora: bool) -> None:
    """Steps far smaller than what bfloat16 can tell apart in a weight."""
    folder = tiny_llama(tmp_path / "m", initializer_range=0.02)
    moved: dict[str, float] = {}
    for dtype in ("float32", "bfloat16"):
        options = {"use_lora": use_lora, "learning_rate": 1e-6, "lora_target_modules": ["q_proj"]}
        trainer = TorchTrainer(folder, TrainingConfig(**options), device="cpu", dtype=dtype)
        before = {name: one.detach().clone() for name, one in trainer.model.trainable().items()}
        batch = one_turn(trainer)
        for _ in range(10):
            trainer.step(batch)
        now = trainer.model.trainable()
        far = [(now[name] - one).abs() > 5e-6 for name, one in before.items()]
        moved[dtype] = float(torch.cat([one.flatten() for one in far]).float().mean())
    assert moved["float32"] > 0.3
    assert moved["bfloat16"] == pytest.approx(moved["float32"], abs=0.05)


def test_what_was_trained_in_bfloat16_is_published_in_full(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", initializer_range=0.02)
    training = TrainingConfig(use_lora=False, learning_rate=1e-6)
    trainer = TorchTrainer(folder, training, device="cpu", dtype="bfloat16")
    trainer.step(one_turn(trainer))
    trainer.save_adapter(tmp_path / "v1")
    other = TorchTrainer(folder, training, device="cpu", dtype="bfloat16")
    other.load_adapter(tmp_path / "v1")
    for name, one in trainer.model.trainable().items():
        assert other.model.trainable()[name].detach() == pytest.approx(one.detach(), abs=1e-8)
