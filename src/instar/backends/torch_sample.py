"""Draws tokens from logits: one row a reply, each with its own settings and random stream.

In come the logits of a step; out go token ids, the log-prob of each under the full
distribution at its temperature (before top-k and top-p), and the likeliest alternatives.

N replies, V vocabulary, K candidates.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CANDIDATES = 256
"""How many of the likeliest tokens are sorted first for top-p; the rest only where needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How one reply is drawn."""

    temperature: float
    top_p: float
    top_k: int
    top_logprobs: int
    rng: random.Random
    """Of this reply alone, so that its draws do not depend on its neighbours in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One sampled token."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def sample(logits_NV: Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """One token a row."""
    logprobs_NV = _logprobs(logits_NV.float(), draws)
    tokens_N = logprobs_NV.argmax(-1)
    vocab = logprobs_NV.shape[-1]
    drawn = [at for at, draw in enumerate(draws) if draw.temperature > 0]
    limited = [at for at in drawn if draws[at].top_p < 1 or 0 < draws[at].top_k < vocab]
    free = [at for at in drawn if at not in set(limited)]
    if free:
        uniform = _uniform([draws[at] for at in free], logits_NV.device)
        tokens_N[free] = _inverse(logprobs_NV[free].exp(), uniform)
    if limited:
        tokens_N[limited] = _limited(logprobs_NV[limited], [draws[at] for at in limited])
    chosen_N = logprobs_NV.gather(-1, tokens_N[:, None])[:, 0]
    tops = _tops(logprobs_NV, draws)
    pairs = zip(tokens_N.tolist(), chosen_N.tolist(), tops, strict=True)
    return [Drawn(token=token, logprob=logprob, top=top) for token, logprob, top in pairs]


def _logprobs(logits_NV: Tensor, draws: Sequence[Draw]) -> Tensor:
    scales = [draw.temperature or 1.0 for draw in draws]
    if any(scale != 1.0 for scale in scales):
        logits_NV = logits_NV / torch.tensor(scales, device=logits_NV.device)[:, None]
    return logits_NV.log_softmax(-1)


def _uniform(draws: Sequence[Draw], device: torch.device) -> Tensor:
    return torch.tensor([[draw.rng.random()] for draw in draws], dtype=torch.float64, device=device)


def _inverse(weights_NK: Tensor, uniform_N1: Tensor) -> Tensor:
    """The index at which the running sum of the weights passes `uniform` of their total."""
    sums_NK = weights_NK.cumsum(-1, dtype=torch.float64)
    found_N1 = torch.searchsorted(sums_NK, uniform_N1 * sums_NK[:, -1:], right=True)
    return found_N1[:, 0].clamp_(max=weights_NK.shape[-1] - 1)


def _limited(logprobs_NV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Tokens drawn from what top-k, and then top-p of the rest, leave over."""
    device, vocab = logprobs_NV.device, logprobs_NV.shape[-1]
    top_k_N = torch.tensor([[draw.top_k or vocab] for draw in draws], device=device)
    top_p_N = torch.tensor([[draw.top_p] for draw in draws], dtype=torch.float64, device=device)
    size = min(vocab, max(CANDIDATES, *(draw.top_k for draw in draws)))
    while True:
        values_NK, ids_NK = logprobs_NV.topk(size, dim=-1)
        weights_NK = values_NK.double().exp()
        if size == vocab or _covered(weights_NK, top_k_N, top_p_N):
            break
        size = min(vocab, size * 16)
    weights_NK[torch.arange(size, device=device) >= top_k_N] = 0.0
    before_NK = weights_NK.cumsum(-1) - weights_NK
    total_N = torch.where(top_k_N > size, 1.0, weights_NK.sum(-1, keepdim=True))
    # The likeliest token has nothing before it and so always stays.
    weights_NK[before_NK >= top_p_N * total_N] = 0.0
    picks_N = _inverse(weights_NK, _uniform(draws, device))
    return ids_NK.gather(-1, picks_N[:, None])[:, 0]


def _covered(weights_NK: Tensor, top_k_N: Tensor, top_p_N: Tensor) -> bool:
    """Whether the candidates hold all that the limits let through, in every row."""
    enough = (weights_NK.sum(-1, keepdim=True) >= top_p_N) & (top_p_N < 1)
    return bool((enough | (top_k_N <= weights_NK.shape[-1])).all())


def _tops(logprobs_NV: Tensor, draws: Sequence[Draw]) -> list[tuple[tuple[int, float], ...]]:
    most = min(max(draw.top_logprobs for draw in draws), logprobs_NV.shape[-1])
    if not most:
        return [()] * len(draws)
    values, ids = (part.tolist() for part in logprobs_NV.topk(most, dim=-1))
    return [
        tuple(zip(ids[at][: draw.top_logprobs], values[at][: draw.top_logprobs], strict=True))
        for at, draw in enumerate(draws)
    ]
