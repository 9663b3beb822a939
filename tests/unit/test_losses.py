"""Losses by hand and against plain code that holds all logits.

M trained tokens, D features, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div

from instar.train import losses

M, D, V = 7, 5, 11


@pytest.fixture
def weight_VD() -> Tensor:
    return torch.randn(V, D, generator=torch.Generator().manual_seed(0)).requires_grad_()


def hidden(seed: int = 1) -> Tensor:
    return torch.randn(M, D, generator=torch.Generator().manual_seed(seed))


TARGETS_M = torch.tensor([0, 3, 10, 3, 2, 7, 7])
TEMPERATURES_M = torch.tensor([1.0, 0.5, 1.0, 2.0, 0.7, 1.0, 1.0])


def grads(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunked_logprobs_equal_plain_ones(weight_VD: Tensor, chunk: int) -> None:
    hidden_MD, mix_M = hidden().requires_grad_(), torch.linspace(-1, 1, M)
    found_M = losses.logprobs(
        lambda h: h @ weight_VD.T,
        hidden_MD,
        targets_M=TARGETS_M,
        temperatures_M=TEMPERATURES_M,
        chunk=chunk,
    )
    plain_MV = (hidden_MD @ weight_VD.T / TEMPERATURES_M[:, None]).log_softmax(1)
    plain_M = plain_MV.gather(1, TARGETS_M[:, None])[:, 0]
    torch.testing.assert_close(found_M, plain_M)
    for one, other in zip(
        grads((mix_M * found_M).sum(), hidden_MD, weight_VD),
        grads((mix_M * plain_M).sum(), hidden_MD, weight_VD),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_a_head_that_is_not_trained_is_read_once(weight_VD: Tensor, chunk: int) -> None:
    hidden_MD, mix_M = hidden().requires_grad_(), torch.linspace(-1, 1, M)
    read = 0

    def head(hidden_CD: Tensor) -> Tensor:
        nonlocal read
        read += len(hidden_CD)
        return torch.tanh(hidden_CD @ weight_VD.detach().T)

    streams: Any = {"targets_M": TARGETS_M, "temperatures_M": TEMPERATURES_M, "chunk": chunk}
    found_M = losses.logprobs(head, hidden_MD, **streams, frozen=True)
    (grad_MD,) = grads((mix_M * found_M).sum(), hidden_MD)
    assert read == M
    again_M = losses.logprobs(head, hidden_MD, **streams)
    torch.testing.assert_close(found_M, again_M)
    torch.testing.assert_close(grad_MD, grads((mix_M * again_M).sum(), hidden_MD)[0])
    none_M = losses.logprobs(
        head,
        hidden_MD[:0],
        targets_M=TARGETS_M[:0],
        temperatures_M=TEMPERATURES_M[:0],
        chunk=chunk,
        frozen=True,
    )
    assert none_M.shape == (0,)


def divergence(
    head: losses.Head, hidden_MD: Tensor, *, teacher: losses.Teacher, **options: Any
) -> Tensor:
    targets_M = torch.zeros(len(hidden_MD), dtype=torch.long)
    found = losses.taught(head, hidden_MD, teacher=teacher, targets_M=targets_M, **options)
    return found.divergence_M


def kl(weight_VD: Tensor, hidden_MD: Tensor, **options: Any) -> Tensor:
    teacher = losses.Teacher(
        head=lambda h: h @ weight_VD.detach().T,
        hinted_MD=hidden(2),
        temperature=options.pop("teacher_temperature", 1.0),
    )
    return divergence(
        lambda h: h @ weight_VD.T,
        hidden_MD,
        teacher=teacher,
        temperatures_M=TEMPERATURES_M,
        **{"chunk": 3, **options},
    )


@pytest.mark.parametrize("teacher_temperature", [1.0, 0.5])
@pytest.mark.parametrize("kind", sorted(losses.DIVERGENCES))
def test_a_chunked_divergence_equals_the_plain_one(
    weight_VD: Tensor, teacher_temperature: float, kind: str
) -> None:
    hidden_MD = hidden().requires_grad_()
    found_M = kl(weight_VD, hidden_MD, teacher_temperature=teacher_temperature, kind=kind)
    scale_M1, fixed_VD = TEMPERATURES_M[:, None], weight_VD.detach()
    ours_MV = (hidden_MD @ weight_VD.T / scale_M1).log_softmax(1)
    theirs_MV = (hidden(2) @ fixed_VD.T / scale_M1 / teacher_temperature).log_softmax(1)
    reverse_M = kl_div(theirs_MV, ours_MV, log_target=True, reduction="none").sum(1)
    forward_M = kl_div(ours_MV, theirs_MV, log_target=True, reduction="none").sum(1)
    plain = {"reverse": reverse_M, "forward": forward_M, "both": (reverse_M + forward_M) / 2}
    torch.testing.assert_close(found_M, plain[kind])
    for one, other in zip(
        grads(found_M.sum(), hidden_MD, weight_VD),
        grads(plain[kind].sum(), hidden_MD, weight_VD),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def of_logits(ours_MV: Tensor, theirs_MV: Tensor, **options: Any) -> Tensor:
    return divergence(
        lambda h: h,
        ours_MV,
        teacher=losses.Teacher(head=lambda h: h, hinted_MD=theirs_MV),
        temperatures_M=torch.ones(len(ours_MV)),
        chunk=8,
        **options,
    )


def divergence_by_hand(ours: list[float], theirs: list[float], **options: Any) -> float:
    return float(of_logits(torch.tensor([ours]).log(), torch.tensor([theirs]).log(), **options))


def test_divergences_by_hand() -> None:
    ours, theirs = [0.5, 0.25, 0.25], [0.25, 0.375, 0.375]
    # 0.5 ln 2 + 0.5 ln (0.25 / 0.375)
    reverse = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    # 0.25 ln (1 / 2) + 0.75 ln (0.375 / 0.25)
    forward = -0.25 * math.log(2) + 0.75 * math.log(1.5)
    assert divergence_by_hand(ours, theirs) == pytest.approx(reverse)
    assert divergence_by_hand(ours, theirs, kind="forward") == pytest.approx(forward)
    assert divergence_by_hand(ours, theirs, kind="both") == pytest.approx((reverse + forward) / 2)


def test_a_top_k_divergence_by_hand() -> None:
    ours, theirs = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    # 0.5 ln 2 + 0 - 0.25 ln 2
    assert divergence_by_hand(ours, theirs) == pytest.approx(0.25 * math.log(2))
    # The top one and the rest: 0.5 ln 2 + 0.5 ln (0.5 / 0.75)
    top = 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)
    assert divergence_by_hand(ours, theirs, top_k=1) == pytest.approx(top, abs=1e-5)


def test_only_forward_hurries_to_what_the_student_would_never_say() -> None:
    """The gradient on a new token's logit: as large as the teacher wants it, or as the student."""
    pull = {}
    for kind in ("reverse", "forward"):
        ours_MV = torch.tensor([[10.0, 0.0]]).requires_grad_()
        found_M = of_logits(ours_MV, torch.tensor([[0.0, 10.0]]), kind=kind)
        pull[kind] = -float(grads(found_M.sum(), ours_MV)[0][0, 1])
    # Forward: p_teacher - p_student, 1 here. Reverse: p_student x (20 nats - the mean of them).
    assert pull["forward"] == pytest.approx(1.0, abs=1e-3)
    assert 0 < pull["reverse"] < 1e-2


