"""Answers that a policy is held to while it learns something else."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sampled_turns import ALL_LINEAR, chain, make, stir, tiny_llama

from instar.batch.merge import merge
from instar.config import TrainingConfig
from instar.learn.measure import measured_and_others
from instar.publish.gate import retention_set
from instar.train.anchors import Anchor, Anchors
from instar.train.limits import Limit
from instar.train.step import TorchTrainer
from instar.types import Batch

EVERY = [
    Anchor(prompt_ids=(1, 2, 3), reply_ids=(4, 5, 6)),
    Anchor(prompt_ids=(7, 8), reply_ids=(9, 10)),
    Anchor(prompt_ids=(11,), reply_ids=(12, 13, 14, 15)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


def logits(model: Any, anchor: Anchor) -> torch.Tensor:
    """Log-probs of all tokens before each token of the answer, read by itself."""
    ids = torch.tensor([[*anchor.prompt_ids, *anchor.reply_ids]])
    found: torch.Tensor = model(input_ids=ids).logits[0].log_softmax(-1)
    return found[len(anchor.prompt_ids) - 1 : -1]


def naive(trainer: TorchTrainer, some: Sequence[Anchor]) -> tuple[Any, torch.Tensor, int]:
    """The loss answer by answer with transformers' own attention, and how many count."""
    model = copy.deepcopy(trainer.model.peft).double()
    model.zero_grad()
    model.get_base_model().set_attn_implementation("eager")
    total, counting = torch.zeros((), dtype=torch.float64), 0
    for one in some:
        at = torch.tensor(one.reply_ids)[:, None]
        with torch.no_grad(), model.disable_adapter():
            theirs = logits(model, one)
        ours = logits(model, one)
        if theirs.gather(1, at).mean() > ours.gather(1, at).mean():
            counting += 1
            total = total + (theirs.exp() * (theirs - ours)).sum()
    return model, total / sum(len(one.reply_ids) for one in some), counting


def anchored(folder: Path, every: list[Anchor] = EVERY, **options: Any) -> TorchTrainer:
    training = TrainingConfig(
        lora_rank=4, lora_alpha=8, lora_target_modules=ALL_LINEAR, anchors=3, **options
    )
    return TorchTrainer(folder, training, device="cpu", anchors=every)


def test_only_answers_that_became_rarer_are_drawn_back(folder: Path) -> None:
    trainer = make(folder)
    model, loss, counting = naive(trainer, EVERY)
    assert 0 < counting < len(EVERY)  # or else this shows nothing
    (0.7 * loss).backward()  # type: ignore[no-untyped-call]
    metrics = Anchors(trainer, EVERY).accumulate(0, count=3, weight=0.7)
    assert metrics["anchors_rarer"] == counting
    assert metrics["anchor_loss"] == pytest.approx(0.7 * float(loss.detach()), abs=1e-5)
    wanted = dict(model.named_parameters())
    for name, one in trainer.model.trainable().items():
        assert one.grad is not None
        assert torch.allclose(one.grad.double(), wanted[name].grad, atol=1e-5), name


@pytest.mark.parametrize("options", [{}, {"use_lora": False}, {"lora_target_modules": ["lm_head"]}])
def test_a_policy_that_is_the_base_is_not_drawn_anywhere(
    folder: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    if "lora_target_modules" in options:
        folder = tiny_llama(tmp_path, tie_word_embeddings=False)
    trainer = TorchTrainer(folder, TrainingConfig(**options), device="cpu")
    metrics = Anchors(trainer, EVERY).accumulate(0, count=3, weight=1.0)
    assert metrics["anchor_loss"] == pytest.approx(0.0, abs=1e-6)


def test_answers_take_turns(folder: Path) -> None:
    trainer = make(folder)
    anchors = Anchors(trainer, EVERY)
    for turn, some in enumerate([EVERY[:2], [EVERY[2], EVERY[0]], EVERY[1:]]):
        _, loss, _ = naive(trainer, some)
        found = anchors.accumulate(turn, count=2, weight=1.0)["anchor_loss"]
        assert found == pytest.approx(float(loss.detach()), abs=1e-5)


def test_steps_hold_the_answers_while_they_learn(folder: Path) -> None:
    """The same steps on the same batch: with anchors, less of the answers is lost."""

    def lost(weight: float) -> float:
        trainer = anchored(folder, anchor_weight=weight, teacher_temperature=1.0)
        stir(trainer)
        samples = merge(chain(), max_tokens=1000).samples
        for _ in range(12):
            trainer.step(Batch(samples=samples, version="base"))
        teachers = [trainer.teacher_of(one.prompt_ids, one.reply_ids) for one in EVERY]
        return sum(
            trainer.against_teacher(one.prompt_ids, one.reply_ids, teacher).kl
            for one, teacher in zip(EVERY, teachers, strict=True)
        )

    assert lost(3.0) < 0.5 * lost(0.0)


@pytest.mark.parametrize("options", [{"anchor_weight": 0.0}, {"anchors": 0}, {"every": []}])
def test_without_anchors_a_step_is_what_it_was(folder: Path, options: dict[str, Any]) -> None:
    every = options.pop("every", EVERY)
    training = {"lora_rank": 4, "lora_alpha": 8, "lora_target_modules": ALL_LINEAR} | options
    batch = Batch(samples=merge(chain(), max_tokens=1000).samples, version="base")
    trainer = TorchTrainer(folder, TrainingConfig(**training), device="cpu", anchors=every)
    plain = TorchTrainer(folder, TrainingConfig(**training), device="cpu")
    found, expected = trainer.step(batch), plain.step(batch)
    assert "anchor_loss" not in found
    assert (found["loss"], found["grad_norm"]) == (expected["loss"], expected["grad_norm"])


def test_an_answer_that_the_model_cannot_read_is_left_out(folder: Path) -> None:
    long = Anchor(prompt_ids=(1,) * 250, reply_ids=(2,) * 20)
    trainer = make(folder)
    trainer.model.limit = Limit(tokens=256, why="a test says so")
    _, loss, _ = naive(trainer, [EVERY[0]])
    found = Anchors(trainer, [long, EVERY[0]]).accumulate(5, count=2, weight=1.0)
    assert found["anchor_loss"] == pytest.approx(float(loss.detach()), abs=1e-5)


@pytest.mark.parametrize("wanted", [0, 1, 16, 50, 78, 200])
def test_the_gate_measures_by_no_answer_that_the_policy_is_held_to(wanted: int) -> None:
    every = retention_set()
    measured, others = measured_and_others(every, wanted)
    assert len(measured) == min(wanted, len(every))
    assert not set(measured) & set(others)
    assert set(measured) | set(others) == set(every)
    assert len({one.kind for one in others[:8]}) >= min(5, len(others))
