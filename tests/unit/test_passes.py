"""pass@k, pass^k and the paired interval, against numbers worked out by hand or by counting."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.envs.passes import compare, pass_at_k, pass_hat_k, summarise
from instar.types import Attempt, AttemptStatus


def attempt(task: str, number: int, reward: float | None, /, **changes: object) -> Attempt:
    status: AttemptStatus = "completed" if reward is not None else "environment_error"
    values = {
        "owner": "a",
        "session": f"{task}/{number}",
        "environment": "tau",
        "run": "r",
        "task": task,
        "group": f"r/0/{task}",
        "number": number,
        "size": 8,
        "status": status,
        "reward": reward,
    }
    return Attempt(**values | changes)  # type: ignore[arg-type]


@given(st.integers(1, 8), st.data())
def test_both_are_what_counting_all_draws_gives(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, 1, 0), (3, 1, 4), (3, -1, 1)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        pass_at_k(n, c, k)


def test_what_the_environment_spoiled_is_in_no_number() -> None:
    played = [
        *(attempt("one", n, reward) for n, reward in enumerate((1.0, 0.0, None, 1.0))),
        *(attempt("two", n, reward) for n, reward in enumerate((0.5, 0.5, 0.5))),
    ]
    found = summarise(played)
    # Two of three succeeded at `one`; half a reward is no success at `two`.
    assert found.reward == pytest.approx((2 / 3 + 0.5) / 2)
    assert found.pass_at == pytest.approx({1: 1 / 3, 2: 0.5, 3: 0.5})
    assert found.pass_hat == pytest.approx({1: 1 / 3, 2: 1 / 6, 3: 0.0})
    assert found.statuses == {"completed": 6, "environment_error": 1}
    assert found.flat_groups == 1
    idle = [attempt("easy", 0, 1.0, details={"idle": True}), attempt("one", 0, 0.25)]
    both = summarise(idle)
    assert (both.reward, both.idle_tasks, both.reward_without_idle) == (0.625, 1, 0.25)


def test_no_attempts_have_no_reward() -> None:
    found = summarise([attempt("one", 0, None)])
    assert found.reward is None
    assert found.pass_at == {}


def test_the_difference_is_paired_by_task() -> None:
    # Tasks differ widely, but the second is better by 0.1 on each: the interval has no width.
    first = {f"t{n}": [n / 10] for n in range(9)}
    second = {f"t{n}": [n / 10 + 0.1] for n in range(9)} | {"only here": [0.0]}
    found = compare(first, second)
    assert found is not None
    assert (found.tasks, round(found.change, 9)) == (9, 0.1)
    assert found.low == pytest.approx(0.1)
    assert found.high == pytest.approx(0.1)
    assert compare(first, {"other": [1.0]}) is None


def test_the_interval_of_a_coin_is_about_right() -> None:
    # 50 differences of +1 and 50 of 0: mean 0.5, standard error 0.05, so 0.5 +- 0.098.
    first = {f"t{n}": [0.0] for n in range(100)}
    second = {f"t{n}": [float(n % 2)] for n in range(100)}
    found = compare(first, second)
    assert found is not None
    assert found.change == pytest.approx(0.5)
    assert found.low == pytest.approx(0.402, abs=0.02)
    assert found.high == pytest.approx(0.598, abs=0.02)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "environment_error"}, "environment_error with the reward 1.0"),
        ({"reward": None}, "completed with the reward None"),
        ({"reward": 1.5}, "not 0 to 1"),
        ({"number": 8}, "number 8 of 8"),
    ],
)
def test_attempts_that_cannot_be_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attempt("one", 0, 1.0, **{"status": "completed", **changes})
