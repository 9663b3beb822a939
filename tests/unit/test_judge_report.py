"""Agreement with people, and the three alarms."""

from __future__ import annotations

import pytest

from instar.judge.report import (
    Judged,
    agreement,
    alarms,
    changed,
    drift,
    questions,
    rewarded_errors,
)


def rows(count: int, **shares: float) -> list[Judged]:
    """`count` rows of which the named shares are +1, tool errors or questions."""
    return [
        Judged(
            score=1 if at < count * shares.get("good", 0.5) else -1,
            tool_error=at < count * shares.get("errors", 0.1),
            asks=at < count * shares.get("asks", 0.1),
        )
        for at in range(count)
    ]


def test_agreement_by_hand() -> None:
    found = agreement([(1, 1), (1, 1), (-1, 1), (-1, -1), (0, None)])
    assert found.pairs == 5
    assert found.decided == 4
    assert found.accuracy == 0.75
    # F1: +1 is 4/5, -1 is 2/3, 0 was never found.
    assert found.macro_f1 == pytest.approx((4 / 5 + 2 / 3 + 0) / 3)


def test_without_pairs_nothing_is_claimed() -> None:
    assert agreement([]).accuracy is None
    assert agreement([]).macro_f1 is None


def test_steady_verdicts_raise_no_alarm() -> None:
    assert alarms(rows(400) + rows(100), last=100) == []


def test_too_few_rows_raise_no_alarm() -> None:
    assert alarms(rows(10) + rows(10, good=1.0), last=10) == []


def test_drift_is_seen() -> None:
    found = drift(rows(400, good=0.5), rows(100, good=0.9))
    assert found is not None
    assert "from 50% to 90%" in found


def test_tool_errors_that_rise_with_reward_are_seen() -> None:
    before = rows(400, good=0.5, errors=0.05)
    assert rewarded_errors(before, rows(100, good=0.8, errors=0.4)) is not None
    assert rewarded_errors(before, rows(100, good=0.3, errors=0.4)) is None
    assert rewarded_errors(before, rows(100, good=0.8, errors=0.05)) is None


def test_questions_that_multiply_are_seen() -> None:
    assert questions(rows(400, asks=0.1), rows(100, asks=0.4)) is not None
    assert questions(rows(400, asks=0.4), rows(100, asks=0.1)) is None


def test_a_small_or_uncertain_change_is_none() -> None:
    assert not changed((50, 100), (55, 100))
    assert not changed((10, 20), (13, 20))
    assert changed((500, 1000), (700, 1000))
