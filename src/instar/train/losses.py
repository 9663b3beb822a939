"""The losses, over trained tokens only and without ever holding all their logits.

Comes in: hidden states before each trained token and the streams of a Sample. Goes out: one
number a token; `step.py` weighs and adds them. Logits exist for one chunk of tokens at a time,
in the forward and again in the backward pass.

M trained tokens, C of a chunk, D features, V vocabulary, P turns with a value estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from instar.train import linear
from instar.train.linear import LinearHead, Summary

Head = Callable[[Tensor], Tensor]
"""Hidden states [C, D] to logits [C, V]."""

CHUNK_LOGITS = 1 << 25
"""Logits in a chunk: 128 MiB of float32."""
_CHUNK_SHARE = 256
"""Of a GPU's memory, where that is more: each chunk costs a GPU a moment in which it waits."""
_MAX_LOG_RATIO = 20.0


def chunk_size(vocab: int, memory: int = 0) -> int:
    """Tokens whose logits exist at a time, on a device with this much memory of its own."""
    logits = max(CHUNK_LOGITS, memory // _CHUNK_SHARE // torch.float32.itemsize)
    return max(16, logits // vocab)


def logprobs(
    head: Head,
    hidden_MD: Tensor,
    *,
    targets_M: Tensor,
    temperatures_M: Tensor,
    chunk: int,
    frozen: bool = False,
) -> Tensor:
    """The log-prob of each target at its temperature; `frozen` where the head is not trained."""
    if isinstance(head, LinearHead):
        return linear.logprobs(
            head, hidden_MD, targets_M=targets_M, temperatures_M=temperatures_M, chunk=chunk
        )

    def score(hidden_CD: Tensor, targets_C: Tensor, temperatures_C: Tensor) -> Tensor:
        logits_CV = head(hidden_CD).float() / temperatures_C[:, None]
        return logits_CV.gather(1, targets_C[:, None])[:, 0] - logits_CV.logsumexp(1)

    if frozen and torch.is_grad_enabled() and hidden_MD.requires_grad and len(hidden_MD):
        found_M: Tensor = _Once.apply(  # type: ignore[no-untyped-call]
            hidden_MD, score, chunk, targets_M, temperatures_M
        )
        return found_M
    return _in_chunks(score, chunk, hidden_MD, targets_M, temperatures_M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """What the student is drawn to: a model that has read a hint."""

    head: Head
    hinted_MD: Tensor
    temperature: float = 1.0
    """In units of the student's own: 1 compares the two at the same temperature."""

    def scaled(self, hinted_CD: Tensor, temperatures_C: Tensor) -> Tensor:
        """Logits at the teacher's temperature."""
        return self.head(hinted_CD).float() / (temperatures_C[:, None] * self.temperature)

    def summary(self, *, targets_M: Tensor, temperatures_M: Tensor, chunk: int) -> Summary | None:
        """The same in fewer numbers, for the forward KL; None where the head is more than linear.

        It holds for one reply: for these targets at these temperatures.
        """
        if not isinstance(self.head, LinearHead):
            return None
        return linear.summary(
            self.head,
            self.hinted_MD,
            targets_M=targets_M,
            temperatures_M=temperatures_M * self.temperature,
            chunk=chunk,
        )


def _reverse(ours_CV: Tensor, theirs_CV: Tensor) -> Tensor:
    """KL(student || teacher): give up what the teacher would not say."""
    return (ours_CV.exp() * (ours_CV - theirs_CV)).sum(1)


def _forward(ours_CV: Tensor, theirs_CV: Tensor) -> Tensor:
    """KL(teacher || student): take up all that the teacher might say."""
    return (theirs_CV.exp() * (theirs_CV - ours_CV)).sum(1)


def _both(ours_CV: Tensor, theirs_CV: Tensor) -> Tensor:
    """The mean of the two."""
    return (_reverse(ours_CV, theirs_CV) + _forward(ours_CV, theirs_CV)) / 2


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "reverse": _reverse,
    "forward": _forward,
    "both": _both,
}
"""How far log-probs of the student are from the teacher's, one number a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """What a student and its teacher say at each token."""

    logprobs_M: Tensor
    """Of the target, by the student."""
    theirs_M: Tensor
    """Of the target, by the teacher; without a gradient."""
    divergence_M: Tensor
    """Of the two distributions."""


def taught(
    head: Head,
    hidden_MD: Tensor,
    *,
    teacher: Teacher | Summary,
    targets_M: Tensor,
    temperatures_M: Tensor,
    chunk: int,
    top_k: int = 0,
    kind: str = "reverse",
) -> Taught:
    """`logprobs` and how far the student is from its teacher, by one of DIVERGENCES.

    In one pass, since logits cost as much as half of a small model. The divergence is over all of
    the vocabulary, or over the student's `top_k` likeliest tokens with everything else as one
    more outcome. A teacher's summary is for the forward KL over all of it.
    """
    if isinstance(teacher, Summary):
        assert isinstance(head, LinearHead)
        assert (kind, top_k) == ("forward", 0)
        ours_M, divergence_M = linear.against(
            head,
            hidden_MD,
            teacher,
            targets_M=targets_M,
            temperatures_M=temperatures_M,
            chunk=chunk,
        )
        return Taught(logprobs_M=ours_M, theirs_M=teacher.logprobs_M, divergence_M=divergence_M)
    measure = DIVERGENCES[kind]

    def score(
        hidden_CD: Tensor,
        temperatures_C: Tensor,
        targets_C: Tensor,
        hinted_CD: Tensor,
    ) -> Tensor:
        ours_CV = (head(hidden_CD).float() / temperatures_C[:, None]).log_softmax(1)
        with torch.no_grad():
            theirs_CV = teacher.scaled(hinted_CD, temperatures_C).log_softmax(1)
        ours_C, theirs_C = (one.gather(1, targets_C[:, None])[:, 0] for one in (ours_CV, theirs_CV))
        if 0 < top_k < ours_CV.shape[1]:
            ours_CV, theirs_CV = _top(ours_CV, theirs_CV, top_k)
        return torch.stack((ours_C, theirs_C, measure(ours_CV, theirs_CV)), 1)

    streams = (hidden_MD, temperatures_M, targets_M, teacher.hinted_MD)
    found_M3 = _in_chunks(score, chunk, *streams)
    ours_M, theirs_M, divergence_M = found_M3.unbind(1)
    return Taught(logprobs_M=ours_M, theirs_M=theirs_M.detach(), divergence_M=divergence_M)


def _top(ours_CV: Tensor, theirs_CV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The student's K likeliest tokens and, as one more, all the others."""
    top_CK = ours_CV.detach().topk(k, 1).indices
    return _with_tail(ours_CV.gather(1, top_CK)), _with_tail(theirs_CV.gather(1, top_CK))


def _with_tail(logprobs_CK: Tensor) -> Tensor:
    total_C1 = logprobs_CK.logsumexp(1, keepdim=True).clamp(max=-1e-6)
    return torch.cat((logprobs_CK, torch.log(-torch.expm1(total_C1))), 1)


def agreement(advantages_M: Tensor, found: Taught, *, dissent: float) -> Tensor:
    """Weights of a teacher beside verdicts: `dissent` where it wants the opposite, else 1.

    A teacher is a small model with a hint, and what it would say is not always what it was told:
    followed everywhere, it holds a policy that has become better than it. So a praised token
    that it finds less likely than the policy does is hardly pulled down, and a corrected one
    that it finds likelier hardly up.
    """
    opposed_M = advantages_M * (found.theirs_M - found.logprobs_M.detach()) < 0
    return torch.where(opposed_M, dissent, 1.0)


def blamed(advantages_M: Tensor, found: Taught, *, blame: float) -> Tensor:
    """Advantages, of which those below zero weigh `blame` where the teacher says as much or more.

    Who corrects a reply does not mean each of its words. Pushed down all the same, good words leave
    their place to any others, and in the end replies fall apart.
    """
    meant_M = found.theirs_M < found.logprobs_M.detach()
    return torch.where((advantages_M < 0) & ~meant_M, blame * advantages_M, advantages_M)


def clipped_kl(kl_M: Tensor, clip: float) -> Tensor:
    """Tokens above the clip are scaled down to it: they weigh less but keep their direction."""
    return kl_M * (clip / kl_M.detach().clamp(min=clip))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    loss_M: Tensor
    ratio_M: Tensor
    clipped_M: Tensor
    """Where the clip stopped the gradient."""


def policy_loss(
    logprobs_M: Tensor,
    *,
    recorded_M: Tensor,
    advantages_M: Tensor,
    clip_low: float,
    clip_high: float,
    ratio_cap: float,
) -> PolicyTerms:
    """PPO's clipped loss against the recorded log-probs, its importance weights truncated.

    The ratio to what the token was really sampled with corrects for versions that have come
    since. Above `ratio_cap` a token weighs `ratio_cap`, yet its gradient goes on.
    """
    log_ratio_M = (logprobs_M - recorded_M).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio_M = log_ratio_M.exp()
    truncated_M = ratio_M.detach().clamp(max=ratio_cap)
    # Has the value of the truncated ratio and its gradient: truncated x the log-prob's.
    weight_M = truncated_M * (logprobs_M - logprobs_M.detach()).exp()
    bounded_M = ratio_M.detach().clamp(1 - clip_low, 1 + clip_high)
    free_M, held_M = -weight_M * advantages_M, -bounded_M * advantages_M
    return PolicyTerms(
        # Not torch.maximum, which halves the gradient where the two are equal: all within the clip.
        loss_M=torch.where(held_M > free_M, held_M, free_M),
        ratio_M=ratio_M.detach(),
        clipped_M=(held_M > free_M.detach()),
    )


def value_loss(values_P: Tensor, *, old_P: Tensor, returns_P: Tensor, clip: float | None) -> Tensor:
    """Half the squared error; with `clip`, an estimate that moved further gains nothing by it."""
    error_P = (values_P - returns_P) ** 2
    if clip is not None:
        held_P = old_P + (values_P - old_P).clamp(-clip, clip)
        error_P = torch.maximum(error_P, (held_P - returns_P) ** 2)
    return error_P / 2


def token_weights(
    turn_index: Sequence[int], *, turns: int, tokens: int, per: Literal["turn", "token"]
) -> list[float]:
    """Weights that make a sum over a batch of `turns` turns and `tokens` tokens a mean.

    `turn`: the mean over turns of the mean over their tokens, so that a long reply counts as
    much as a short one. `token`: the mean over tokens.
    """
    if per == "token":
        return [1.0 / tokens] * len(turn_index)
    sizes = Counter(turn_index)
    return [1.0 / (sizes[turn] * turns) for turn in turn_index]


class _Once(torch.autograd.Function):
    """One number a row, and the row's gradient together with it: its logits are made only once.

    A row has no say in another's number, so the gradient of the sum holds each row's own.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, score: Callable[..., Tensor], chunk: int, *streams: Tensor
    ) -> Tensor:
        found: list[Tensor] = []
        grads: list[Tensor] = []
        for at in range(0, len(hidden_MD), chunk):
            hidden_CD = hidden_MD[at : at + chunk].detach().requires_grad_()
            with torch.enable_grad():
                found_C = score(hidden_CD, *(one[at : at + chunk] for one in streams))
                grads += torch.autograd.grad(found_C.sum(), hidden_CD)
            found.append(found_C.detach())
        ctx.save_for_backward(torch.cat(grads))
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_M,) = grads
        (own_MD,) = ctx.saved_tensors
        grad_MD = (grad_M[:, None] * own_MD).to(own_MD.dtype)
        return grad_MD, *(None for _ in ctx.needs_input_grad[1:])


def _in_chunks(score: Callable[..., Tensor], chunk: int, *streams: Tensor) -> Tensor:
    """Apply a function to slices; each slice's logits are made again in the backward pass."""
    first = streams[0]
    parts = []
    for at in range(0, first.shape[0], chunk):
        part = [one[at : at + chunk] for one in streams]
        if torch.is_grad_enabled() and first.requires_grad:
            parts.append(checkpoint(score, *part, use_reentrant=False))
        else:
            parts.append(score(*part))
    return torch.cat(parts) if parts else first.new_zeros(0, dtype=torch.float32)
