"""Attention over a forest of tokens: each token sees its ancestors and itself, nothing else.

The first path of each tree, which merging makes the longest, is plain causal attention and
costs what one sequence would. Each branch reads its own path: what lies above it and itself.
Trees never meet. A GPU in 16 bits reads all trunks and branches in one call of its kernel.

T tokens of the forest, S of all that is read, N of one tree, L of one branch, P of its path,
H heads, K key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from instar.errors import ModelError
from instar.types import Segment, Tree

NAME = "instar_tree"
"""Under which transformers knows it."""


Stretch = tuple[int, int]
"""Tokens from and to."""


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
    """All trunks and branches as sequences side by side, for one call of a GPU's kernel."""

    starts: Tensor
    """Where each one's own tokens begin, and where the last one's end."""
    longest: int
    read_starts: Tensor
    """The same of what each one reads."""
    read_longest: int
    stretches: tuple[Stretch, ...] | None
    """What is read, in order; None where that is every token once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a forest lies in its row; made once for all layers."""

    parts: tuple[Part, ...]
    depth: int
    """Tokens of the longest path."""
    packed: Packed | None = None


def layout_of(tree: Tree, *, device: torch.device, dtype: torch.dtype) -> Layout:
    roots = [at for at, one in enumerate(tree.segments) if one.parent < 0]
    edges = [*roots, len(tree.segments)]
    packs = device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    parts = tuple(
        _part(tree.segments[a:b], a, masks=None if packs else device) for a, b in pairwise(edges)
    )
    return Layout(
        parts=parts,
        depth=max(tree.positions, default=-1) + 1,
        packed=packed(parts, device) if packs else None,
    )


def packed(parts: tuple[Part, ...], device: torch.device) -> Packed:
    """Of a forest whose trees lie one after the other."""
    own: list[int] = []
    read: list[tuple[Stretch, ...]] = []
    start = 0
    for part in parts:
        paths = [((0, part.trunk),), *(branch.path for branch in part.branches)]
        own += [part.trunk, *(end - begin for begin, end in (one.own for one in part.branches))]
        read += [tuple((start + a, start + b) for a, b in path) for path in paths]
        start += part.length
    lengths = [sum(b - a for a, b in path) for path in read]
    branched = any(part.branches for part in parts)
    return Packed(
        starts=_starts(own, device),
        longest=max(own),
        read_starts=_starts(lengths, device),
        read_longest=max(lengths),
        stretches=tuple(one for path in read for one in path) if branched else None,
    )


