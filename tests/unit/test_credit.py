"""Credit by hand, and one test for each way in which another system is known to go wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sampled_turns import Score, turn

from instar.batch.credit import (
    METHODS,
    Credit,
    CreditSettings,
    Judged,
    Lines,
    binary,
    combine,
    credit,
    opd,
    says_nothing,
)
from instar.types import Finish

PLAIN = CreditSettings()


def judged(name: str, score: Score | None, *, size: int = 1, **more: Any) -> Judged:
    known = {"group", "attempt", "reward", "value", "age", "hinted_ids", "teacher_logprobs"}
    own = {key: more.pop(key) for key in known & more.keys()}
    return Judged(turn=turn(name, [1], [2] * size, score=score, **more), **own)


def first(credits: dict[str, Credit]) -> dict[str, float]:
    return {name: one.advantages[0] for name, one in credits.items()}


def test_binary_is_the_verdict_on_every_sampled_token() -> None:
    found = binary([judged("a", 1, size=3), judged("b", -1)], PLAIN)
    assert found["a"].advantages == (1.0, 1.0, 1.0)
    assert found["b"].advantages == (-1.0,)
    assert found["a"].distill_weights == (0.0, 0.0, 0.0)


def test_groups_are_compared_with_their_mean() -> None:
    group: list[Judged] = [
        judged(name, score, group="g") for name, score in (("a", 1), ("b", 1), ("c", -1), ("d", -1))
    ]
    alone = judged("e", 1, group="h")
    assert first(binary([*group, alone], PLAIN)) == {"a": 1, "b": 1, "c": -1, "d": -1, "e": 1}
    three = [judged("a", 1, group="g"), judged("b", 0, group="g"), judged("c", -1, group="g")]
    scaled = binary(three, CreditSettings(group_scale="std"))
    assert first(scaled)["a"] == pytest.approx(1 / (2 / 3) ** 0.5)


def test_groups_without_variance_are_counted_and_not_trained() -> None:
    found = credit([judged("a", 1, group="g"), judged("b", 1, group="g")], "binary", PLAIN)
    assert found.turns == ()
    assert found.counts == {"zero_variance_groups": 1, "no_credit": 2}
    assert found.silent == {"a": "no_credit", "b": "no_credit"}


def test_centred_verdicts_count_from_their_mean_and_zero_says_nothing() -> None:
    """Three -1 and one +1: the mean of them and of four zeros is -2 / 8."""
    settings = CreditSettings(advantage="centred")
    turns = [judged(name, -1) for name in "abc"] + [judged("d", 1), judged("e", 0)]
    assert first(binary(turns, settings)) == {"a": -0.75, "b": -0.75, "c": -0.75, "d": 1.25, "e": 0}
    assert first(binary([judged("a", -1)], settings)) == {"a": -0.8}
    assert first(binary([judged("a", 1), judged("b", 1)], settings)) == pytest.approx(
        {"a": 2 / 3, "b": 2 / 3}
    )


def line(scores: list[Score | None], values: list[float] | None = None) -> list[Judged]:
    """Turns of one session, each the next of the one before."""
    return [
        judged(
            f"t{n}",
            score,
            parent=f"t{n - 1}" if n else None,
            value=None if values is None else values[n],
        )
        for n, score in enumerate(scores)
    ]


def test_gae_along_a_session() -> None:
    settings = CreditSettings(advantage="gae", gamma=0.5, gae_lambda=0.5)
    found = binary(line([1, 0, -1]), settings)
    # -1; 0 + 0.25 * -1; 1 + 0.25 * -0.25
    assert first(found) == pytest.approx({"t2": -1.0, "t1": -0.25, "t0": 0.9375})
    assert found["t0"].target is None


def test_gae_with_value_estimates_gives_their_targets() -> None:
    settings = CreditSettings(advantage="gae", gamma=0.5, gae_lambda=0.5)
    found = binary(line([1, -1], values=[0.4, 0.2]), settings)
    # t1: -1 - 0.2; t0: 1 + 0.5 * 0.2 - 0.4 + 0.25 * -1.2
    assert first(found) == pytest.approx({"t1": -1.2, "t0": 0.4})
    assert found["t1"].target == pytest.approx(-1.0)
    assert found["t0"].target == pytest.approx(0.8)
    assert found["t0"].value == 0.4


def test_gae_takes_the_mean_of_retries() -> None:
    settings = CreditSettings(advantage="gae", gamma=1.0, gae_lambda=1.0)
    turns = [judged("r", 0), judged("a", 1, parent="r"), judged("b", 0, parent="r")]
    assert first(binary(turns, settings))["r"] == 0.5


def test_gae_passes_over_turns_without_a_verdict() -> None:
    settings = CreditSettings(advantage="gae", gamma=0.5, gae_lambda=1.0)
    found = binary(line([0, None, 1]), settings)
    assert first(found) == {"t0": 0.5, "t2": 1.0}


def test_gae_leads_past_turns_that_it_is_not_given() -> None:
    """Unjudged, private and held-out turns are not loaded; the session goes on behind them."""
    settings = CreditSettings(advantage="gae", gamma=0.5, gae_lambda=1.0)
    ends = [judged("a", 0, parent="side"), judged("c", 1, parent="b2"), judged("e", -1, parent="d")]
    chain = {"root": None, "side": "root", "a": "side", "b1": "a", "b2": "b1", "c": "b2"}
    lines = Lines(parents={**chain, "d": "c", "e": "d"})
    # e: -1; c: 1 + 0.5 * -1; a: 0 + 0.5 * 0.5
    assert first(binary(ends, settings, lines)) == {"e": -1.0, "c": 0.5, "a": 0.25}
    assert first(binary(ends, settings)) == {"e": -1.0, "c": 1.0, "a": 0.0}
    # One that trained already, or waits for its turn, counts for what came before it.
    known = Lines(parents=lines.parents, scores={"b1": 1.0})
    # b1: 1 + 0.5 * 0.5; a: 0.5 * 1.25
    assert first(binary(ends, settings, known)) == {"e": -1.0, "c": 0.5, "a": 0.625}
    valued = [judged("a", 0, parent="side", value=0.5), judged("c", 1, parent="b2", value=0.0)]
    found = binary(valued, settings, known)
    assert found["a"].advantages == (0.0 + 0.5 * 0.0 - 0.5 + 0.5 * 1.0,), "b1 has no estimate"
    credited = credit(ends, "binary", settings, lines)
    assert {one.turn.id: got.advantages for one, got in credited.turns}["a"] == (0.25,)


@pytest.mark.parametrize("advantage", ["verdict", "centred", "gae"])
@pytest.mark.parametrize(
    "weights", [(1.0, 0.3), (0.0, 0.3), (1.0, 0.0)], ids=["both", "verdicts", "hints"]
)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_is_said_to_teach_nothing_has_no_credit(
    method: str, weights: tuple[float, float], advantage: Any
) -> None:
    """And all else has some, with nothing but these turns to go by."""
    settings = CreditSettings(advantage=advantage, opd_weight=weights[0], binary_weight=weights[1])
    for score in (-1, 0, 1):
        for hinted in (True, False):
            for finish in ("stop", "length"):
                one = judged("a", score, finish=finish, hinted_ids=(7, 1) if hinted else None)
                why = says_nothing(
                    score,
                    hinted=hinted,
                    truncated=finish == "length",
                    method=method,
                    settings=settings,
                )
                trained = bool(credit([one], method, settings).turns)
                case = (score, hinted, finish, why)
                if advantage == "gae" and not trained:
                    assert score == 0 or finish == "length" or why == "no_hint", case
                else:
                    assert trained == (why is None), case


def test_gae_wants_all_values_or_none() -> None:
    turns = [judged("a", 1, value=0.1), judged("b", 1, parent="a")]
    with pytest.raises(ValueError, match="all or none"):
        binary(turns, CreditSettings(advantage="gae"))


def test_opd_of_sampled_tokens_is_the_clipped_gap() -> None:
    one = judged(
        "a", None, size=3, hint="Be brief.", logprobs=[-1.0, -2.0, -9.0],
        teacher_logprobs=(-3.0, -1.5, -1.0),
    )  # fmt: skip
    found = opd([one], CreditSettings(opd="sampled", opd_clip=2.0))
    assert found["a"].advantages == (-2.0, 0.5, 2.0)


def test_opd_of_whole_distributions_is_a_weight() -> None:
    found = opd([judged("a", -1, size=2, hint="Be brief.", hinted_ids=(5, 1))], PLAIN)
    assert found["a"] == Credit(advantages=(0.0, 0.0), distill_weights=(1.0, 1.0))


def test_no_teacher_is_heard_where_a_reply_repeats_itself() -> None:
    """Of four times the same token, the pair at the second has stood before; the verdict stays."""
    twice = CreditSettings(loop_tokens=2, binary_weight=0.5)
    one = judged("a", -1, size=4, hint="h", hinted_ids=(5,), teacher_logprobs=(0.0,) * 4)
    full, sampled = opd([one], twice), opd([one], replace(twice, opd="sampled"))
    assert full["a"].distill_weights == (1.0, 0.0, 0.0, 0.0)
    assert sampled["a"].advantages == (1.0, 0.0, 0.0, 0.0)
    assert combine([one], twice)["a"].advantages == (-0.5,) * 4
    assert opd([one], replace(twice, loop_tokens=0))["a"].distill_weights == (1.0,) * 4


@pytest.mark.parametrize("kind", ["full", "sampled"])
def test_combine_is_the_weighted_sum_of_its_parts(kind: Any) -> None:
    settings = CreditSettings(opd=kind, opd_weight=0.7, binary_weight=0.3)
    turns = [
        judged("both", -1, hint="h", hinted_ids=(5,), teacher_logprobs=(-0.5,)),
        judged("verdict", 1),
        judged("hint", None, hint="h", hinted_ids=(5,), teacher_logprobs=(-2.5,)),
        judged("neither", None),
    ]
    parts, found = (opd(turns, settings), binary(turns, settings)), combine(turns, settings)
    assert found.keys() == {"both", "verdict", "hint"}
    for name, one in found.items():
        weighted = [(0.7, parts[0].get(name)), (0.3, parts[1].get(name))]
        for stream in ("advantages", "distill_weights"):
            total = sum(weight * getattr(part, stream)[0] for weight, part in weighted if part)
            assert getattr(one, stream)[0] == pytest.approx(total)


def test_every_method_of_the_config_exists() -> None:
    assert set(METHODS) == {"binary", "opd", "combine"}


# --- what goes wrong elsewhere


def test_no_verdict_is_not_a_verdict_of_zero() -> None:
    group = [judged("a", 1, group="g"), judged("b", -1, group="g"), judged("c", None, group="g")]
    found = binary(group, PLAIN)
    assert "c" not in found
    assert first(found) == {"a": 1.0, "b": -1.0}
    assert credit(group, "binary", PLAIN).rewards == (1.0, -1.0)


def test_a_neutral_turn_fills_no_place_in_a_batch() -> None:
    found = credit([judged("a", 0), judged("b", 1)], "binary", PLAIN)
    assert [one.turn.id for one, _ in found.turns] == ["b"]
    assert found.counts["no_credit"] == 1


def test_a_single_turn_is_not_normalised_away() -> None:
    assert first(binary([judged("a", -1, group="g")], PLAIN)) == {"a": -1.0}


def test_a_reply_that_needed_a_hint_is_not_reinforced_as_it_stands() -> None:
    for score in (-1, 0, 1, None):
        one = judged("a", score, hint="h", hinted_ids=(5,), teacher_logprobs=(-1.0,))
        for kind in ("full", "sampled"):
            assert opd([one], CreditSettings(opd=kind))["a"].advantages == (0.0,)


def test_a_verdict_without_a_hint_gets_no_noise_from_a_teacher() -> None:
    settings = CreditSettings(opd="sampled", binary_weight=1.0)
    one = judged("a", 1, teacher_logprobs=(-0.6,))
    assert combine([one], settings)["a"].advantages == (1.0,)


def test_a_failed_teacher_is_no_credit_and_not_zeros() -> None:
    one = judged("a", None, hint="h")
    assert opd([one], PLAIN) == {}
    found = credit([one], "opd", CreditSettings(opd="sampled"))
    assert found.counts == {"nothing_known": 1}


def test_teacher_logprobs_are_never_padded() -> None:
    one = judged("a", None, size=2, hint="h", teacher_logprobs=(-1.0,))
    with pytest.raises(ValueError, match="never padded"):
        opd([one], CreditSettings(opd="sampled"))


def test_an_extreme_gap_to_the_teacher_is_clipped() -> None:
    one = judged("a", None, hint="h", teacher_logprobs=(-90.0,))
    assert opd([one], CreditSettings(opd="sampled"))["a"].advantages == (-5.0,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"finish": "cancelled"}, "cancelled"),
        ({"kind": "side"}, "side"),
        ({"no_train": True}, "private"),
        ({"age": 5}, "stale"),
        ({"size": 0}, "empty"),
        ({"messages": ({"role": "user", "content": [{"type": "image_url"}]},)}, "images"),
    ],
)
def test_turns_that_must_not_be_trained_are_left_out_and_counted(
    changes: dict[str, Any], reason: str
) -> None:
    for method in METHODS:
        out = judged("x", 1, hint="h", hinted_ids=(5,), **changes)
        found = credit([out, judged("a", 1), judged("b", -1)], method, PLAIN)
        assert "x" not in [one.turn.id for one, _ in found.turns]
        assert found.counts[reason] == 1
        assert len(found.rewards) == 2


def test_a_cancelled_turn_is_not_in_the_baseline() -> None:
    group = [judged("a", 1, group="g"), judged("b", -1, group="g")]
    gone = judged("c", -1, group="g", finish="cancelled")
    found = credit([*group, gone], "binary", PLAIN)
    assert [one.advantages[0] for _, one in found.turns] == [1.0, -1.0]


@pytest.mark.parametrize(("score", "expected"), [(1, 0.0), (-1, -1.0)])
def test_a_truncated_reply_earns_no_praise(score: Score, expected: float) -> None:
    finish: Finish = "length"
    assert first(binary([judged("a", score, finish=finish)], PLAIN)) == {"a": expected}
    kept = binary([judged("a", score, finish=finish)], CreditSettings(truncated="keep"))
    assert first(kept) == {"a": score}
    dropped = credit(
        [judged("a", score, finish=finish)], "binary", CreditSettings(truncated="drop")
    )
    assert dropped.counts == {"truncated_dropped": 1}


def test_trained_truncated_replies_are_counted() -> None:
    found = credit([judged("a", -1, finish="length")], "binary", PLAIN)
    assert found.counts == {"truncated": 1}


def step(name: str, attempt: str, reward: float, score: Score | None = None) -> Judged:
    return judged(name, score, group="g", attempt=attempt, reward=reward)


def test_steps_are_mixed_in_against_the_mean_step() -> None:
    some = [
        step("a1", "a", 1.0, 1),
        step("a2", "a", 1.0),
        step("b1", "b", 0.0, -1),
        step("b2", "b", 0.0, 0),
        step("b3", "b", 0.0, 0),
    ]
    found = credit(some, "binary", CreditSettings(step_weight=0.5))
    worth = {one.turn.id: earned.advantages[0] for one, earned in found.turns}
    # Two attempts, mean 0.5, however many turns they have. Four judged steps, mean 0.
    assert worth == {"a1": 1.0, "a2": 0.5, "b1": -1.0, "b2": -0.5, "b3": -0.5}
    assert found.rewards == (1.0, 0.0)
    alike = [step("a1", "a", 1.0, 1), step("b1", "b", 1.0, -1)]
    assert credit(alike, "binary", CreditSettings()).counts["zero_variance_groups"] == 1
    mixed = credit(alike, "binary", CreditSettings(step_weight=0.5))
    assert {one.turn.id: e.advantages[0] for one, e in mixed.turns} == {"a1": 0.5, "b1": -0.5}
    assert "zero_variance_groups" not in mixed.counts
    alone = credit([step("a1", "a", 1.0, 1)], "binary", CreditSettings(step_weight=0.5))
    assert alone.turns == ()
    assert alone.counts == {"nothing_known": 1}
