"""Merges turns whose prompts share beginnings into trees: each token is computed once.

Comes in: turns with their credit. Goes out: Samples. A chain of turns becomes one path, a comb
(each turn a leaf on a shared trunk) a trunk with leaves, retries and edits branches. Only what
a trained turn was conditioned on is in a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from instar.batch.credit import Credit, Judged
from instar.tries import Trie
from instar.types import Sample, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Samples, and what merging them cost or saved."""

    samples: tuple[Sample, ...]
    tokens: int
    """In the samples' trees."""
    unmerged_tokens: int
    """That training each turn on its own would take."""
    cuts: int = 0
    """Times a tree was cut in two since it would have grown too large."""
    too_long: tuple[str, ...] = ()
    """Turns left out since they alone are longer than the limit."""


Credited = tuple[Judged, Credit]


def merge(
    turns: Sequence[Credited], *, max_tokens: int | None = None, longest: int | None = None
) -> Merged:
    """Merge the turns into as few trees as their beginnings and the limit allow.

    A tree has at most `max_tokens`, a turn in it at most `longest`, where that is less.
    """
    limit = max_tokens if max_tokens is not None else _NO_LIMIT
    turn_limit = min(limit, longest if longest is not None else limit)
    fits = [one for one in turns if len(one[0].turn.ids) <= turn_limit]
    # In the order of their ids, turns that share most stand side by side, so cuts repeat little.
    fits.sort(key=lambda one: (one[0].turn.ids, one[0].turn.id))
    parts: list[list[Credited]] = []
    cuts = 0
    trie = Trie()
    for one in fits:
        ids = one[0].turn.ids
        shared = trie.shared(ids)
        if not parts or shared == 0 or trie.size + len(ids) - shared > limit:
            cuts += bool(shared)
            trie = Trie()
            parts.append([])
        trie.add(ids)
        parts[-1].append(one)
    samples = tuple(_sample(part) for part in parts)
    return Merged(
        samples=samples,
        tokens=sum(len(sample.tree.ids) for sample in samples),
        unmerged_tokens=sum(len(one[0].turn.ids) for one in fits),
        cuts=cuts,
        too_long=tuple(one[0].turn.id for one in turns if len(one[0].turn.ids) > turn_limit),
    )


_NO_LIMIT = 1 << 62


def _sample(part: Sequence[Credited]) -> Sample:
    """One tree of turns that share a beginning."""
    trie, hints = Trie(), Trie()
    for judged, credit in part:
        trie.add(judged.turn.ids)
        if any(credit.distill_weights):
            hints.add(_teacher_ids(judged))
    tree, at, hinted_at = trie.tree(), [], []
    hinted = hints.tree() if hints.size else None
    for judged, credit in part:
        size = len(judged.turn.sampled_ids)
        at += trie.find(judged.turn.ids)[-size:]
        distilled = any(credit.distill_weights)
        hinted_at += hints.find(_teacher_ids(judged))[-size:] if distilled else [-1] * size
    valued = any(credit.target is not None for _, credit in part)
    return Sample(
        tree=tree,
        turns=tuple(judged.turn.id for judged, _ in part),
        at=tuple(at),
        turn_index=tuple(n for n, one in enumerate(part) for _ in one[0].turn.sampled_ids),
        logprobs=tuple(value for judged, _ in part for value in judged.turn.logprobs),
        advantages=tuple(value for _, credit in part for value in credit.advantages),
        distill_weights=tuple(value for _, credit in part for value in credit.distill_weights),
        temperatures=tuple(
            temperature_of(judged.turn) for judged, _ in part for _ in judged.turn.sampled_ids
        ),
        hinted=hinted,
        hinted_at=tuple(hinted_at) if hinted is not None else (),
        values=tuple(credit.value for _, credit in part) if valued else (),
        returns=tuple(credit.target for _, credit in part) if valued else (),
    )


def temperature_of(turn: Turn) -> float:
    """The temperature of the recorded log-probs, which for greedy replies is 1."""
    return (turn.settings.temperature or 1.0) if turn.logprobs_scaled else 1.0


def _teacher_ids(judged: Judged) -> tuple[int, ...]:
    if judged.hinted_ids is None:
        raise ValueError(
            f"turn {judged.turn.id} has distillation weights but no hinted prompt for the teacher"
        )
    return judged.hinted_ids + judged.turn.sampled_ids
