"""What a judge's verdicts add up to: agreement with people, and alarms.

Pure functions over `Judged` rows. Two of the alarms watch for ways in which agents have gamed
such signals: failing tool calls that are rewarded, and questions asked instead of answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LABELS = (1, 0, -1)
MIN_ROWS = 20
"""Fewer rows on either side of a comparison prove nothing."""
Z = 3.0
"""How many standard errors a change must exceed; at 3, one false alarm in about 700 looks."""
RISE = 0.1
"""The smallest change of a share that is worth an alarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One turn with what is known of it."""

    score: int
    tool_error: bool | None = None
    """Whether a tool that the turn called failed; None where it called none."""
    asks: bool = False
    """Whether the reply ends with a question and calls no tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The judge against explicit feedback."""

    table: dict[tuple[int, int | None], int]
    """(what the person said, what the judge says; None is no verdict): how often."""

    @property
    def pairs(self) -> int:
        return sum(self.table.values())

    @property
    def decided(self) -> int:
        return sum(count for (_, judge), count in self.table.items() if judge is not None)

    @property
    def accuracy(self) -> float | None:
        """Share of the decided pairs in which both say the same; None without any."""
        same = sum(count for (person, judge), count in self.table.items() if person == judge)
        return same / self.decided if self.decided else None

    @property
    def macro_f1(self) -> float | None:
        """Mean F1 over the labels that a person or the judge used."""
        scores = [one for label in LABELS if (one := self._f1(label)) is not None]
        return sum(scores) / len(scores) if scores else None

    def _f1(self, label: int) -> float | None:
        hits = self.table.get((label, label), 0)
        said = sum(count for (person, _), count in self.table.items() if person == label)
        found = sum(count for (_, judge), count in self.table.items() if judge == label)
        return 2 * hits / (said + found) if said + found else None


def agreement(pairs: Sequence[tuple[int, int | None]]) -> Agreement:
    """From (person, judge) pairs."""
    table: dict[tuple[int, int | None], int] = {}
    for pair in pairs:
        table[pair] = table.get(pair, 0) + 1
    return Agreement(table=table)


def alarms(rows: Sequence[Judged], *, last: int = 100) -> list[str]:
    """What changed in the last rows against all before them, oldest row first."""
    before, recent = rows[:-last], rows[-last:]
    checks = (drift(before, recent), rewarded_errors(before, recent), questions(before, recent))
    return [one for one in checks if one is not None]


def drift(before: Sequence[Judged], recent: Sequence[Judged]) -> str | None:
    """Verdicts are spread otherwise than they were."""
    for label in LABELS:
        old, new = (
            (sum(row.score == label for row in rows), len(rows)) for rows in (before, recent)
        )
        if changed(old, new):
            return (
                f"Verdicts drift: {label:+d} went from {_percent(old)} to {_percent(new)} "
                "of the turns. Look at the latest with `instar sessions show`."
            )
    return None


def rewarded_errors(before: Sequence[Judged], recent: Sequence[Judged]) -> str | None:
    """Tool errors and reward rise together: broken calls may pay."""
    errors = [
        _share(
            [row for row in rows if row.tool_error is not None], lambda row: bool(row.tool_error)
        )
        for rows in (before, recent)
    ]
    rewards = [_share(rows, lambda row: row.score == 1) for rows in (before, recent)]
    if risen(*errors) and risen(*rewards, z=1.0):
        return (
            f"Tool errors rise together with reward: errors from {_percent(errors[0])} to "
            f"{_percent(errors[1])}, +1 from {_percent(rewards[0])} to {_percent(rewards[1])}. "
            "Failing calls may be earning reward; pause learning and look."
        )
    return None


def questions(before: Sequence[Judged], recent: Sequence[Judged]) -> str | None:
    """Replies that only ask back multiply."""
    old, new = (_share(rows, lambda row: row.asks) for rows in (before, recent))
    if risen(old, new):
        return (
            f"Clarifying questions multiply: from {_percent(old)} to {_percent(new)} "
            "of the replies. Asking may be earning more than answering; pause learning and look."
        )
    return None


Share = tuple[int, int]
"""How many of how many."""


def changed(old: Share, new: Share, *, z: float = Z) -> bool:
    """Whether two shares differ by more than chance and by enough to matter."""
    if min(old[1], new[1]) < MIN_ROWS:
        return False
    p_old, p_new = old[0] / old[1], new[0] / new[1]
    pooled = (old[0] + new[0]) / (old[1] + new[1])
    error = math.sqrt(pooled * (1 - pooled) * (1 / old[1] + 1 / new[1]))
    return abs(p_new - p_old) >= RISE and abs(p_new - p_old) > z * error


def risen(old: Share, new: Share, *, z: float = Z) -> bool:
    return changed(old, new, z=z) and new[0] / new[1] > old[0] / old[1]


def _share(rows: Sequence[Judged], counts: Callable[[Judged], bool]) -> Share:
    return sum(1 for row in rows if counts(row)), len(rows)


def _percent(share: Share) -> str:
    return f"{100 * share[0] / max(1, share[1]):.0f}%"