def _starts(lengths: list[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def _part(segments: tuple[Segment, ...], first: int, *, masks: torch.device | None) -> Part:
    """The part of one tree whose first segment is number `first` of the forest."""
    start, end = segments[0].start, segments[-1].start + segments[-1].length
    trunk = next((one.start for at, one in enumerate(segments[1:], first) if one.parent != at), end)
    branches = []
    for one in segments:
        if one.start < trunk or not one.length:
            continue
        path = _joined(_path(segments, one, first), start)
        mask_LP = None
        if masks is not None:
            above = sum(b - a for a, b in path) - one.length
            shape = (one.length, above + one.length)
            mask_LP = torch.ones(shape, dtype=torch.bool, device=masks).tril(above)
        own = one.start - start
        branches.append(Branch(own=(own, own + one.length), path=path, mask_LP=mask_LP))
    return Part(length=end - start, trunk=trunk - start, branches=tuple(branches))


def _path(segments: tuple[Segment, ...], one: Segment, first: int) -> list[Segment]:
    found = [one]
    while found[-1].parent >= 0:
        found.append(segments[found[-1].parent - first])
    return found[::-1]


def _joined(path: list[Segment], start: int) -> tuple[Stretch, ...]:
    """Stretches of the tree; neighbours become one."""
    out: list[Stretch] = []
    for one in path:
        begin, end = one.start - start, one.start - start + one.length
        if out and out[-1][1] == begin:
            out[-1] = (out[-1][0], end)
        else:
            out.append((begin, end))
    return tuple(out)


def tree_attention(
    module: Any,
    query_1HTD: Tensor,
    key_1KTD: Tensor,
    value_1KTD: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls in each layer."""
    if layout is None:
        raise ModelError("this model does not hand the tree's layout down to its attention")
    if sliding_window is not None and layout.depth > sliding_window:
        raise ModelError(
            f"a sequence of {layout.depth} tokens is longer than this model's attention window of "
            f"{sliding_window}, which tree attention does not cut. Lower the longest sequence."
        )
    if unused.get("softcap") is not None or unused.get("s_aux") is not None:
        raise ModelError("this model caps its attention scores or has sinks; no tree attention yet")
    if layout.packed is not None:
        out_1THD = _attend_packed(
            layout.packed, query_1HTD, key_1KTD, value_1KTD, scale=scaling, dropout=dropout
        )
        return out_1THD, None
    sizes = [part.length for part in layout.parts]
    outputs = [
        _attend(part, q, k, v, scale=scaling, dropout=dropout)
        for part, q, k, v in zip(
            layout.parts,
            torch.split(query_1HTD, sizes, 2),
            torch.split(key_1KTD, sizes, 2),
            torch.split(value_1KTD, sizes, 2),
            strict=True,
        )
    ]
    return torch.cat(outputs, 2).transpose(1, 2), None


def _attend(
    part: Part,
    query_1HND: Tensor,
    key_1KND: Tensor,
    value_1KND: Tensor,
    *,
    scale: float | None,
    dropout: float,
) -> Tensor:
    trunk = part.trunk
    outputs = [
        F.scaled_dot_product_attention(
            query_1HND[:, :, :trunk],
            key_1KND[:, :, :trunk],
            value_1KND[:, :, :trunk],
            is_causal=True,
            scale=scale,
            dropout_p=dropout,
            enable_gqa=query_1HND.shape[1] != key_1KND.shape[1],
        )
    ]
    for branch in part.branches:
        begin, end = branch.own
        query_1HLD = query_1HND[:, :, begin:end]
        key_1KPD = torch.cat([key_1KND[:, :, a:b] for a, b in branch.path], 2)
        value_1KPD = torch.cat([value_1KND[:, :, a:b] for a, b in branch.path], 2)
        outputs.append(
            _branch(query_1HLD, key_1KPD, value_1KPD, branch.mask_LP, scale=scale, dropout=dropout)
        )
    return torch.cat(outputs, 2)


def _branch(
    query_1HLD: Tensor,
    key_1KPD: Tensor,
    value_1KPD: Tensor,
    mask_LP: Tensor | None,
    *,
    scale: float | None,
    dropout: float,
) -> Tensor:
    heads = query_1HLD.shape[1]
    # Only kernels for 16 bits take fewer key than query heads together with a mask.
    return F.scaled_dot_product_attention(
        query_1HLD,
        _repeated(key_1KPD, heads),
        _repeated(value_1KPD, heads),
        attn_mask=mask_LP,
        scale=scale,
        dropout_p=dropout,
    )


def _repeated(one_1KND: Tensor, heads: int) -> Tensor:
    batch, kv_heads, tokens, size = one_1KND.shape
    if heads == kv_heads:
        return one_1KND
    wide = one_1KND[:, :, None].expand(batch, kv_heads, heads // kv_heads, tokens, size)
    return wide.reshape(batch, heads, tokens, size)


def _attend_packed(
    packed: Packed,
    query_1HTD: Tensor,
    key_1KTD: Tensor,
    value_1KTD: Tensor,
    *,
    scale: float | None,
    dropout: float,
) -> Tensor:
    query_THD, key_TKD, value_TKD = (
        one[0].transpose(0, 1) for one in (query_1HTD, key_1KTD, value_1KTD)
    )
    # What torch.nn.attention.varlen calls, under a name that older versions have too. A query
    # that is shorter than what it reads is taken to be its end, which a branch is.
    out_THD: Tensor = torch.ops.aten._flash_attention_forward(
        query_THD,
        gathered(key_TKD, packed.stretches),
        gathered(value_TKD, packed.stretches),
        packed.starts,
        packed.read_starts,
        packed.longest,
        packed.read_longest,
        dropout,
        True,
        False,
        scale=scale,
    )[0]
    return out_THD[None]


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


def register() -> None:
    """Make the attention known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, tree_attention)
