"""Verdicts of a batch against what held-out ones say of such replies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.publish.agreement import Fit, agreement


def fits(good: list[float], bad: list[float], *, top: float = 0.0) -> list[Fit]:
    said = [(True, value) for value in good] + [(False, value) for value in bad]
    return [Fit(turn=f"t{n}", good=yes, mean=x, top=top) for n, (yes, x) in enumerate(said)]


HELD = fits([0.4, 0.5, 0.6, 0.7], [-0.2, -0.1, 0.0, 0.1])
"""Praised replies fit, corrected ones do not; the border is 0.25."""


def flipped(batch: list[Fit]) -> list[Fit]:
    return [replace(one, good=not one.good) for one in batch]


def test_an_honest_batch_fits_and_its_opposite_does_not() -> None:
    batch = fits([0.3, 0.5, 0.6, 0.8, 0.4, 0.5], [0.1, -0.3])
    found = agreement(batch, HELD)
    assert found is not None
    assert (found.turns, found.opposite, found.at_odds) == (8, 0, False)
    # None of four was wrong on either side: (0 + 1) / (4 + 2) each.
    assert found.expected == pytest.approx(8 / 6)
    lie = agreement(flipped(batch), HELD)
    assert lie is not None and lie.at_odds and lie.opposite == 8
    assert lie.text().startswith("8 of 8 verdicts of the batch are the opposite")


def test_the_border_lies_in_the_middle_of_the_gap() -> None:
    found = agreement(fits([0.26, 0.24], []), HELD)
    assert found is not None and found.opposite == 1


def test_half_of_a_batch_may_be_odd_and_so_may_three_of_four() -> None:
    """Four held-out turns a side leave much open: even five of five come by chance."""
    half = agreement(fits([0.5, 0.5, 0.0, 0.0], []), HELD)
    assert half is not None and half.opposite == 2 and not half.at_odds and not half.doubtful
    most = agreement(fits([0.5, 0.0, 0.0, 0.0, 0.0], []), HELD)
    assert most is not None and most.opposite == 4 and not most.at_odds
    # Five of five: 1/6 x 2/7 x 3/8 x 4/9 x 5/10 = 0.0040; a sixth, x 6/11, makes it 0.0022.
    every = agreement(fits([0.0] * 5, []), HELD)
    assert every is not None and not every.at_odds and every.doubtful
    assert every.chance == pytest.approx(120 / (6 * 7 * 8 * 9 * 10))
    more = agreement(fits([0.0] * 6, []), HELD)
    assert more is not None and more.at_odds


def test_the_better_a_side_is_known_the_fewer_mistakes_are_a_lie() -> None:
    """Eight of twelve: a border that four turns make may lie badly, one of twelve hardly does."""
    batch = fits([0.5] * 4 + [0.0] * 8, [])
    few = agreement(batch, HELD)
    assert few is not None and few.opposite == 8 and not few.at_odds
    many = agreement(batch, [*HELD, *HELD, *HELD])
    assert many is not None and many.opposite == 8 and many.at_odds


def test_each_held_out_turn_is_judged_by_the_others() -> None:
    """One praised reply does not fit: of the five below the border one is wrong."""
    held = fits([0.4, 0.5, 0.6, 0.7, -0.3], [-0.2, -0.1, 0.0, 0.1])
    below = agreement(fits([], [0.0]), held)
    above = agreement(fits([0.5], []), held)
    assert below is not None and below.expected == pytest.approx((1 + 1) / (5 + 2))
    assert above is not None and above.expected == pytest.approx((0 + 1) / (4 + 2))


def test_what_is_often_corrected_although_it_fits_is_no_lie_when_it_is_again() -> None:
    """Late in a run bad replies are nearly right: of those that fit, four of twelve are bad."""
    held = fits([0.5] * 8, [0.0, 0.1, 0.0, 0.1, 0.5, 0.5, 0.5, 0.5])
    again = agreement(fits([0.5] * 5, [0.5] * 7), held)
    assert again is not None and again.opposite == 7 and not again.at_odds
    lie = agreement(fits([], [0.5] * 12), held)
    assert lie is not None and lie.at_odds


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(fits([0.5] * 9, [0.0] * 3), id="few corrections"),
        pytest.param(fits([0.5] * 3, [0.0] * 9), id="little praise"),
        pytest.param([], id="nothing"),
    ],
)
def test_what_cannot_be_told_is_left_open(held: list[Fit]) -> None:
    assert agreement(fits([0.0] * 8, []), held) is None


def test_where_fits_say_nothing_nothing_is_at_odds() -> None:
    held = fits([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4])
    for batch in (fits([0.0] * 8, []), fits([], [0.5] * 8)):
        found = agreement(batch, held)
        assert found is not None and not found.at_odds


def test_the_token_that_gains_most_decides_where_it_tells_more() -> None:
    """As for long plain texts, which a hint hardly touches but where they end."""
    same = fits([0.0] * 4, [0.0] * 4)
    held = [replace(one, top=2.0 if one.good else 0.5) for one in same]
    found = agreement(fits([0.0] * 6, [], top=1.9), held)
    assert found is not None and found.opposite == 0
    assert (lie := agreement(fits([], [0.0] * 6, top=1.9), held)) is not None and lie.at_odds


@given(
    st.lists(st.floats(-2, 2), min_size=4, max_size=12),
    st.lists(st.floats(-2, 2), min_size=4, max_size=12),
    st.lists(st.tuples(st.booleans(), st.floats(-2, 2)), min_size=1, max_size=16),
)
def test_a_batch_and_its_opposite_are_never_both_at_odds(
    good: list[float], bad: list[float], told: list[tuple[bool, float]]
) -> None:
    batch = [Fit(turn="t", good=yes, mean=x, top=x) for yes, x in told]
    one, other = agreement(batch, fits(good, bad)), agreement(flipped(batch), fits(good, bad))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.opposite + other.opposite == len(batch)
        assert not (one.at_odds and other.at_odds)
