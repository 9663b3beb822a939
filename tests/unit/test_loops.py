"""Which tokens of a reply only repeat what it said before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from instar.batch.loops import repeats

IDS = st.lists(st.integers(0, 3), max_size=30)


def test_by_hand() -> None:
    #                   1  2  3  1  2  3  1  4
    assert repeats([1, 2, 3, 1, 2, 3, 1, 4], 3) == (*(False,) * 5, True, True, False)
    assert repeats([7, 7, 7, 7], 2) == (False, False, True, True)
    assert repeats([1, 2, 3, 4], 2) == (False,) * 4
    assert repeats([], 2) == ()


def test_nothing_repeats_where_it_is_off() -> None:
    assert repeats([7] * 9, 0) == (False,) * 9


@given(IDS, st.integers(1, 5))
def test_a_token_repeats_where_its_run_has_ended_before_and_nowhere_else(
    ids: list[int], size: int
) -> None:
    runs = [tuple(ids[end - size : end]) if end >= size else None for end in range(1, len(ids) + 1)]
    assert repeats(ids, size) == tuple(
        run is not None and run in runs[:at] for at, run in enumerate(runs)
    )


@given(IDS, st.integers(1, 5))
def test_what_is_said_twice_is_heard_once(ids: list[int], size: int) -> None:
    """The second time all of it repeats, but for the few tokens that no run has filled yet."""
    found = repeats(ids + ids, size)
    assert not any(found[: min(size, len(found))])
    assert all(found[len(ids) + size - 1 :])
