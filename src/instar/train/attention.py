"""Attention over a forest of tokens: each token sees its ancestors and itself, nothing else.

The first path of each tree, which merging makes the longest, is plain causal attention and
costs what one sequence would. Each branch reads its own path: what lies above it and itself.
Trees never meet. A GPU in 16 bits has kernels that need no masks (`packed.py`).

T tokens of the forest, S of all that is read, N of one tree, L of one branch, P of its path,
H heads, K key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from instar.errors import ModelError
from instar.train import packed
from instar.train.packed import Branch, Packed, Part
from instar.types import Segment, Tree

NAME = "instar_tree"
"""Under which transformers knows it."""


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
        packed=packed.pack(parts, device, long=packed.long_from(device)) if packs else None,
    )


def _part(segments: tuple[Segment, ...], first: int, *, masks: torch.device | None) -> Part:
    """The part of one tree whose first segment is number `first` of the forest."""
    start, end = segments[0].start, segments[-1].start + segments[-1].length
    trunk = next((one.start for at, one in enumerate(segments[1:], first) if one.parent != at), end)
    branches = []
    for one in segments:
        if one.start < trunk or not one.length:
            continue
        path = packed.joined(
            (own.start - start, own.start - start + own.length)
            for own in _path(segments, one, first)
        )
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
        rows = [one[0].transpose(0, 1) for one in (query_1HTD, key_1KTD, value_1KTD)]
        kernels = packed.Kernels(scale=scaling, dropout=dropout)
        return packed.attend(layout.packed, *rows, kernels=kernels)[None], None
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


def register() -> None:
    """Make the attention known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, tree_attention)
