"""Turns become trees of tokens, each token once, and trees share forward passes."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled_turns import chain, comb, earned, turn

from instar.batch.credit import Credit, Judged
from instar.batch.merge import merge, temperature_of
from instar.batch.pack import join, pack
from instar.types import Sample, Segment, Tree

Turns = list[tuple[Judged, Credit]]


def path(tree: Tree, at: int) -> tuple[int, ...]:
    """The tokens from the root to one token."""
    previous, out = tree.previous(), []
    while at >= 0:
        out.append(tree.ids[at])
        at = previous[at]
    return tuple(reversed(out))


def assert_faithful(sample: Sample, turns: Turns) -> None:
    """Every trained token is where its turn sampled it, after what its turn had seen."""
    by_id = {judged.turn.id: (judged, credit) for judged, credit in turns}
    at = 0
    for name in sample.turns:
        judged, credit = by_id[name]
        one = judged.turn
        for n in range(len(one.sampled_ids)):
            expected = one.prompt_ids + one.sampled_ids[: n + 1]
            assert path(sample.tree, sample.at[at]) == expected
            assert sample.turns[sample.turn_index[at]] == name
            assert sample.logprobs[at] == one.logprobs[n]
            assert sample.advantages[at] == credit.advantages[n]
            assert sample.temperatures[at] == temperature_of(one)
            if credit.distill_weights[n]:
                assert sample.hinted is not None
                assert judged.hinted_ids is not None
                hinted = judged.hinted_ids + one.sampled_ids[: n + 1]
                assert path(sample.hinted, sample.hinted_at[at]) == hinted
            at += 1
    assert at == len(sample.at)


def test_a_chain_is_one_path() -> None:
    merged = merge(chain())
    (sample,) = merged.samples
    assert sample.tree.ids == tuple(range(1, 13))
    assert sample.tree.segments == (Segment(0, 5, -1), Segment(5, 4, 0), Segment(9, 3, 1))
    assert sample.tree.previous() == tuple(range(-1, 11))
    assert sample.at == (3, 4, 6, 7, 8, 11)
    assert sample.turn_index == (0, 0, 1, 1, 1, 2)
    assert sample.temperatures == (1.0, 1.0, 0.7, 0.7, 0.7, 1.0)
    assert sum(sample.trainable) == 6
    assert (merged.tokens, merged.unmerged_tokens) == (12, 5 + 9 + 12)
    assert_faithful(sample, chain())


def test_a_comb_has_its_longest_path_first() -> None:
    merged = merge(comb())
    (sample,) = merged.samples
    longest = comb()[-1][0].turn.ids
    assert sample.tree.ids[: len(longest)] == longest
    assert merged.tokens == 3 + 3 + 4 + 4 + 5 + 4
    assert_faithful(sample, comb())


def test_a_sampled_token_spliced_into_a_later_prompt_is_trained_once() -> None:
    sample = merge(chain()).samples[0]
    assert len(set(sample.at)) == len(sample.at)


def test_identical_retries_share_their_tokens_and_keep_both_credits() -> None:
    one = turn("a", [1, 2], [3, 4])
    two = turn("b", [1, 2], [3, 5], logprobs=[-2.0, -3.0])
    sample = merge([earned(one, 1.0), earned(two, -1.0)]).samples[0]
    assert len(sample.tree.ids) == 5
    assert sample.at[0] == sample.at[2]
    assert (sample.advantages[0], sample.advantages[2]) == (1.0, -1.0)
    assert (sample.logprobs[0], sample.logprobs[2]) == (-1.0, -2.0)


def test_sessions_with_nothing_in_common_are_trees_of_their_own() -> None:
    other = earned(turn("o", [40, 41], [42]), 1.0)
    assert len(merge([*chain(), other]).samples) == 2


def test_a_tree_that_grows_too_large_is_cut_between_turns() -> None:
    merged = merge(comb(), max_tokens=18)
    assert merged.cuts == 1
    assert all(len(sample.tree.ids) <= 18 for sample in merged.samples)
    assert sorted(name for sample in merged.samples for name in sample.turns) == ["k0", "k1", "k2"]
    for sample in merged.samples:
        assert_faithful(sample, comb())


def test_a_turn_longer_than_the_limit_is_left_out_by_name() -> None:
    merged = merge(chain(), max_tokens=9)
    assert merged.too_long == ("c3",)
    assert merged.samples[0].turns == ("c1", "c2")


def test_the_teacher_reads_hinted_prompts_in_a_tree_of_its_own() -> None:
    turns = [
        earned(one.turn, 0.0, distill=1.0, hinted=[30, 31, *one.turn.prompt_ids])
        for one, _ in chain()[:2]
    ] + chain()[2:]
    sample = merge(turns).samples[0]
    assert sample.hinted is not None
    assert sample.hinted.ids == (30, 31, *range(1, 10))
    assert sample.hinted_at[-1] == -1
    assert_faithful(sample, turns)


def test_a_distilled_turn_without_a_hinted_prompt_is_an_error() -> None:
    with pytest.raises(ValueError, match="no hinted prompt"):
        merge([earned(turn("a", [1], [2]), 0.0, distill=1.0)])


@pytest.mark.parametrize(
    ("temperature", "scaled", "expected"), [(0.0, True, 1.0), (0.7, True, 0.7), (0.7, False, 1.0)]
)
def test_the_temperature_is_that_of_the_recorded_logprobs(
    temperature: float, scaled: bool, expected: float
) -> None:
    one = turn("a", [1], [2], temperature=temperature, logprobs_scaled=scaled)
    assert temperature_of(one) == expected


ids = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=8), st.integers(12, 40))
def test_any_turns_merge_faithfully(pairs: list[tuple[list[int], list[int]]], limit: int) -> None:
    turns = [
        earned(turn(f"t{n:02}", prompt, sampled), 1.0, distill=n % 2, hinted=[2, *prompt])
        for n, (prompt, sampled) in enumerate(pairs)
    ]
    merged = merge(turns, max_tokens=limit)
    for sample in merged.samples:
        assert_faithful(sample, turns)
    # Without a limit a token is never there twice: the tree has one node a distinct beginning.
    beginnings = {one.turn.ids[:n] for one, _ in turns for n in range(1, len(one.turn.ids) + 1)}
    assert merge(turns).tokens == len(beginnings)
    for row in pack(merged.samples, max_tokens=limit):
        assert_faithful(row, turns)


def test_packing_fills_passes_without_padding() -> None:
    samples = [merge([earned(turn(f"t{n}", [n], [9] * n), 1.0)]).samples[0] for n in range(1, 7)]
    rows = pack(samples, max_tokens=8)
    assert sorted(len(row.tree.ids) for row in rows) == [2, 7, 8, 8] or all(
        len(row.tree.ids) <= 8 for row in rows
    )
    assert sum(len(row.tree.ids) for row in rows) == sum(len(one.tree.ids) for one in samples)
    assert sorted(name for row in rows for name in row.turns) == [f"t{n}" for n in range(1, 7)]


def test_a_sample_beyond_the_budget_stands_alone() -> None:
    big, small = merge(chain()).samples[0], merge([earned(turn("o", [40], [42]), 1.0)]).samples[0]
    assert [row.turns for row in pack([small, big], max_tokens=5)] == [big.turns, small.turns]


def test_packing_makes_as_many_parts_as_asked() -> None:
    samples = [merge([earned(turn(f"t{n}", [n], [9, 9]), 1.0)]).samples[0] for n in range(6)]
    assert len(pack(samples, max_tokens=100)) == 1
    assert len(pack(samples, max_tokens=100, parts=3)) == 3


def test_joined_samples_keep_values_where_they_are_known() -> None:
    judged, credit = earned(turn("v", [1], [2]), 1.0)
    valued = merge([(judged, replace(credit, value=0.5, target=1.0))]).samples[0]
    plain = merge([earned(turn("p", [3], [4]), 1.0)]).samples[0]
    both = join([plain, valued])
    assert both.values == (None, 0.5)
    assert both.returns == (None, 1.0)


def sample_with(**changes: object) -> Sample:
    return replace(merge(chain()).samples[0], **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": (-1.0,)}, "stream logprobs has 1 entries for 6"),
        ({"advantages": ()}, "stream advantages has 0"),
        ({"temperatures": (1.0,) * 7}, "stream temperatures has 7"),
        ({"logprobs": (nan, *(-1.0,) * 5)}, "never missing"),
        ({"logprobs": (0.5, *(-1.0,) * 5)}, "never above 0"),
        ({"at": (0, 4, 6, 7, 8, 11)}, "nothing comes before it"),
        ({"at": (3, 4, 6, 7, 8, 12)}, "nothing comes before it"),
        ({"distill_weights": (1.0,) * 6}, "no teacher"),
        ({"values": (1.0,)}, "values has 1 entries for 3 turns"),
    ],
)
def test_a_sample_checks_itself(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_with(**changes)


@pytest.mark.parametrize(
    ("positions", "segments", "message"),
    [
        ((0, 1), (Segment(0, 3, -1),), "3 ids but 2 positions"),
        ((0, 1, 2), (Segment(0, 2, -1),), "cover 2 of 3"),
        ((0, 1, 2), (Segment(0, 2, -1), Segment(2, 1, 1)), "earlier parent"),
        ((0, 1, 2), (Segment(0, 2, -1), Segment(2, 1, -1)), "count on from 0"),
    ],
)
def test_a_tree_checks_itself(
    positions: tuple[int, ...], segments: tuple[Segment, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Tree(ids=(1, 2, 3), positions=positions, segments=segments)