def test_top_k_never_exceeds_the_whole_and_nears_it(weight_VD: Tensor) -> None:
    whole_M = kl(weight_VD, hidden())
    near_M = kl(weight_VD, hidden(), top_k=V - 1)
    torch.testing.assert_close(near_M, whole_M, rtol=1e-4, atol=1e-4)
    for k in (1, 2, 4):
        assert bool((kl(weight_VD, hidden(), top_k=k) <= whole_M + 1e-5).all())


def test_a_certain_student_has_a_finite_top_k_gradient() -> None:
    ours_MV = torch.tensor([[80.0, 0.0, 0.0]]).requires_grad_()
    found_M = of_logits(ours_MV, torch.tensor([[0.0, 80.0, 0.0]]), top_k=2)
    assert bool(torch.isfinite(grads(found_M.sum(), ours_MV)[0]).all())


def test_student_and_teacher_are_compared_at_the_same_temperature(weight_VD: Tensor) -> None:
    """Elsewhere only the student's log-probs are scaled, so that equals seem to differ."""
    teacher = losses.Teacher(head=lambda h: h @ weight_VD.detach().T, hinted_MD=hidden())
    found_M = divergence(
        lambda h: h @ weight_VD.T,
        hidden(),
        teacher=teacher,
        temperatures_M=TEMPERATURES_M,
        chunk=3,
    )
    torch.testing.assert_close(found_M, torch.zeros(M), rtol=0, atol=1e-6)


