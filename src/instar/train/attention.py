"""Attention over a forest of tokens: each token sees its ancestors and itself, nothing else.

The first path of each tree, which merging makes the longest, is plain causal attention and
costs what one sequence would. What branches off reads its tree under a mask. Trees never meet.

T tokens of the forest, N of one tree, R of them off its first path, H heads, K key/value
heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from instar.errors import ModelError
from instar.types import Segment, Tree

NAME = "instar_tree"
"""Under which transformers knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One tree of a forest."""

    length: int
    trunk: int
    """Tokens of the first path, which lie first."""
    mask_RN: Tensor | None
    """0 where a token off the trunk may look and -inf elsewhere; None for a single path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a forest lies in its row; made once for all layers."""

    parts: tuple[Part, ...]
    depth: int
    """Tokens of the longest path."""


def layout_of(tree: Tree, *, device: torch.device, dtype: torch.dtype) -> Layout:
    roots = [at for at, one in enumerate(tree.segments) if one.parent < 0]
    edges = [*roots, len(tree.segments)]
    parts = [_part(tree.segments[a:b], a, device=device, dtype=dtype) for a, b in pairwise(edges)]
    return Layout(parts=tuple(parts), depth=max(tree.positions, default=-1) + 1)


def _part(
    segments: tuple[Segment, ...], first: int, *, device: torch.device, dtype: torch.dtype
) -> Part:
    """The part of one tree whose first segment is number `first` of the forest."""
    start, end = segments[0].start, segments[-1].start + segments[-1].length
    trunk = next((one.start for at, one in enumerate(segments[1:], first) if one.parent != at), end)
    if trunk == end:
        return Part(length=end - start, trunk=end - start, mask_RN=None)
    # Kernels want rows of 16 bytes, so the mask is cut from a wider one.
    size, wide = end - start, -(-(end - start) // 8) * 8
    mask_RN = torch.full((end - trunk, wide), float("-inf"), dtype=dtype)[:, :size]
    for one in segments:
        if one.start < trunk:
            continue
        rows_LN = mask_RN[one.start - trunk : one.start - trunk + one.length]
        own = slice(one.start - start, one.start - start + one.length)
        rows_LN[:, own] = torch.full((one.length, one.length), float("-inf")).triu(1)
        above = one.parent
        while above >= 0:
            ancestor = segments[above - first]
            rows_LN[:, ancestor.start - start :][:, : ancestor.length] = 0
            above = ancestor.parent
    return Part(length=size, trunk=trunk - start, mask_RN=mask_RN.to(device))


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
    grouped = query_1HND.shape[1] != key_1KND.shape[1]
    along = F.scaled_dot_product_attention(
        query_1HND[:, :, :trunk],
        key_1KND[:, :, :trunk],
        value_1KND[:, :, :trunk],
        is_causal=True,
        scale=scale,
        dropout_p=dropout,
        enable_gqa=grouped,
    )
    if part.mask_RN is None:
        return along
    off = F.scaled_dot_product_attention(
        query_1HND[:, :, trunk:],
        # CUDA's kernels that take a mask want as many key as query heads.
        _repeated(key_1KND, query_1HND.shape[1]),
        _repeated(value_1KND, query_1HND.shape[1]),
        attn_mask=part.mask_RN,
        scale=scale,
        dropout_p=dropout,
    )
    return torch.cat((along, off), 2)


def _repeated(one_1KND: Tensor, heads: int) -> Tensor:
    batch, kv_heads, tokens, size = one_1KND.shape
    wide = one_1KND[:, :, None].expand(batch, kv_heads, heads // kv_heads, tokens, size)
    return wide.reshape(batch, heads, tokens, size)


def register() -> None:
    """Make the attention known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, tree_attention)
