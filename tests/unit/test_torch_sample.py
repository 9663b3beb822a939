"""Sampling against values worked out by hand."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.backends import torch_sample
from instar.backends.torch_sample import Draw, sample

PROBS = [0.5, 0.25, 0.125, 0.125]
LOGITS = torch.tensor([[math.log(p) + 3.0 for p in PROBS]])


class Fixed(random.Random):
    """A random stream that always gives the same number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


def how(
    uniform: float = 0.0,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    top_logprobs: int = 0,
) -> Draw:
    return Draw(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        top_logprobs=top_logprobs,
        rng=Fixed(uniform),
    )


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (0.88, 3), (0.999999, 3)],
)
def test_a_token_is_drawn_by_its_share(uniform: float, token: int) -> None:
    (drawn,) = sample(LOGITS, [how(uniform)])
    assert drawn.token == token
    assert drawn.logprob == pytest.approx(math.log(PROBS[token]), abs=1e-6)


def test_temperature_zero_is_greedy_and_its_logprob_is_unscaled() -> None:
    (drawn,) = sample(LOGITS, [how(0.999, temperature=0.0)])
    assert drawn.token == 0
    assert drawn.logprob == pytest.approx(math.log(0.5), abs=1e-6)


def test_temperature_scales_the_recorded_distribution() -> None:
    # At temperature 0.5 each share is squared: 1/4, 1/16, 1/64, 1/64 of 22/64.
    (drawn,) = sample(LOGITS, [how(0.9, temperature=0.5)])
    assert drawn.token == 1
    assert drawn.logprob == pytest.approx(math.log(4 / 22), abs=1e-6)


@pytest.mark.parametrize(
    ("limits", "uniform", "token"),
    [
        ({"top_k": 2}, 0.999, 1),
        ({"top_k": 2}, 0.66, 0),
        ({"top_k": 2}, 0.67, 1),
        ({"top_p": 0.5}, 0.999, 0),
        ({"top_p": 0.51}, 0.999, 1),
        ({"top_p": 0.75}, 0.999, 1),
        # Of the first three, 0.7 of 0.875 is reached with the second.
        ({"top_k": 3, "top_p": 0.7}, 0.999, 1),
        ({"top_k": 1}, 0.999, 0),
        ({"top_p": 1e-9}, 0.999, 0),
        ({"top_k": 99}, 0.6, 1),
    ],
)
def test_limits_cut_the_draw_but_not_the_logprob(
    limits: dict[str, float], uniform: float, token: int
) -> None:
    (drawn,) = sample(LOGITS, [how(uniform, **limits)])  # type: ignore[arg-type]
    assert drawn.token == token
    assert drawn.logprob == pytest.approx(math.log(PROBS[token]), abs=1e-6)


def test_rows_of_a_batch_do_not_touch_each_other() -> None:
    draws = [
        how(0.9, temperature=0.0),
        how(0.76),
        how(0.999, top_k=2),
        how(0.9, temperature=0.5),
        how(0.999, top_p=0.5),
    ]
    together = sample(LOGITS.repeat(len(draws), 1), draws)
    assert together == [sample(LOGITS, [draw])[0] for draw in draws]
    assert [drawn.token for drawn in together] == [0, 2, 1, 1, 0]


def test_alternatives_come_from_the_same_distribution_and_only_where_asked() -> None:
    plain, asked = sample(LOGITS.repeat(2, 1), [how(), how(top_logprobs=2)])
    assert plain.top == ()
    assert [token for token, _ in asked.top] == [0, 1]
    assert [value for _, value in asked.top] == pytest.approx([math.log(0.5), math.log(0.25)])


def test_shares_are_kept_over_many_draws() -> None:
    draw = Draw(temperature=1.0, top_p=0.9, top_k=0, top_logprobs=0, rng=random.Random(1))
    counts = Counter(sample(LOGITS, [draw])[0].token for _ in range(4000))
    for token, share in enumerate([0.5, 0.25, 0.125, 0.125]):
        assert counts[token] / 4000 == pytest.approx(share, abs=0.03)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    top_p=st.floats(0.01, 1.0),
    top_k=st.integers(0, 40),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
    candidates=st.sampled_from([1, 3, 64]),
)
def test_the_draw_equals_a_plain_sort(
    seed: int, top_p: float, top_k: int, uniform: float, candidates: int
) -> None:
    logits = torch.randn(1, 32, generator=torch.Generator().manual_seed(seed)) * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_sample, "CANDIDATES", candidates)
        (drawn,) = sample(logits, [how(uniform, top_p=top_p, top_k=top_k)])
    probs = logits[0].double().softmax(0)
    order = sorted(range(32), key=lambda token: -probs[token])[: top_k or 32]
    mass = sum(float(probs[token]) for token in order)
    kept, before = [], 0.0
    for token in order:
        if before >= top_p * mass:
            break
        kept.append(token)
        before += float(probs[token])
    assert drawn.token in kept or before == pytest.approx(top_p * mass, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.sampled_from([1, 255, 256, 257, 1000]),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
    hidden=st.floats(0.0, 0.99),
)
def test_a_token_without_a_share_is_never_drawn(
    seed: int, vocab: int, uniform: float, hidden: float
) -> None:
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, vocab, generator=source) * 4
    logits[0, 1:][torch.rand(vocab - 1, generator=source) < hidden] = float("-inf")
    (drawn,) = sample(logits, [how(uniform)])
    assert math.isfinite(drawn.logprob)
    probs = logits[0].double().softmax(0)
    sums = probs.cumsum(0)
    # Where the running sums say it must be, up to rounding at the borders.
    before = float(sums[drawn.token] - probs[drawn.token])
    assert before - 1e-6 <= uniform <= float(sums[drawn.token]) + 1e-6


def test_logits_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        sample(torch.tensor([[0.0, float("nan")]]), [how()])


def test_equal_seeds_draw_equal_tokens() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(1))

    def drawn(seed: int) -> list[int]:
        draw = Draw(temperature=1.0, top_p=1.0, top_k=0, top_logprobs=0, rng=random.Random(seed))
        return [sample(logits, [draw])[0].token for _ in range(8)]

    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)
