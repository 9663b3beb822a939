"""Generalised advantage estimation along sessions, which are trees.

Where a turn has several successors (retries), it is followed by their mean. A turn without a reward
is passed over, as if its successors followed its parent.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Container, Mapping


def advantages(
    rewards: Mapping[str, float],
    values: Mapping[str, float],
    parents: Mapping[str, str | None],
    *,
    gamma: float,
    gae_lambda: float,
) -> dict[str, float]:
    """Turn id to advantage, for the turns with a reward. Without estimates all values are 0."""
    lines = {name: _line(name, parents, rewards) for name in rewards}
    after: defaultdict[str, list[str]] = defaultdict(list)
    for name, line in lines.items():
        after[line[0] if line else ""].append(name)
    gains: dict[str, float] = {}
    # Deepest first: what follows a turn is known when the turn's own advantage is wanted.
    for name in sorted(rewards, key=lambda name: len(lines[name]), reverse=True):
        later = after[name]
        next_value = statistics.fmean(values.get(n, 0.0) for n in later) if later else 0.0
        next_gain = statistics.fmean(gains[n] for n in later) if later else 0.0
        delta = rewards[name] + gamma * next_value - values.get(name, 0.0)
        gains[name] = delta + gamma * gae_lambda * next_gain
    return gains


def _line(name: str, parents: Mapping[str, str | None], known: Container[str]) -> list[str]:
    """The turns with a reward that came before one, nearest first."""
    out = []
    at = parents[name]
    while at is not None and at in parents:
        if at in known:
            out.append(at)
        at = parents[at]
    return out