def test_a_teacher_that_wants_the_opposite_of_a_verdict_weighs_less() -> None:
    found = losses.Taught(
        logprobs_M=torch.tensor([-1.0] * 5),
        theirs_M=torch.tensor([-2.0, -0.5, -2.0, -0.5, -2.0]),
        divergence_M=torch.zeros(5),
    )
    advantages_M = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0])
    # Praised and pulled down, praised and up, corrected and down, corrected and up, unjudged.
    weights_M = losses.agreement(advantages_M, found, dissent=0.25)
    assert weights_M.tolist() == [0.25, 1.0, 1.0, 0.25, 1.0]


def test_who_corrects_a_reply_does_not_mean_each_of_its_words() -> None:
    found = losses.Taught(
        logprobs_M=torch.tensor([-1.0] * 5),
        theirs_M=torch.tensor([-2.0, -0.5, -2.0, -0.5, -1.0]),
        divergence_M=torch.zeros(5),
    )
    advantages_M = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
    # Praise stays; of a correction only what the teacher would say less counts in full.
    assert losses.blamed(advantages_M, found, blame=0.25).tolist() == [1.0, 1.0, -1.0, -0.25, -0.25]
    assert losses.blamed(advantages_M, found, blame=1.0).tolist() == advantages_M.tolist()


def test_student_and_teacher_are_read_in_one_pass(weight_VD: Tensor) -> None:
    hidden_MD = hidden().requires_grad_()
    teacher = losses.Teacher(
        head=lambda h: h @ weight_VD.detach().T,
        hinted_MD=hidden(2),
        temperature=0.5,
    )
    targets_M = torch.arange(M)
    found = losses.taught(
        lambda h: h @ weight_VD.T,
        hidden_MD,
        teacher=teacher,
        targets_M=targets_M,
        temperatures_M=TEMPERATURES_M,
        chunk=3,
    )
    alone_M = losses.logprobs(
        lambda h: h @ weight_VD.T,
        hidden_MD,
        targets_M=targets_M,
        temperatures_M=TEMPERATURES_M,
        chunk=3,
    )
    torch.testing.assert_close(found.logprobs_M, alone_M)
    for one, other in zip(
        grads(found.logprobs_M.sum(), hidden_MD, weight_VD),
        grads(alone_M.sum(), hidden_MD, weight_VD),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    logits_MV = hidden(2) @ weight_VD.detach().T
    theirs_M = (logits_MV / TEMPERATURES_M[:, None] / 0.5).log_softmax(1)[targets_M, targets_M]
    torch.testing.assert_close(found.theirs_M, theirs_M)
    assert not found.theirs_M.requires_grad


def test_a_clipped_divergence_weighs_less_and_keeps_its_direction() -> None:
    kl_M = torch.tensor([1.0, 8.0]).requires_grad_()
    clipped_M = losses.clipped_kl(kl_M, 2.0)
    assert clipped_M.tolist() == [1.0, 2.0]
    assert grads(clipped_M.sum(), kl_M)[0].tolist() == [1.0, 0.25]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.1, 1.0, -1.1, -1.1),
        (1.5, 1.0, -1.28, 0.0),  # praised enough
        (0.5, 1.0, -0.5, -0.5),
        (1.0, -1.0, 1.0, 1.0),
        (0.5, -1.0, 0.8, 0.0),  # blamed enough
        (1.5, -1.0, 1.5, 1.5),
        (6.0, -1.0, 2.0, 2.0),  # truncated: weighs 2, yet is still pushed down
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_policy_loss_by_hand(ratio: float, advantage: float, loss: float, slope: float) -> None:
    recorded_M = torch.tensor([-3.0])
    logprobs_M = (recorded_M + math.log(ratio)).requires_grad_()
    found = losses.policy_loss(
        logprobs_M,
        recorded_M=recorded_M,
        advantages_M=torch.tensor([advantage]),
        clip_low=0.2,
        clip_high=0.28,
        ratio_cap=2.0,
    )
    assert float(found.loss_M.detach()) == pytest.approx(loss)
    assert float(grads(found.loss_M.sum(), logprobs_M)[0]) == pytest.approx(slope)
    assert bool(found.clipped_M) is (slope == 0.0 and advantage != 0.0)


