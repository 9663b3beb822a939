"""What weights say without being changed: trees and fans against turns on their own, teachers.

M sampled tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import get_args

import pytest
import torch
from sampled_turns import earned, make, tiny_llama, turn

from instar.config import TrainingConfig
from instar.learn.groups import tried
from instar.train import reading
from instar.train.reading import Pair, Weights
from instar.train.step import TorchTrainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def test_replies_read_together_are_as_likely_as_each_alone(folder: Path) -> None:
    """In the order that was asked for, with shared beginnings, twins and others that share none."""
    trainer = make(folder)
    pairs: list[Pair] = [
        ((1, 2, 3, 4), (5, 6)),
        ((9,), (8,)),
        ((1, 2, 3, 4), (5, 7, 3)),
        ((1, 2), (3, 4, 5, 6)),
        ((1, 2, 3, 4), (5, 6)),
        ((7, 8, 9), (1,)),
    ]
    for weights in get_args(Weights):
        alone = [trainer.logprobs(*one, temperature=0.7, weights=weights) for one in pairs]
        found = trainer.each_logprobs(pairs, temperature=0.7, weights=weights)
        assert found == [pytest.approx(one, abs=1e-5) for one in alone]
    assert trainer.each_logprobs([]) == []


@pytest.mark.parametrize(
    ("longest", "passes"),
    [
        (99, [[3, 0], [1], [2]]),  # 3 shares most with 0, so both are read in one
        (6, [[3], [0], [1], [2]]),  # but not beyond the longest pass
    ],
)
def test_how_much_is_read_in_one_pass(
    monkeypatch: pytest.MonkeyPatch, longest: int, passes: list[list[int]]
) -> None:
    monkeypatch.setattr(reading, "_PASS", 6)
    pairs: list[Pair] = [
        ((1, 2, 3, 4), (5, 6)),
        ((1, 7, 8), (9,)),
        ((2, 2, 2, 2, 2, 2), (2, 2)),
        ((1, 2, 3, 4), (5, 5)),
    ]
    found = list(reading._passes(pairs, most=longest))
    assert [some for some, _ in found] == passes
    assert [trie.size for _, trie in found] == ([7, 4, 8] if longest == 99 else [6, 6, 4, 8])


def test_the_gate_measures_by_the_hinted_base(folder: Path) -> None:
    """With an untrained adapter the policy is the base, so the KL is the teacher's own shift."""
    from transformers import AutoModelForCausalLM

    trainer = TorchTrainer(folder, TrainingConfig())
    prompt, hinted, sampled = [1, 2, 3], [9, 1, 2, 3], [4, 5]
    teacher = trainer.teacher_of(hinted, sampled)
    found = trainer.against_teacher(prompt, sampled, teacher)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        plain_MV, hinted_MV = (
            base(torch.tensor([[*ids, *sampled]])).logits[0, len(ids) - 1 : -1]
            for ids in (prompt, hinted)
        )
    ours = plain_MV.log_softmax(1)
    theirs = (hinted_MV / trainer.training.teacher_temperature).log_softmax(1)
    kl_M = (ours.exp() * (ours - theirs)).sum(1)
    assert found.kl == pytest.approx(float(kl_M.mean()), rel=1e-4)
    assert found.wanted == pytest.approx(found.kl) and found.kl > 0
    spoken_M = ours.gather(1, torch.tensor(sampled)[:, None])[:, 0]
    assert found.logprob == pytest.approx(float(spoken_M.mean()), rel=1e-4)


def test_what_a_verdict_overrules_is_no_distance(folder: Path) -> None:
    """Of a token that was corrected, only the teacher's wish to say it less counts."""
    trainer = TorchTrainer(folder, TrainingConfig(dissent=0.0, teacher_temperature=1.0))
    prompt, hinted = [1, 2, 3], [9, 1, 2, 3]
    for token in range(4, 12):
        ours, theirs = (
            trainer.logprobs(ids, (token,), weights="base")[0] for ids in (prompt, hinted)
        )
        for verdict in (-1.0, 1.0):
            teacher = trainer.teacher_of(hinted, (token,))
            found = trainer.against_teacher(prompt, (token,), teacher, verdict=verdict)
            agreed = verdict * (theirs - ours) > 0
            assert found.wanted == pytest.approx(found.kl if agreed else 0.0)


def test_tokens_on_which_no_teacher_is_heard_are_no_distance(folder: Path) -> None:
    trainer = TorchTrainer(folder, TrainingConfig())
    prompt, hinted, sampled = [1, 2, 3], [9, 1, 2, 3], [4, 5]
    teacher = trainer.teacher_of(hinted, sampled)
    found, first, none = (
        trainer.against_teacher(prompt, sampled, teacher, unheard=unheard)
        for unheard in ((False, False), (False, True), (True, True))
    )
    one = trainer.against_teacher(prompt, [4], trainer.teacher_of(hinted, [4]))
    assert first.wanted == pytest.approx(one.kl / 2, rel=1e-4)
    assert (none.wanted, none.kl) == (0.0, found.kl)
    assert found.wanted == pytest.approx(found.kl)


def test_held_out_attempts_are_as_likely_as_each_turn_alone(folder: Path) -> None:
    trainer = make(folder)
    shared = [1, 2, 3, 4]
    turns = [
        earned(turn("a", shared, [5, 6]), 1.0),
        earned(turn("b", shared, [5, 7, 8]), -1.0),
        earned(turn("c", [9, 8], [7]), 0.5),
    ]
    judged = [
        replace(one, group="g", attempt=one.turn.id, reward=float(at))
        for at, (one, _) in enumerate(turns)
    ]
    found = {one.turn: one for one in tried(trainer, judged, longest=99)}
    # The middle one earned the group's mean: it says nothing.
    assert found.keys() == {judged[0].turn.id, judged[2].turn.id}
    for one in (judged[0], judged[2]):
        alone = trainer.logprobs(one.turn.prompt_ids, one.turn.sampled_ids)
        assert found[one.turn.id].reply_logprob == pytest.approx(fmean(alone), abs=1e-5)
