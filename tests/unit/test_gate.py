"""The gate: what it accepts, what it rejects, and what it says about it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from instar.publish.agreement import Fit
from instar.publish.gate import (
    Correction,
    GateReport,
    Measured,
    Reference,
    Tried,
    _paired,
    decide,
    retention_set,
)

REFERENCES = [
    Reference(kind=kind, question="Why?", answer="So.") for kind in ("fact", "fact", "code")
]


def corrections(kls: Sequence[float], logprobs: Sequence[float] | None = None) -> list[Correction]:
    logprobs = logprobs or [-1.0] * len(kls)
    return [
        Correction(turn=f"t{n}", teacher_kl=kl, wanted_kl=kl, reply_logprob=logprob)
        for n, (kl, logprob) in enumerate(zip(kls, logprobs, strict=True))
    ]


def gate(
    old: Sequence[Correction] = (),
    new: Sequence[Correction] = (),
    *,
    praised: tuple[Sequence[Tried], Sequence[Tried]] = ((), ()),
    tried: tuple[Sequence[Tried], Sequence[Tried]] = ((), ()),
    **changes: Any,
) -> GateReport:
    values: dict[str, Any] = {
        "candidate": "v2",
        "live": "v1",
        "old": Measured(corrections=old, praised=praised[0], tried=tried[0]),
        "new": Measured(corrections=new, praised=praised[1], tried=tried[1]),
        # Far from the teacher, so that only the tests of it feel it.
        "base": Measured(
            corrections=[replace(one, teacher_kl=9.0, reply_logprob=-1.0) for one in old]
        ),
        "references": REFERENCES,
        "base_answers": [-1.0, -2.0, -3.0],
        "new_answers": [-1.0, -2.0, -3.0],
        "tolerance": 0.02,
        "min_retention": 0.95,
    }
    return decide(**values | changes)


def test_a_better_candidate_is_accepted_and_the_report_says_so() -> None:
    report = gate(corrections([0.5, 0.7, 0.6]), corrections([0.4, 0.5, 0.5], [-1.2] * 3))
    assert report.accepted
    assert report.wanted_kl is not None and report.wanted_kl.live == pytest.approx(0.6)
    assert "went from 0.6000 to 0.4667" in report.text()
    assert "retention is 1.000" in report.text()


def test_one_that_does_worse_on_corrections_is_rejected() -> None:
    report = gate(corrections([0.5, 0.7, 0.6, 0.4]), corrections([0.6, 0.8, 0.75, 0.5]))
    assert not report.accepted
    assert len(report.reasons) == 1
    assert "KL to the hinted teacher on 4 held-out corrections" in report.reasons[0]
    assert report.reasons[0].endswith(": worse")
    assert report.text().startswith("v2 against v1: REJECTED")


def test_one_that_likes_the_corrected_reply_more_is_rejected() -> None:
    """As after a batch whose verdicts were flipped."""
    old, new = corrections([0.5] * 6), corrections([0.5] * 6, [-0.8] * 6)
    assert "log-prob of the bad reply" in gate(old, new).reasons[0]


def test_a_little_past_the_teacher_is_fine_while_the_bad_reply_gets_rarer() -> None:
    old = corrections([0.5] * 6)
    assert gate(old, corrections([0.55] * 6, [-1.2] * 6)).accepted
    assert not gate(old, corrections([0.55] * 6, [-1.0] * 6)).accepted
    assert gate(old, corrections([0.4] * 6, [-0.9] * 6)).accepted
    assert not gate(old, corrections([0.55] * 6, [-0.9] * 6)).accepted


@pytest.mark.parametrize(
    ("turns", "may_lose"), [(1, 0.2376), (2, 0.1188), (3, 0.0792), (4, 0.0198), (8, 0.0198)]
)
def test_few_corrections_may_lose_more(turns: int, may_lose: float) -> None:
    """log(1.02) = 0.0198 is the tolerance for four and more; for fewer it is 12 / turns of it."""
    old = corrections([0.5] * turns)
    base = Measured(corrections=old)
    assert gate(old, corrections([0.499 + may_lose] * turns), base=base).accepted
    assert not gate(old, corrections([0.501 + may_lose] * turns), base=base).accepted


def test_three_that_all_lose_a_little_may_do_so_by_chance() -> None:
    """Drawn again they all lose, in each drawing; Student's t with two degrees is not so sure."""
    lost = [0.01, 0.06, 0.105]
    for again, accepted in ((1, True), (4, False)):
        old = corrections([0.5] * 3 * again)
        new = corrections([0.5 + one for one in lost * again])
        report = gate(old, new, base=Measured(corrections=old))
        assert report.accepted is accepted
        assert report.wanted_kl is not None and (report.wanted_kl.low < 0) is accepted


