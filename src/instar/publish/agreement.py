"""Do the verdicts of a batch fit what the same person said of other replies?

A reply fits a hint if the base model finds it likelier once it has read the hint. Of replies that
a person corrected, few fit the hint that came of it; of those they praised, most fit what they
have been asking for. Held-out turns tell how surely that parts good from bad for this person, and
where between the two the border lies. A batch most of whose verdicts lie on the wrong side was
mixed up or is a lie. What somebody newly wishes for is neither: it comes with a hint of its own,
which the replies it corrects do not fit.

Weights that training changes play no part in this, so that nothing that was learned, well or
badly, can talk the gate round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

ENOUGH = 4
"""Held-out turns of either kind that it takes."""
RELIABLE = 0.75
"""Share of them, over both kinds, that must lie on their side of the border."""
LEAST_ERROR = 0.1
"""What is expected to be on the wrong side, however clear held-out turns are."""
CHANCE = 0.001
"""A batch is at odds with what is known if chance would do this less often: a run has hundreds
of honest batches, and a lie is far from chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a reply with a verdict fits the hint: log-probs of the base with it minus without."""

    turn: str
    good: bool
    mean: float
    """Over the reply's tokens."""
    top: float
    """Of the token that gains most, such as the one that ends a reply where it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What held-out verdicts say of a batch's."""

    turns: int
    opposite: int
    """Turns of the batch on the wrong side of the border."""
    reliable: float
    """Share of held-out turns on their side."""
    at_odds: bool

    def text(self) -> str:
        return (
            f"{self.opposite} of {self.turns} verdicts of the batch are the opposite of what "
            f"held-out ones say of such replies (who are right about {self.reliable:.0%})"
        )


def agreement(batch: Sequence[Fit], held: Sequence[Fit]) -> Agreement | None:
    """None where held-out turns cannot tell."""
    if not batch or min(sum(one.good for one in held), sum(not one.good for one in held)) < ENOUGH:
        return None
    measures: tuple[Callable[[Fit], float], ...] = (lambda x: x.mean, lambda x: x.top)
    reliable, measure = max(((_reliable(held, one), one) for one in measures), key=_first)
    if reliable < RELIABLE:
        return None
    border = _border(held, measure)
    opposite = sum((measure(one) > border) != one.good for one in batch)
    by_chance = _at_least(opposite, of=len(batch), share=max(LEAST_ERROR, 1 - reliable))
    return Agreement(
        turns=len(batch),
        opposite=opposite,
        reliable=reliable,
        at_odds=2 * opposite > len(batch) and by_chance < CHANCE,
    )


def _first(pair: tuple[float, object]) -> float:
    return pair[0]


def _reliable(held: Sequence[Fit], measure: Callable[[Fit], float]) -> float:
    """The share on its side of the border that the others make, the mean of both kinds'."""
    right = {True: 0, False: 0}
    for at, one in enumerate(held):
        border = _border([*held[:at], *held[at + 1 :]], measure)
        right[one.good] += (measure(one) > border) == one.good
    good = sum(one.good for one in held)
    return (right[True] / good + right[False] / (len(held) - good)) / 2


def _border(held: Sequence[Fit], measure: Callable[[Fit], float]) -> float:
    """Where most of either kind are on their side; of equals, the middle one."""
    good = [measure(one) for one in held if one.good]
    bad = [measure(one) for one in held if not one.good]
    values = sorted({*good, *bad})
    between = [(a + b) / 2 for a, b in pairwise(values)] or values

    def right(border: float) -> float:
        above = sum(value > border for value in good) / len(good)
        return above + sum(value <= border for value in bad) / len(bad)

    most = max(map(right, between))
    equals = [border for border in between if right(border) == most]
    return equals[len(equals) // 2]


def _at_least(count: int, *, of: int, share: float) -> float:
    """How likely so many or more of so many are, each with this chance."""
    return sum(math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(count, of + 1))
