"""How a GPU in 16 bits reads a forest: kernels that know causal attention and need no masks.

All first paths and branches lie side by side in one call of FlashAttention 2. Where cuDNN has a
kernel that is twice as fast for one long sequence, each long first path is read with that: on an
H200 one of 9,000 tokens of a 4B model took 4.4 ms a layer, forward and backward, and not 8.3.

T tokens of the forest, S of all that is read, L of one path, H heads, K key/value heads, D head
size.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from instar.train.copying import sent

Stretch = tuple[int, int]
"""Tokens from and to."""

_LONG = 2048
"""Tokens of a path from which on a kernel of its own pays."""
_HOPPER = (9, 0)
"""The first GPUs on which that kernel is the faster one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A segment off the first path."""

    own: Stretch
    """Where its tokens lie in the tree."""
    path: tuple[Stretch, ...]
    """Where those lie that it sees, from the root down; its own come last."""
    mask_LP: Tensor | None
    """Which of its path each token sees; None where a kernel works that out by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One tree of a forest."""

    length: int
    trunk: int
    """Tokens of the first path, which lie first."""
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Long first paths by themselves, and everything else as sequences side by side."""

    alone: tuple[Stretch, ...]
    """Where the long first paths lie."""
    own: tuple[Stretch, ...] | None
    """Where all else lies; None where that is every token."""
    stretches: tuple[Stretch, ...] | None
    """What that reads, in order; None where it is every token once."""
    starts: Tensor
    """Where each sequence's own tokens begin among those, and where the last one's end."""
    longest: int
    read_starts: Tensor
    """The same of what each one reads."""
    read_longest: int


def long_from(device: torch.device) -> int | None:
    """Tokens from which on a path is read by itself on this device; None where none is."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _HOPPER:
        return None
    # Older versions of PyTorch cannot be told which kernel is to be tried first.
    return _LONG if "set_priority" in inspect.signature(sdpa_kernel).parameters else None


def pack(parts: Sequence[Part], device: torch.device, *, long: int | None = None) -> Packed:
    """Of a forest whose trees lie one after the other."""
    alone: list[Stretch] = []
    rest: list[Stretch] = []
    own: list[int] = []
    read: list[tuple[Stretch, ...]] = []
    start = 0
    for part in parts:
        first = (start, start + part.trunk)
        if long is not None and part.trunk >= long:
            alone.append(first)
        else:
            rest.append(first)
            own.append(part.trunk)
            read.append((first,))
        for branch in part.branches:
            rest.append((start + branch.own[0], start + branch.own[1]))
            own.append(branch.own[1] - branch.own[0])
            read.append(tuple((start + a, start + b) for a, b in branch.path))
        start += part.length
    lengths = [sum(b - a for a, b in path) for path in read]
    apart = bool(alone) or any(part.branches for part in parts)
    return Packed(
        alone=tuple(alone),
        own=joined(rest) if alone else None,
        stretches=tuple(one for path in read for one in path) if apart else None,
        starts=_starts(own, device),
        longest=max(own, default=0),
        read_starts=_starts(lengths, device),
        read_longest=max(lengths, default=0),
    )


def _starts(lengths: list[int], device: torch.device) -> Tensor:
    return sent([0, *accumulate(lengths)], torch.int32, device)


def joined(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """Neighbours become one."""
    out: list[Stretch] = []
    for begin, end in stretches:
        if out and out[-1][1] == begin:
            out[-1] = (out[-1][0], end)
        else:
            out.append((begin, end))
    return tuple(out)


class Reading(Protocol):
    """The two ways to read; causal, and a query that is shorter than its keys is their end."""

    def alone(self, query_LHD: Tensor, key_LKD: Tensor, value_LKD: Tensor) -> Tensor: ...

    def together(
        self, packed: Packed, query_THD: Tensor, key_SKD: Tensor, value_SKD: Tensor
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The GPU's."""

    scale: float | None
    dropout: float

    def alone(self, query_LHD: Tensor, key_LKD: Tensor, value_LKD: Tensor) -> Tensor:
        size = len(query_LHD)
        # What is added comes last, where no token sees it.
        more = (0, 0, 0, rounded(size) - size)
        query, key, value = (
            F.pad(one.transpose(0, 1), more)[None] for one in (query_LHD, key_LKD, value_LKD)
        )
        with sdpa_kernel(
            [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True
        ):
            out_1HLD = F.scaled_dot_product_attention(
                query,
                key,
                value,
                is_causal=True,
                scale=self.scale,
                dropout_p=self.dropout,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        return out_1HLD[0, :, :size].transpose(0, 1)

    def together(
        self, packed: Packed, query_THD: Tensor, key_SKD: Tensor, value_SKD: Tensor
    ) -> Tensor:
        # What torch.nn.attention.varlen calls, under a name that older versions have too.
        out_THD: Tensor = torch.ops.aten._flash_attention_forward(
            query_THD,
            key_SKD,
            value_SKD,
            packed.starts,
            packed.read_starts,
            packed.longest,
            packed.read_longest,
            self.dropout,
            True,
            False,
            scale=self.scale,
        )[0]
        return out_THD


def rounded(size: int) -> int:
    """A 64th longer at most: a kernel is planned anew for each length, which takes 80 ms."""
    step = 1 << max(0, size.bit_length() - 7)
    return -(-size // step) * step


def attend(
    packed: Packed, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, *, kernels: Reading
) -> Tensor:
    """What each token reads, [T, H, D]."""
    rows = (query_THD, key_TKD, value_TKD)
    found = [(a, kernels.alone(*(one[a:b] for one in rows))) for a, b in packed.alone]
    if packed.longest:
        out_THD = kernels.together(
            packed,
            gathered(query_THD, packed.own),
            gathered(key_TKD, packed.stretches),
            gathered(value_TKD, packed.stretches),
        )
        if packed.own is None:
            return out_THD
        parts = torch.split(out_THD, [b - a for a, b in packed.own])
        found += [(a, part) for (a, _), part in zip(packed.own, parts, strict=True)]
    if len(found) == 1:
        return found[0][1]
    return torch.cat([part for _, part in sorted(found, key=lambda one: one[0])])


class _Gathered(torch.autograd.Function):
    """Stretches of rows one after the other.

    Autograd would make a tensor of the full size for each stretch to add its gradient from.
    """

    @staticmethod
    def forward(ctx: Any, rows_TKD: Tensor, stretches: tuple[Stretch, ...]) -> Tensor:
        ctx.stretches, ctx.shape = stretches, rows_TKD.shape
        return torch.cat([rows_TKD[a:b] for a, b in stretches])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad_SKD,) = grads
        out_TKD = grad_SKD.new_zeros(ctx.shape)
        sizes = [b - a for a, b in ctx.stretches]
        for (a, b), part in zip(ctx.stretches, torch.split(grad_SKD, sizes), strict=True):
            out_TKD[a:b] += part
        return out_TKD, None


def gathered(rows_TKD: Tensor, stretches: tuple[Stretch, ...] | None) -> Tensor:
    if stretches is None:
        return rows_TKD
    found_SKD: Tensor = _Gathered.apply(rows_TKD, stretches)  # type: ignore[no-untyped-call]
    return found_SKD
