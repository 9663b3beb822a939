"""Do the verdicts of a batch fit what the same person said of other replies?

A reply fits a hint if the base model finds it likelier once it has read the hint. Of replies that
a person corrected, few fit the hint that came of it; of those they praised, most fit what they
have been asking for. Held-out turns tell where between the two the border lies, and how often a
verdict on either side of it is not what one would think. A batch with many more such verdicts
than that was mixed up or is a lie. What somebody newly wishes for is neither: it comes with a
hint of its own, which the replies it corrects do not fit.

Weights that training changes play no part in this, so that nothing that was learned, well or
badly, can talk the gate round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

ENOUGH = 4
"""Held-out turns of a kind, or tasks, that it takes to reject a version by them: two or three may
all get worse by chance, and a run begins with few."""
LEAST_ERROR = 0.1
"""Share of verdicts expected on the wrong side, however clear held-out turns are."""
CHANCE = 0.003
"""A batch is at odds with what is known if this or worse comes by chance less often. An honest
batch that is lost costs little, and one lie that is learned much."""
DOUBT = 0.1
"""The same where something else speaks against the batch too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a reply with a verdict fits the hint: log-probs of the base with it minus without."""

    turn: str
    good: bool
    mean: float
    """Over the reply's tokens."""
    top: float
    """Of the token that gains most, such as the one that ends a reply where it should."""


Measure = Callable[[Fit], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What held-out verdicts say of a batch's."""

    turns: int
    opposite: int
    """Turns of the batch on the wrong side of the border."""
    expected: float
    """So many would be, by what held-out turns are."""
    chance: float
    """How often so many or more are, by what held-out turns are."""

    @property
    def at_odds(self) -> bool:
        """Most are, and not by chance."""
        return self._most and self.chance < CHANCE

    @property
    def doubtful(self) -> bool:
        """Not enough to reject a batch by itself."""
        return self._most and self.chance < DOUBT

    @property
    def _most(self) -> bool:
        return 2 * self.opposite > self.turns

    def text(self) -> str:
        return (
            f"{self.opposite} of {self.turns} verdicts of the batch are the opposite of what "
            f"held-out ones say of such replies; {self.expected:.1f} were to be expected"
        )


def agreement(batch: Sequence[Fit], held: Sequence[Fit]) -> Agreement | None:
    """None where held-out turns are too few to tell."""
    if not batch or min(sum(one.good for one in held), sum(not one.good for one in held)) < ENOUGH:
        return None
    measures: tuple[Measure, ...] = (lambda one: one.mean, lambda one: one.top)
    wrong = [_wrong(held, one) for one in measures]
    at = min(range(len(measures)), key=lambda n: wrong[n][True][0] + wrong[n][False][0])
    measure, border = measures[at], _border(held, measures[at])
    above = sum(measure(one) > border for one in batch)
    likely = _added(
        _mistakes(above, *wrong[at][True]), _mistakes(len(batch) - above, *wrong[at][False])
    )
    opposite = sum((measure(one) > border) != one.good for one in batch)
    return Agreement(
        turns=len(batch),
        opposite=opposite,
        expected=sum(count * chance for count, chance in enumerate(likely)),
        chance=sum(likely[opposite:]),
    )


def _wrong(held: Sequence[Fit], measure: Measure) -> dict[bool, tuple[int, int]]:
    """Above and below the border that the others make: how many are wrong there, of how many."""
    found = {True: (0, 0), False: (0, 0)}
    for at, one in enumerate(held):
        above = measure(one) > _border([*held[:at], *held[at + 1 :]], measure)
        missed, count = found[above]
        found[above] = (missed + (above != one.good), count + 1)
    return found


def _border(held: Sequence[Fit], measure: Measure) -> float:
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


def _mistakes(turns: int, missed: int, seen: int) -> list[float]:
    """How likely 0, 1, ... of so many turns are wrong, where `missed` of `seen` were.

    How often a side is wrong is known only as well as few turns tell it, and a border that lies
    badly is wrong for a whole batch: so the share itself is a matter of chance (beta-binomial).
    """
    # One more of each kind than was seen: a side without a mistake is no proof that none is made.
    bad, fine = missed + 1, float(seen - missed + 1)
    fine = min(fine, bad * (1 - LEAST_ERROR) / LEAST_ERROR)
    return [
        math.comb(turns, count)
        * math.exp(_log_beta(bad + count, fine + turns - count) - _log_beta(bad, fine))
        for count in range(turns + 1)
    ]


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """How likely each sum of two counts is."""
    out = [0.0] * (len(one) + len(other) - 1)
    for at, a in enumerate(one):
        for by, b in enumerate(other):
            out[at + by] += a * b
    return out
