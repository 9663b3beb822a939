"""Packs samples into few forward passes under a token budget, without padding.

Comes in: samples of any size. Goes out: samples again, each a forest of one or more trees side
by side. Trees of a forest never attend to each other, since each token attends to its
ancestors only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from instar.types import Sample, Tree


def pack(samples: Sequence[Sample], *, max_tokens: int, parts: int = 1) -> tuple[Sample, ...]:
    """First-fit by falling size; a sample beyond the budget stands alone.

    `parts` asks for at least so many passes, where there are samples enough.
    """
    total = sum(len(sample.tree.ids) for sample in samples)
    budget = min(max_tokens, -(-total // parts)) if parts > 1 else max_tokens
    bins: list[list[Sample]] = []
    room: list[int] = []
    for sample in sorted(samples, key=lambda one: len(one.tree.ids), reverse=True):
        size = len(sample.tree.ids)
        at = next((at for at, left in enumerate(room) if left >= size), None)
        if at is None:
            bins.append([])
            room.append(budget)
            at = len(bins) - 1
        bins[at].append(sample)
        room[at] -= size
    return tuple(join(one) for one in bins)


def join(samples: Sequence[Sample]) -> Sample:
    """Samples side by side as one."""
    if len(samples) == 1:
        return samples[0]
    trees = [sample.tree for sample in samples]
    hinted = [sample.hinted for sample in samples if sample.hinted is not None]
    valued = any(sample.values for sample in samples)
    return Sample(
        tree=Tree.joined(trees),
        turns=tuple(turn for sample in samples for turn in sample.turns),
        at=_shifted([sample.at for sample in samples], [len(tree.ids) for tree in trees]),
        turn_index=_shifted(
            [sample.turn_index for sample in samples], [len(sample.turns) for sample in samples]
        ),
        logprobs=tuple(value for sample in samples for value in sample.logprobs),
        advantages=tuple(value for sample in samples for value in sample.advantages),
        distill_weights=tuple(value for sample in samples for value in sample.distill_weights),
        temperatures=tuple(value for sample in samples for value in sample.temperatures),
        hinted=Tree.joined(hinted) if hinted else None,
        hinted_at=_hinted_at(samples) if hinted else (),
        values=tuple(v for one in samples for v in one.values or _unknown(one)) if valued else (),
        returns=tuple(v for one in samples for v in one.returns or _unknown(one)) if valued else (),
    )


def _unknown(sample: Sample) -> tuple[None, ...]:
    return (None,) * len(sample.turns)


def _hinted_at(samples: Sequence[Sample]) -> tuple[int, ...]:
    return _shifted(
        [sample.hinted_at or (-1,) * len(sample.at) for sample in samples],
        [len(sample.hinted.ids) if sample.hinted is not None else 0 for sample in samples],
    )


def _shifted(streams: Sequence[Sequence[int]], sizes: Sequence[int]) -> tuple[int, ...]:
    """Indices moved by the sizes of what stands before them; -1 stays -1."""
    starts = [0, *accumulate(sizes)]
    return tuple(
        value + start if value >= 0 else -1
        for stream, start in zip(streams, starts, strict=False)
        for value in stream
    )
