"""Which tokens of a reply only repeat what it said before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from instar.batch.loops import circles, repeats

IDS = st.lists(st.integers(0, 3), max_size=30)


def test_by_hand() -> None:
    #                   1  2  3  1  2  3  1  4
    assert repeats([1, 2, 3, 1, 2, 3, 1, 4], 3) == (*(False,) * 3, *(True,) * 4, False)
    assert repeats([7, 7, 7, 7], 2) == (False, True, True, True)
    assert repeats([1, 2, 3, 4], 2) == (False,) * 4
    assert repeats([], 2) == ()


def test_nothing_repeats_where_it_is_off() -> None:
    assert repeats([7] * 9, 0) == (False,) * 9


@given(IDS, st.integers(1, 5))
def test_a_token_repeats_if_a_run_with_it_has_stood_before(ids: list[int], size: int) -> None:
    runs = [ids[at : at + size] for at in range(len(ids) - size + 1)]
    again = [at for at, run in enumerate(runs) if run in runs[:at]]
    assert repeats(ids, size) == tuple(
        any(at <= token < at + size for at in again) for token in range(len(ids))
    )


@given(IDS, st.integers(1, 5))
def test_of_what_is_said_twice_the_second_time_repeats(ids: list[int], size: int) -> None:
    found = repeats(ids + ids, size)
    assert all(found[len(ids) :]) or len(ids) < size
    assert not any(found[:1])


def test_a_reply_of_which_little_repeats_goes_in_no_circle() -> None:
    """Two of eight tokens are a quarter; of nine they are less."""
    assert circles([1, 2, 3, 4, 5, 6, 1, 2], 2) == (*(False,) * 6, True, True)
    assert circles([1, 2, 3, 4, 5, 6, 7, 1, 2], 2) == (False,) * 9
    assert circles([], 2) == ()