@pytest.mark.parametrize("turns", [2, 3, 4, 8, 16])
def test_chance_alone_is_taken_for_worse_in_one_case_of_twenty(turns: int) -> None:
    chance = np.random.default_rng(turns)
    drawn = chance.normal(size=(600, turns))
    surely = [_paired([0.0] * turns, list(one), margin=0.0).worse for one in drawn]
    assert 0.02 <= np.mean(surely) <= 0.08


def test_an_update_may_give_back_a_quarter_of_what_was_gained_on_the_base() -> None:
    """The bad reply went from -1.0 to -1.4 with earlier updates: 0.1 may come back, not more."""
    old, base = corrections([0.5] * 6, [-1.4] * 6), corrections([0.5] * 6, [-1.0] * 6)
    assert gate(old, corrections([0.5] * 6, [-1.31] * 6), base=Measured(corrections=base)).accepted
    assert not gate(
        old, corrections([0.5] * 6, [-1.29] * 6), base=Measured(corrections=base)
    ).accepted
    # Nothing gained, nothing to give back: the tolerance of log(1.02) alone.
    assert not gate(
        old, corrections([0.5] * 6, [-1.37] * 6), base=Measured(corrections=old)
    ).accepted
    assert gate(old, corrections([0.5] * 6, [-1.39] * 6), base=Measured(corrections=old)).accepted


def test_a_batch_of_opposite_verdicts_is_rejected_however_little_harm_it_did() -> None:
    def fits(good: bool, *values: float) -> list[Fit]:
        return [Fit(turn=f"{good}{n}", good=good, mean=x, top=x) for n, x in enumerate(values)]

    same = corrections([0.5] * 6)
    known = [*fits(True, 0.5, 0.6, 0.5, 0.7), *fits(False, 0.0, 0.1, -0.1, 0.0)]
    base = Measured(corrections=same, fits=known)
    honest = gate(same, same, base=base, batch=fits(True, *[0.6] * 8))
    assert honest.accepted and "0 of 8 verdicts" in honest.text()
    lie = gate(same, same, base=base, batch=fits(False, *[0.6] * 8))
    assert not lie.accepted and "8 of 8 verdicts" in lie.reasons[0]


def praise(*logprobs: float) -> list[Tried]:
    return [
        Tried(turn=f"p{n}", group=f"p{n}", advantage=1.0, reply_logprob=x)
        for n, x in enumerate(logprobs)
    ]


def test_a_doubtful_batch_is_rejected_where_praised_replies_got_rarer_by_it() -> None:
    """Five of five opposite come by chance in 4 of 1,000 batches: not enough by itself."""

    def fits(good: bool, *values: float) -> list[Fit]:
        return [Fit(turn=f"{good}{n}", good=good, mean=x, top=x) for n, x in enumerate(values)]

    same = corrections([0.5] * 6)
    known = [*fits(True, 0.5, 0.6, 0.5, 0.7), *fits(False, 0.0, 0.1, -0.1, 0.0)]
    asked = {"base": Measured(corrections=same, fits=known), "batch": fits(False, *[0.6] * 5)}
    before, rarer = praise(*[-1.0] * 6), praise(*[-1.01] * 6)
    assert gate(same, same, praised=(before, before), **asked).accepted
    report = gate(same, same, praised=(before, rarer), **asked)
    assert not report.accepted and report.reasons[0].endswith("and praised replies got rarer")
    honest = fits(True, *[0.6] * 5)
    assert gate(same, same, praised=(before, rarer), **{**asked, "batch": honest}).accepted


