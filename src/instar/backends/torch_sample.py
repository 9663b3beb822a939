"""Draws tokens from logits: one row a reply, each with its own settings and random stream.

In come the logits of a step; out go token ids, the log-prob of each under the full
distribution at its temperature (before top-k and top-p), and the likeliest alternatives.

N replies, V vocabulary, K candidates, B blocks of the vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CANDIDATES = 256
"""How many of the likeliest tokens are sorted first for top-p; the rest only where needed."""


BLOCK = 256
BELOW_ONE = 1.0 - 2.0**-53


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
    vocab, device = logits_NV.shape[-1], logits_NV.device
    scaled_NV = _scaled(logits_NV.float(), draws)
    peak_N1 = scaled_NV.amax(-1, keepdim=True)
    weights_NV = (scaled_NV - peak_N1).exp_()
    norm_N1 = peak_N1 + weights_NV.sum(-1, keepdim=True).log_()
    if not bool(norm_N1.isfinite().all()):
        raise ValueError("the model's logits are not finite; expected numbers to draw from")
    greedy = [at for at, draw in enumerate(draws) if draw.temperature == 0]
    limited = [at for at, draw in enumerate(draws) if at not in greedy and _limits(draw, vocab)]
    free = [at for at in range(len(draws)) if at not in greedy and at not in limited]
    tokens_N = torch.empty(len(draws), dtype=torch.int64, device=device)
    if greedy:
        tokens_N[greedy] = _rows(scaled_NV, greedy).argmax(-1)
    if free:
        uniform_N1 = _uniform([draws[at] for at in free], device)
        tokens_N[free] = _inverse(_rows(weights_NV, free), uniform_N1)
    if limited:
        logprobs_NV = _rows(scaled_NV, limited) - norm_N1[limited]
        tokens_N[limited] = _limited(logprobs_NV, [draws[at] for at in limited])
    chosen_N = (scaled_NV.gather(-1, tokens_N[:, None]) - norm_N1)[:, 0]
    tops = _tops(scaled_NV, norm_N1, draws)
    pairs = zip(tokens_N.tolist(), chosen_N.tolist(), tops, strict=True)
    return [Drawn(token=token, logprob=logprob, top=top) for token, logprob, top in pairs]


def _scaled(logits_NV: Tensor, draws: Sequence[Draw]) -> Tensor:
    scales = [draw.temperature or 1.0 for draw in draws]
    if all(scale == 1.0 for scale in scales):
        return logits_NV
    return logits_NV / torch.tensor(scales, device=logits_NV.device)[:, None]


def _limits(draw: Draw, vocab: int) -> bool:
    return draw.top_p < 1 or 0 < draw.top_k < vocab


def _rows(values_NV: Tensor, rows: list[int]) -> Tensor:
    return values_NV if len(rows) == len(values_NV) else values_NV[rows]


def _uniform(draws: Sequence[Draw], device: torch.device) -> Tensor:
    return torch.tensor([[draw.rng.random()] for draw in draws], dtype=torch.float64, device=device)


def _inverse(weights_NK: Tensor, uniform_N1: Tensor) -> Tensor:
    """The index at which the running sum of the weights passes `uniform` of their total.

    First the block, then the place in it: a running sum over a whole vocabulary is slow.
    """
    spare = -weights_NK.shape[-1] % BLOCK
    blocks_NBK = F.pad(weights_NK, (0, spare)).view(len(weights_NK), -1, BLOCK)
    block_N1, within_N1 = _step(blocks_NBK.sum(-1), uniform_N1)
    inner_NK = blocks_NBK.take_along_dim(block_N1[..., None], 1)[:, 0]
    place_N1, _ = _step(inner_NK, within_N1)
    return (block_N1 * BLOCK + place_N1)[:, 0]


def _step(weights_NK: Tensor, uniform_N1: Tensor) -> tuple[Tensor, Tensor]:
    """The entry that `uniform` of the total falls into, and which share of that entry it passes."""
    sums_NK = weights_NK.cumsum(-1, dtype=torch.float64)
    goal_N1 = uniform_N1 * sums_NK[:, -1:]
    found_N1 = torch.searchsorted(sums_NK, goal_N1, right=True)
    # Only an entry of some weight is found: the sum must grow past a goal below the total.
    found_N1.clamp_(max=weights_NK.shape[-1] - 1)
    own_N1 = weights_NK.gather(-1, found_N1).double()
    before_N1 = sums_NK.gather(-1, found_N1) - own_N1
    return found_N1, ((goal_N1 - before_N1) / own_N1).clamp_(0.0, BELOW_ONE)


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
    picks_N1, _ = _step(weights_NK, _uniform(draws, device))
    return ids_NK.gather(-1, picks_N1)[:, 0]


def _covered(weights_NK: Tensor, top_k_N: Tensor, top_p_N: Tensor) -> bool:
    """Whether the candidates hold all that the limits let through, in every row."""
    enough = (weights_NK.sum(-1, keepdim=True) >= top_p_N) & (top_p_N < 1)
    return bool((enough | (top_k_N <= weights_NK.shape[-1])).all())


def _tops(
    scaled_NV: Tensor, norm_N1: Tensor, draws: Sequence[Draw]
) -> list[tuple[tuple[int, float], ...]]:
    most = min(max(draw.top_logprobs for draw in draws), scaled_NV.shape[-1])
    if not most:
        return [()] * len(draws)
    values_NK, ids_NK = scaled_NV.topk(most, dim=-1)
    values, ids = (values_NK - norm_N1).tolist(), ids_NK.tolist()
    return [
        tuple(zip(ids[at][: draw.top_logprobs], values[at][: draw.top_logprobs], strict=True))
        for at, draw in enumerate(draws)
    ]
