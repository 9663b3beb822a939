"""Attention over a forest of tokens: each token sees its ancestors and itself, nothing else.

The first path of each tree, which merging makes the longest, is plain causal attention and
costs what one sequence would. Each branch reads its own path: what lies above it and itself.
Trees never meet.

T tokens of the forest, N of one tree, L of one branch, P of its path, H heads, K key/value
heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from instar.errors import ModelError
from instar.types import Segment, Tree

NAME = "instar_tree"
"""Under which transformers knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A segment off the first path."""

    own: tuple[int, int]
    """Where its tokens lie in the tree, from and to."""
    path: tuple[tuple[int, int], ...]
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
class Layout:
    """How a forest lies in its row; made once for all layers."""

    parts: tuple[Part, ...]
    depth: int
    """Tokens of the longest path."""


def layout_of(tree: Tree, *, device: torch.device) -> Layout:
    roots = [at for at, one in enumerate(tree.segments) if one.parent < 0]
    edges = [*roots, len(tree.segments)]
    parts = [_part(tree.segments[a:b], a, device=device) for a, b in pairwise(edges)]
    return Layout(parts=tuple(parts), depth=max(tree.positions, default=-1) + 1)


def _part(segments: tuple[Segment, ...], first: int, *, device: torch.device) -> Part:
    """The part of one tree whose first segment is number `first` of the forest."""
    start, end = segments[0].start, segments[-1].start + segments[-1].length
    trunk = next((one.start for at, one in enumerate(segments[1:], first) if one.parent != at), end)
    branches = []
    for one in segments:
        if one.start < trunk or not one.length:
            continue
        path = _joined(_path(segments, one, first), start)
        mask_LP = None
        if device.type != "cuda":
            above = sum(b - a for a, b in path) - one.length
            mask_LP = torch.ones(one.length, above + one.length, dtype=torch.bool).tril(above)
        own = one.start - start
        branches.append(Branch(own=(own, own + one.length), path=path, mask_LP=mask_LP))
    return Part(length=end - start, trunk=trunk - start, branches=tuple(branches))


def _path(segments: tuple[Segment, ...], one: Segment, first: int) -> list[Segment]:
    found = [one]
    while found[-1].parent >= 0:
        found.append(segments[found[-1].parent - first])
    return found[::-1]


def _joined(path: list[Segment], start: int) -> tuple[tuple[int, int], ...]:
    """Stretches of the tree; neighbours become one."""
    out: list[tuple[int, int]] = []
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
    grouped = heads != key_1KPD.shape[1]
    # Only the kernels for 16 bits take fewer key than query heads together with a mask.
    if grouped and (mask_LP is not None or query_1HLD.dtype == torch.float32):
        key_1KPD, value_1KPD, grouped = (
            _repeated(key_1KPD, heads),
            _repeated(value_1KPD, heads),
            False,
        )
    mask: Tensor = (
        causal_lower_right(query_1HLD.shape[2], key_1KPD.shape[2]) if mask_LP is None else mask_LP
    )
    return F.scaled_dot_product_attention(
        query_1HLD,
        key_1KPD,
        value_1KPD,
        attn_mask=mask,
        scale=scale,
        dropout_p=dropout,
        enable_gqa=grouped,
    )


def _repeated(one_1KND: Tensor, heads: int) -> Tensor:
    batch, kv_heads, tokens, size = one_1KND.shape
    wide = one_1KND[:, :, None].expand(batch, kv_heads, heads // kv_heads, tokens, size)
    return wide.reshape(batch, heads, tokens, size)


def register() -> None:
    """Make the attention known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, tree_attention)