def test_praised_replies_may_not_get_rarer_for_nothing() -> None:
    """As after lies about good replies, which corrections alone do not show."""
    same = corrections([0.5] * 6)
    before, after = praise(*[-1.0] * 6), praise(*[-1.1] * 6)
    report = gate(same, same, praised=(before, after))
    assert not report.accepted
    assert "minus the log-prob of 6 praised replies went from 1.0000 to 1.1000" in report.text()
    assert gate(same, same, praised=(after, before)).accepted
    # They were gained on the base, by which a quarter of that may come back.
    gained = Measured(corrections=same, praised=praise(*[-1.5] * 6))
    assert gate(same, same, praised=(before, after), base=gained).accepted
    # Lies leave hints as they are, so coming nearer to the teacher is no excuse.
    assert not gate(same, corrections([0.3] * 6), praised=(before, after)).accepted
    # What is gained on corrections may cost a little there, and the other way round.
    assert gate(same, corrections([0.5] * 6, [-1.2] * 6), praised=(before, after)).accepted
    assert gate(same, corrections([0.5] * 6, [-0.9] * 6), praised=(after, before)).accepted
    assert not gate(same, corrections([0.5] * 6, [-0.9] * 6), praised=(before, after)).accepted


def test_three_praised_replies_are_too_few_to_tell() -> None:
    few = gate(praised=(praise(-1.0, -1.0, -1.0), praise(-2.0, -2.0, -2.0)))
    assert few.accepted and few.praised is None
    assert not gate(praised=(praise(*[-1.0] * 4), praise(*[-2.0] * 4))).accepted
    unequal = gate(praised=(praise(*[-1.0] * 4), praise(*[-1.0] * 5)))
    assert "same held-out turns" in unequal.text()


def test_a_policy_past_its_teacher_is_measured_by_what_is_left_to_learn() -> None:
    """Where the verdict overruled the teacher, its distance is no loss."""
    old = corrections([0.5] * 6)
    past = [replace(one, teacher_kl=0.7, wanted_kl=0.4) for one in old]
    assert gate(old, past).accepted
    assert not gate(past, old).accepted


def test_one_that_is_further_from_the_teacher_than_the_base_has_left_the_topic() -> None:
    old, base = corrections([0.5] * 6), corrections([0.6] * 6)
    assert gate(old, corrections([1.59] * 6, [-1.2] * 6), base=Measured(corrections=base)).accepted
    report = gate(old, corrections([1.61] * 6, [-3.0] * 6), base=Measured(corrections=base))
    assert not report.accepted
    assert "much further than the 0.6000 of the base" in report.reasons[0]


def test_chance_and_small_changes_do_not_reject() -> None:
    noisy = gate(corrections([0.5] * 8), corrections([0.9, 0.2, 0.9, 0.2, 0.9, 0.2, 0.9, 0.2]))
    assert noisy.wanted_kl is not None
    assert noisy.wanted_kl.candidate > noisy.wanted_kl.live * 1.02
    assert noisy.accepted
    assert gate(corrections([0.5] * 8), corrections([0.505] * 8)).accepted
    assert not gate(corrections([0.5] * 8), corrections([0.52] * 8)).accepted


def test_a_single_turn_is_judged_by_the_tolerance_alone() -> None:
    assert gate(corrections([0.5]), corrections([0.505])).accepted
    assert not gate(corrections([0.5]), corrections([0.8])).accepted


def test_without_corrections_only_retention_counts() -> None:
    report = gate()
    assert report.accepted and "no held-out corrections yet" in report.text()
    assert report.wanted_kl is None


def test_retention_below_the_floor_rejects() -> None:
    lower = [value + math.log(0.94) for value in (-1.0, -2.0, -3.0)]
    report = gate(new_answers=lower)
    assert not report.accepted
    assert report.retention == pytest.approx(0.94)
    assert report.reasons == ("retention is 0.940, below the 0.95 that is asked for",)
    assert gate(new_answers=lower, min_retention=0.93).accepted
    one_kind = gate(new_answers=[-1.0, -2.0, -3.1])
    assert one_kind.accepted
    assert one_kind.retention_by_kind == {
        "fact": pytest.approx(1.0),
        "code": pytest.approx(math.exp(-0.1)),
    }
    nothing = gate(references=(), base_answers=(), new_answers=())
    assert nothing.accepted and "was not measured" in nothing.text()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"old": corrections([0.5]), "new": ()}, "same held-out turns"),
        ({"old": corrections([0.5, 0.5]), "new": corrections([0.5])}, "same held-out turns"),
        (
            {"old": corrections([0.5]), "new": corrections([0.5]), "base": Measured()},
            "same held-out turns",
        ),
        ({"new_answers": [-1.0]}, "not every reference answer"),
        ({"new_answers": [-1.0, math.nan, -3.0]}, "1 measurements are not finite"),
        ({"old": corrections([0.5]), "new": corrections([math.inf])}, "not finite"),
    ],
)
def test_what_could_not_be_measured_rejects(changes: dict[str, Any], why: str) -> None:
    report = gate(**changes)
    assert not report.accepted
    assert why in report.reasons[0]


