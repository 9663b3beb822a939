"""What attempts say of a policy: mean reward, pass@k, pass^k, and whether two policies differ.

pass@k is the chance that at least one of k attempts at a task succeeds, pass^k that all do. Both
are estimated without bias from n attempts of which c succeeded, averaged over tasks. Attempts that
the environment spoiled are in none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import fmean
from typing import Any

import numpy as np

from instar.types import Attempt

RESAMPLES = 10_000
CONFIDENCE = 0.95
_WHOLE = 1 - 1e-9
"""A reward from here on is a success."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k of n attempts, c of them good, drawn without return hold a good one."""
    _check(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that k of n attempts, c of them good, drawn without return are all good."""
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"{c} of {n} attempts succeeded and k is {k}; expected 0<=c<=n, 1<=k<=n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Attempts in a few numbers."""

    attempts: int
    tasks: int
    reward: float | None
    """Mean over tasks of the mean over a task's attempts; None without any."""
    pass_at: dict[int, float] = field(default_factory=dict)
    pass_hat: dict[int, float] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    idle_tasks: int = 0
    """Tasks of which the environment says that doing nothing earns the reward."""
    reward_without_idle: float | None = None
    flat_groups: int = 0
    """Groups whose attempts all earned the same: nothing is learned from them."""

    def to_json(self) -> dict[str, Any]:
        return {
            "attempts": self.attempts,
            "tasks": self.tasks,
            "reward": self.reward,
            "pass@k": {str(k): value for k, value in self.pass_at.items()},
            "pass^k": {str(k): value for k, value in self.pass_hat.items()},
            "statuses": self.statuses,
            "idle_tasks": self.idle_tasks,
            "reward_without_idle": self.reward_without_idle,
            "flat_groups": self.flat_groups,
        }


def summarise(attempts: Sequence[Attempt]) -> Summary:
    """The numbers of these attempts; k goes up to the smallest number of attempts a task."""
    by_task = rewards_by_task(attempts)
    most = min((len(rewards) for rewards in by_task.values()), default=0)
    counts = [(len(rewards), sum(r >= _WHOLE for r in rewards)) for rewards in by_task.values()]
    ks = range(1, most + 1)
    idle = {one.task for one in attempts if one.details.get("idle")}
    acting = [fmean(rewards) for task, rewards in by_task.items() if task not in idle]
    return Summary(
        attempts=len(attempts),
        tasks=len(by_task),
        reward=fmean(fmean(rewards) for rewards in by_task.values()) if by_task else None,
        pass_at={k: fmean(pass_at_k(n, c, k) for n, c in counts) for k in ks},
        pass_hat={k: fmean(pass_hat_k(n, c, k) for n, c in counts) for k in ks},
        statuses=dict(Counter(one.status for one in attempts)),
        idle_tasks=len(idle & by_task.keys()),
        reward_without_idle=fmean(acting) if acting else None,
        flat_groups=_flat(attempts),
    )


def rewards_by_task(attempts: Sequence[Attempt]) -> dict[str, list[float]]:
    """Per task the rewards of its attempts that count, in the order of their places."""
    found: dict[str, list[float]] = {}
    for one in sorted(attempts, key=lambda one: (one.task, one.group, one.number)):
        if one.reward is not None:
            found.setdefault(one.task, []).append(one.reward)
    return found


def _flat(attempts: Sequence[Attempt]) -> int:
    groups: dict[str, list[float]] = {}
    for one in attempts:
        if one.reward is not None:
            groups.setdefault(one.group, []).append(one.reward)
    return sum(len(rewards) > 1 and len(set(rewards)) == 1 for rewards in groups.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much more reward the second of two policies earns, task by task."""

    tasks: int
    first: float
    second: float
    change: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        names = ("tasks", "first", "second", "change", "low", "high")
        return {name: getattr(self, name) for name in names}


def compare(
    first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]
) -> Difference | None:
    """Paired over the tasks that both played, resampled by task: tasks differ more than tries.

    None where they share no task. Seeded: the same rewards always give the same interval.
    """
    shared = sorted(first.keys() & second.keys())
    if not shared:
        return None
    one = np.array([fmean(first[task]) for task in shared])
    other = np.array([fmean(second[task]) for task in shared])
    chance = np.random.default_rng(len(shared))
    drawn = chance.integers(0, len(shared), size=(RESAMPLES, len(shared)))
    means = (other - one)[drawn].mean(axis=1)
    edge = (1 - CONFIDENCE) / 2
    return Difference(
        tasks=len(shared),
        first=float(one.mean()),
        second=float(other.mean()),
        change=float((other - one).mean()),
        low=float(np.quantile(means, edge)),
        high=float(np.quantile(means, 1 - edge)),
    )