def test_recorded_logprobs_correct_for_the_version_that_sampled() -> None:
    """Elsewhere the old log-probs are computed anew, so that the ratio is always 1."""
    found = losses.policy_loss(
        torch.tensor([-1.0, -1.0]),
        recorded_M=torch.tensor([-1.0, -1.1]),
        advantages_M=torch.tensor([1.0, 1.0]),
        clip_low=0.2,
        clip_high=0.28,
        ratio_cap=2.0,
    )
    assert found.ratio_M.tolist() == pytest.approx([1.0, math.exp(0.1)])


def test_an_impossible_token_stays_finite() -> None:
    logprobs_M = torch.tensor([-500.0, -0.1]).requires_grad_()
    found = losses.policy_loss(
        logprobs_M,
        recorded_M=torch.tensor([-0.1, -500.0]),
        advantages_M=torch.tensor([-1.0, -1.0]),
        clip_low=0.2,
        clip_high=0.28,
        ratio_cap=2.0,
    )
    assert bool(torch.isfinite(found.loss_M).all())
    assert bool(torch.isfinite(grads(found.loss_M.sum(), logprobs_M)[0]).all())


def test_value_loss_by_hand() -> None:
    values_P = torch.tensor([0.5, 0.5, 0.5])
    old_P, returns_P = torch.tensor([0.5, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.5])
    free_P = losses.value_loss(values_P, old_P=old_P, returns_P=returns_P, clip=None)
    assert free_P.tolist() == pytest.approx([0.125, 0.125, 0.0])
    # Clipped to 0.2: the second is (0.2 - 1)^2 / 2, the third (0.2 - 0.5)^2 / 2
    held_P = losses.value_loss(values_P, old_P=old_P, returns_P=returns_P, clip=0.2)
    assert held_P.tolist() == pytest.approx([0.125, 0.32, 0.045])


def test_a_long_reply_counts_as_much_as_a_short_one() -> None:
    index = [0, 0, 0, 0, 1]
    per_turn = losses.token_weights(index, turns=4, tokens=10, per="turn")
    assert per_turn == [1 / 16] * 4 + [1 / 4]
    assert losses.token_weights(index, turns=4, tokens=10, per="token") == [0.1] * 5


def test_chunks_keep_logits_small() -> None:
    assert losses.chunk_size(49152) * 49152 <= losses.CHUNK_LOGITS
    assert losses.chunk_size(1 << 30) == 16
    small, large = 8 << 30, 128 << 30
    assert losses.chunk_size(49152, small) == losses.chunk_size(49152)
    # 128 GiB / 256 are 2**29 bytes, or 2**27 logits
    assert losses.chunk_size(1 << 17, large) == 1 << 10