numbers = st.floats(0, 5)
measured = st.lists(st.tuples(numbers, numbers), max_size=12)


@runs(deadline=None)
@given(old=measured, data=st.data())
def test_a_report_is_the_same_each_time_and_survives_json(
    old: list[tuple[float, float]], data: st.DataObject
) -> None:
    new = data.draw(st.lists(st.tuples(numbers, numbers), min_size=len(old), max_size=len(old)))
    made = [corrections([k for k, _ in one], [-p for _, p in one]) for one in (old, new)]
    report = gate(*made)
    assert gate(*made) == report
    assert GateReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    # Whoever measures the same twice never loses against oneself.
    assert gate(made[0], list(reversed(made[0]))).accepted


def test_the_retention_set_is_varied_and_clean() -> None:
    found = retention_set()
    assert len(found) >= 64
    assert len({one.question for one in found}) == len(found)
    kinds = [one.kind for one in found]
    assert {"fact", "how_to", "story", "list", "translation", "code", "small_talk"} <= set(kinds)
    assert all(kinds.count(kind) >= 6 for kind in set(kinds))
    for one in found:
        assert one.question == one.question.strip() and one.answer == one.answer.strip()
        assert 3 <= len(one.answer) <= 300


def attempts(
    *logprobs: float, advantages: Sequence[float] = (0.5, -0.5, 0.5, -0.5), a_task: int = 1
) -> list[Tried]:
    return [
        Tried(turn=f"t{n}", group=f"g{n // a_task}", advantage=worth, reply_logprob=logprob)
        for n, (worth, logprob) in enumerate(zip(advantages, logprobs, strict=True))
    ]


def test_what_failed_on_held_out_tasks_may_not_become_likelier() -> None:
    before = attempts(-1.0, -1.0, -1.0, -1.0)
    better = gate(tried=(before, attempts(-0.8, -1.3, -0.9, -1.2)))
    assert better.accepted
    # -0.5 x -0.8, 0.5 x -1.3, -0.5 x -0.9 and 0.5 x -1.2 are -0.4 in all, before 0.
    assert better.attempts is not None
    assert better.attempts.live == pytest.approx(0.0)
    assert better.attempts.candidate == pytest.approx(-0.1)
    assert "4 held-out tasks" in better.text()
    worse = gate(tried=(before, attempts(-1.2, -0.8, -1.3, -0.7)))
    assert not worse.accepted
    assert worse.attempts is not None and worse.attempts.worse


def test_many_attempts_at_few_tasks_are_no_proof() -> None:
    """Attempts at one task fare alike, however many there are."""
    worths = (0.5, -0.5) * 8
    before = (-1.0,) * 16
    after = (-1.2, -0.8) * 8

    def report(a_task: int) -> GateReport:
        old, new = (attempts(*some, advantages=worths, a_task=a_task) for some in (before, after))
        return gate(tried=(old, new))

    few = report(8)
    assert few.accepted and few.attempts is None
    assert "2 held-out tasks are too few" in few.text()
    enough = report(4)
    assert not enough.accepted
    assert enough.attempts is not None
    assert enough.attempts.live == pytest.approx(0.0)
    assert enough.attempts.candidate == pytest.approx(0.1)
    mixed = (*after[:12], -0.5, -1.5, -0.5, -1.5)
    old = attempts(*before, advantages=worths, a_task=4)
    assert gate(tried=(old, attempts(*mixed, advantages=worths, a_task=4))).accepted


def test_attempts_that_do_not_match_decide_nothing() -> None:
    report = gate(tried=(attempts(-1, -1, -1, -1), attempts(-1, -1, -1, -1)[:3]))
    assert not report.accepted
    assert "same held-out turns" in report.text()
