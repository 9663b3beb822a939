"""What the gate wants to know of the weights that a trainer holds right now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from instar.batch.loops import circles
from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.learn.batches import hinted_prompt
from instar.publish.agreement import Fit
from instar.publish.gate import Correction, Reference, Tried
from instar.train.anchors import Anchor
from instar.train.losses import Teacher
from instar.train.reading import Pair
from instar.train.step import TorchTrainer
from instar.types import Hint, Turn

Teachers = dict[tuple[str, tuple[int, ...]], Teacher]
"""By turn and hinted prompt."""

_APART = 8
"""How far apart in the retention set references are that are looked at together."""


def corrections(
    trainer: TorchTrainer,
    turns: Sequence[Turn],
    *,
    renderer: ChatRenderer,
    known: Mapping[str, Turn],
    training: TrainingConfig,
    longest: int,
    teachers: Teachers,
    weights: Literal["policy", "base"] = "policy",
) -> list[Correction]:
    """How far weights are from the hinted teacher on held-out corrected turns.

    Teachers that are missing are added to `teachers`: reading them is half of the work.
    """
    found = []
    for turn in turns:
        hinted = hinted_prompt(turn, renderer, known, training=training, longest=longest)
        if hinted is None or not turn.sampled_ids:
            continue
        if (turn.id, hinted) not in teachers:
            teachers[turn.id, hinted] = trainer.teacher_of(hinted, turn.sampled_ids)
        seen = trainer.against_teacher(
            turn.prompt_ids,
            turn.sampled_ids,
            teachers[turn.id, hinted],
            verdict=-1.0,
            unheard=circles(turn.sampled_ids, training.loop_tokens),
            weights=weights,
        )
        found.append(
            Correction(
                turn=turn.id,
                teacher_kl=seen.kl,
                wanted_kl=seen.wanted,
                reply_logprob=seen.logprob,
            )
        )
    return found


def praised(
    trainer: TorchTrainer,
    turns: Sequence[Turn],
    *,
    weights: Literal["policy", "base"] = "policy",
) -> list[Tried]:
    """How likely replies are that a person was pleased with."""
    said = [turn for turn in turns if turn.sampled_ids]
    each = trainer.each_logprobs(
        [(one.prompt_ids, one.sampled_ids) for one in said], weights=weights
    )
    return [
        Tried(turn=turn.id, group=turn.id, advantage=1.0, reply_logprob=fmean(found))
        for turn, found in zip(said, each, strict=True)
    ]


def fits(
    trainer: TorchTrainer,
    turns: Sequence[Turn],
    *,
    renderer: ChatRenderer,
    known: Mapping[str, Turn],
    training: TrainingConfig,
    longest: int,
    standing: str | None,
) -> list[Fit]:
    """How replies with a verdict fit their own hint, or what a person mostly asks for."""
    read: list[Turn] = []
    pairs: list[Pair] = []
    for turn in turns:
        if turn.verdict is None or not turn.verdict.score or not turn.sampled_ids:
            continue
        good = turn.verdict.score > 0
        hint = turn.hint.text if turn.hint is not None and not good else standing
        told = replace(turn, verdict=None, hint=Hint(text=hint) if hint else None)
        hinted = hinted_prompt(told, renderer, known, training=training, longest=longest)
        if hinted is None or len(turn.ids) > longest:
            continue
        read.append(turn)
        pairs += [(hinted, turn.sampled_ids), (turn.prompt_ids, turn.sampled_ids)]
    each = trainer.each_logprobs(pairs, weights="base")
    return [_fit(*one) for one in zip(read, each[::2], each[1::2], strict=True)]


def _fit(turn: Turn, with_it: Sequence[float], without: Sequence[float]) -> Fit:
    gains = [a - b for a, b in zip(with_it, without, strict=True)]
    good = turn.verdict is not None and turn.verdict.score > 0
    return Fit(turn=turn.id, good=good, mean=fmean(gains), top=max(gains))


def answers(
    trainer: TorchTrainer,
    references: Sequence[Reference],
    *,
    renderer: ChatRenderer,
    weights: Literal["policy", "base"],
) -> list[float]:
    """The mean log-prob a token of each reference answer."""
    pairs = [reference_ids(one, renderer) for one in references]
    return [fmean(one) for one in trainer.each_logprobs(pairs, weights=weights)]


def reference_ids(
    one: Reference, renderer: ChatRenderer
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A reference's question as a prompt, and its answer."""
    prompt = renderer.render([{"role": "user", "content": one.question}]).ids
    return prompt, (*renderer.encode(one.answer), *renderer.eos_ids[:1])


def anchor(one: Reference, renderer: ChatRenderer) -> Anchor:
    """A reference that a policy is held to, not measured by."""
    prompt, _ = reference_ids(one, renderer)
    return Anchor(prompt_ids=prompt, reply_ids=renderer.encode(one.answer))


def measured_and_others(
    every: Sequence[Reference], wanted: int
) -> tuple[Sequence[Reference], Sequence[Reference]]:
    """As many references as the gate looks at, of all kinds, and those that it never sees.

    Neighbours are of one kind; among the others that come next to each other they are mixed.
    """
    wanted = min(wanted, len(every))
    measured = [every[at * len(every) // wanted] for at in range(wanted)]
    others = [one for one in every if one not in measured]
    return measured, [one for first in range(_APART) for one in others[first::_APART]]
