"""Losses through a head that is one product with weights that are not trained.

Logits are h W^T then, so what is wanted of them needs no second look at the vocabulary:

    log p(t)      = h·W_t - lse(h)             whose gradient is W_t - E_p[W]
    sum_v q log p = h·E_q[W] - lse(h)          for any teacher q

A teacher is known by E_q[W] and its entropy, as many numbers as a hidden state; the student's
logits exist once, a chunk at a time, and not again in the backward pass. For float32 only: in
16 bits the difference between two such means would be mostly rounding.

M trained tokens, C of a chunk, D features, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearHead:
    """Hidden states to logits by one product."""

    weight_VD: Tensor

    def __call__(self, hidden_CD: Tensor) -> Tensor:
        return hidden_CD @ self.weight_VD.T


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All that the forward KL needs to know of a teacher."""

    mean_MD: Tensor
    """The head's weights, averaged as the teacher would speak."""
    entropy_M: Tensor
    logprobs_M: Tensor
    """Of what was said."""


def logprobs(
    head: LinearHead, hidden_MD: Tensor, *, targets_M: Tensor, temperatures_M: Tensor, chunk: int
) -> Tensor:
    """The log-prob of each target at its temperature."""
    scaled_MD = hidden_MD / temperatures_M[:, None]
    return _dot(scaled_MD, head.weight_VD[targets_M]) - _log_sum_exp(head, scaled_MD, chunk)


@torch.no_grad()
def summary(
    head: LinearHead, hidden_MD: Tensor, *, targets_M: Tensor, temperatures_M: Tensor, chunk: int
) -> Summary:
    """What a teacher with these hidden states would say."""
    scaled_MD = hidden_MD / temperatures_M[:, None]
    lse_M, mean_MD = _sums(scaled_MD, head.weight_VD, chunk, mean=True)
    assert mean_MD is not None
    return Summary(
        mean_MD=mean_MD,
        entropy_M=lse_M - _dot(scaled_MD, mean_MD),
        logprobs_M=_dot(scaled_MD, head.weight_VD[targets_M]) - lse_M,
    )


def against(
    head: LinearHead,
    hidden_MD: Tensor,
    teacher: Summary,
    *,
    targets_M: Tensor,
    temperatures_M: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """The student's `logprobs`, and KL(teacher || student) at each token."""
    scaled_MD = hidden_MD / temperatures_M[:, None]
    lse_M = _log_sum_exp(head, scaled_MD, chunk)
    crossed_M = _dot(scaled_MD, teacher.mean_MD) - lse_M
    return _dot(scaled_MD, head.weight_VD[targets_M]) - lse_M, -teacher.entropy_M - crossed_M


def _dot(left_MD: Tensor, right_MD: Tensor) -> Tensor:
    return (left_MD * right_MD).sum(1)


def _log_sum_exp(head: LinearHead, scaled_MD: Tensor, chunk: int) -> Tensor:
    found: Tensor = _LogSumExp.apply(scaled_MD, head.weight_VD, chunk)  # type: ignore[no-untyped-call]
    return found


class _LogSumExp(torch.autograd.Function):
    """Of the logits; its gradient is made together with it."""

    @staticmethod
    def forward(ctx: Any, scaled_MD: Tensor, weight_VD: Tensor, chunk: int) -> Tensor:
        lse_M, mean_MD = _sums(scaled_MD, weight_VD, chunk, mean=ctx.needs_input_grad[0])
        ctx.save_for_backward(mean_MD)
        return lse_M

    @staticmethod
    def backward(ctx: Any, grad_M: Tensor) -> Any:
        (mean_MD,) = ctx.saved_tensors
        return grad_M[:, None] * mean_MD, None, None


def _sums(
    scaled_MD: Tensor, weight_VD: Tensor, chunk: int, *, mean: bool
) -> tuple[Tensor, Tensor | None]:
    """log sum exp of the logits, and the head's weights averaged by what they make likely."""
    lse, means = [scaled_MD.new_zeros(0)], [scaled_MD.new_zeros(0, scaled_MD.shape[1])]
    for scaled_CD in torch.split(scaled_MD, chunk):
        logits_CV = scaled_CD @ weight_VD.T
        most_C1 = logits_CV.amax(1, keepdim=True)
        # In place: a chunk of logits is the largest thing there is.
        likely_CV = logits_CV.sub_(most_C1).exp_()
        sum_C1 = likely_CV.sum(1, keepdim=True)
        lse.append((most_C1 + sum_C1.log())[:, 0])
        if mean:
            means.append(likely_CV @ weight_VD / sum_C1)
    return torch.cat(lse), torch.cat(means) if mean else None
