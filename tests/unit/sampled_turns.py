"""Turns as credit and merge meet them, with made-up tokens, and a tiny model to train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from instar.batch.credit import Credit, Judged
from instar.config import TrainingConfig
from instar.train.step import TorchTrainer
from instar.types import Finish, Hint, Sampling, Turn, Verdict

Score = Literal[-1, 0, 1]
ALL_LINEAR = ["all-linear"]


def turn(
    name: str,
    prompt: Sequence[int],
    sampled: Sequence[int],
    *,
    score: Score | None = None,
    hint: str | None = None,
    parent: str | None = None,
    logprobs: Sequence[float] | None = None,
    finish: Finish = "stop",
    temperature: float = 1.0,
    **more: Any,
) -> Turn:
    return Turn(
        id=name,
        owner="me",
        session="s",
        parent=parent,
        extends=parent is not None,
        kind=more.pop("kind", "main"),
        prompt_ids=tuple(prompt),
        sampled_ids=tuple(sampled),
        logprobs=tuple(logprobs if logprobs is not None else [-1.0] * len(sampled)),
        settings=Sampling(temperature=temperature),
        version="base",
        finish=finish,
        messages=more.pop("messages", ()),
        reply={"role": "assistant", "content": ""},
        created=0.0,
        verdict=None if score is None else Verdict(score=score),
        hint=None if hint is None else Hint(text=hint),
        **more,
    )


def earned(
    one: Turn, advantage: float, *, distill: float = 0.0, hinted: Sequence[int] | None = None
) -> tuple[Judged, Credit]:
    size = len(one.sampled_ids)
    judged = Judged(turn=one, hinted_ids=None if hinted is None else tuple(hinted))
    return judged, Credit(advantages=(advantage,) * size, distill_weights=(distill,) * size)


def chain() -> list[tuple[Judged, Credit]]:
    """Three turns; each prompt is the last one with its reply and something new."""
    one = turn("c1", [1, 2, 3], [4, 5], logprobs=[-0.7, -2.0])
    two = turn("c2", [*one.ids, 6], [7, 8, 9], logprobs=[-4.2, -4.1, -3.0], temperature=0.7)
    three = turn("c3", [*two.ids, 10, 11], [12], logprobs=[-4.3])
    return [earned(one, 1.0), earned(two, -1.0), earned(three, 0.5)]


def comb() -> list[tuple[Judged, Credit]]:
    """Three turns over one trunk; each prompt ends with a 60 that later history does not have."""
    trunk: list[int] = [1, 2, 3]
    out = []
    for number, sampled in enumerate(([4, 5], [7, 8, 9], [12, 13])):
        one = turn(f"k{number}", [*trunk, 60, 61], sampled, logprobs=[-4.0] * len(sampled))
        out.append(earned(one, (-1.0) ** number))
        trunk += [*sampled, 20 + number]
    return out


def tiny_llama(folder: Path, **changes: Any) -> Path:
    """A Llama of two layers with random weights, saved as a model folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
    }
    with torch.random.fork_rng():
        torch.manual_seed(7)
        LlamaForCausalLM(LlamaConfig(**(shape | changes))).save_pretrained(folder)
    return folder


def make(folder: Path, **training: Any) -> TorchTrainer:
    """With a loss that is the plain sum of its terms, unless `training` says otherwise."""
    options = {"lora_rank": 4, "lora_alpha": 8, "lora_target_modules": ALL_LINEAR}
    options |= {
        "divergence": "reverse",
        "dissent": 1.0,
        "blame": 1.0,
        "teacher_share": 0.0,
    } | training
    trainer = TorchTrainer(folder, TrainingConfig(**options), device="cpu")
    stir(trainer)
    return trainer


def stir(trainer: TorchTrainer) -> None:
    """An adapter starts as no change at all, under which half of the gradients are zero."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in trainer.model.trainable().items():
            if "lora_B" in name:
                value.copy_(torch.randn(value.shape, generator=generator) * 0.1)
