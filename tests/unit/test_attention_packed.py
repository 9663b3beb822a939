"""Trunks and branches side by side, as a GPU's kernel reads them, against attention with masks."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from instar.train.attention import layout_of, tree_attention
from instar.train.packed import Packed, attend, pack, rounded
from instar.types import Segment, Tree

HEADS, SIZE = 2, 4


@st.composite
def forests(draw: st.DrawFn) -> Tree:
    """One or two trees; a segment hangs under any that is before it in its tree."""
    segments: list[Segment] = []
    ids: list[int] = []
    positions: list[int] = []
    for _ in range(draw(st.integers(1, 2))):
        root = len(segments)
        for number in range(draw(st.integers(1, 5))):
            parent = -1 if not number else draw(st.integers(root, len(segments) - 1))
            length = draw(st.integers(1, 4))
            above = 0 if parent < 0 else positions[_end(segments[parent]) - 1] + 1
            segments.append(Segment(len(ids), length, parent))
            positions += range(above, above + length)
            ids += range(length)
    return Tree(ids=tuple(ids), positions=tuple(positions), segments=tuple(segments))


def _end(one: Segment) -> int:
    return one.start + one.length


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    hidden = torch.ones(len(query), len(key), dtype=torch.bool).triu(len(key) - len(query) + 1)
    scores = torch.einsum("lhd,phd->hlp", query, key) / SIZE**0.5
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hlp,phd->lhd", weights, value)


class ByHand:
    """What the kernels compute: each sequence's own tokens are the end of what it reads."""

    def alone(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return causal(query, key, value)

    def together(self, packed: Packed, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        assert packed.longest == int(packed.starts.diff().max())
        assert packed.read_longest == int(packed.read_starts.diff().max())
        sizes, read = (one.diff().tolist() for one in (packed.starts, packed.read_starts))
        split = query.split(sizes), key.split(read), value.split(read)
        return torch.cat([causal(*one) for one in zip(*split, strict=True)])


@settings(deadline=None)
@given(forests(), st.sampled_from([None, 1, 3, 6]))
def test_it_gives_the_same_output_and_gradients(tree: Tree, long: int | None) -> None:
    """However long a first path must be to be read by itself."""
    layout = layout_of(tree, device=torch.device("cpu"), dtype=torch.float32)
    torch.manual_seed(0)
    given_THD = torch.randn(3, len(tree.ids), HEADS, SIZE)
    pull_THD = torch.randn(len(tree.ids), HEADS, SIZE)
    found = []
    for way in ("masks", "packed"):
        q, k, v = (one.clone().requires_grad_() for one in given_THD)
        if way == "packed":
            side_by_side = pack(layout.parts, torch.device("cpu"), long=long)
            out = attend(side_by_side, q, k, v, kernels=ByHand())
        else:
            rows = [one.transpose(0, 1)[None] for one in (q, k, v)]
            out = tree_attention(None, *rows, None, layout=layout, scaling=SIZE**-0.5)[0][0]
        grads = torch.autograd.grad((out * pull_THD).sum(), (q, k, v))
        found.append((out, *grads))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_sequences_that_share_nothing_are_read_where_they_lie() -> None:
    tree = Tree(
        ids=(1, 2, 3, 4, 5),
        positions=(0, 1, 0, 1, 2),
        segments=(Segment(0, 2, -1), Segment(2, 3, -1)),
    )
    layout = layout_of(tree, device=torch.device("cpu"), dtype=torch.float32)
    found = pack(layout.parts, torch.device("cpu"))
    assert found.stretches is None
    assert found.starts.tolist() == found.read_starts.tolist() == [0, 2, 5]
    assert found.longest == found.read_longest == 3


def test_a_branch_reads_what_is_above_it_and_itself() -> None:
    """A trunk of two segments, and a branch off the first."""
    tree = Tree(
        ids=(1, 2, 3, 4, 5, 6),
        positions=(0, 1, 2, 3, 2, 3),
        segments=(Segment(0, 2, -1), Segment(2, 2, 0), Segment(4, 2, 0)),
    )
    layout = layout_of(tree, device=torch.device("cpu"), dtype=torch.float32)
    found = pack(layout.parts, torch.device("cpu"))
    assert found.starts.tolist() == [0, 4, 6]
    assert found.read_starts.tolist() == [0, 4, 8]
    assert found.stretches == ((0, 4), (0, 2), (4, 6))


def test_a_long_first_path_is_read_by_itself_and_its_branches_beside_the_others() -> None:
    """A trunk of four with a branch of two, and a tree of one token."""
    tree = Tree(
        ids=(1, 2, 3, 4, 5, 6, 7),
        positions=(0, 1, 2, 3, 2, 3, 0),
        segments=(Segment(0, 2, -1), Segment(2, 2, 0), Segment(4, 2, 0), Segment(6, 1, -1)),
    )
    layout = layout_of(tree, device=torch.device("cpu"), dtype=torch.float32)
    found = pack(layout.parts, torch.device("cpu"), long=4)
    assert found.alone == ((0, 4),)
    assert found.own == ((4, 7),)
    assert found.stretches == ((0, 2), (4, 6), (6, 7))
    assert found.starts.tolist() == [0, 2, 3]
    assert found.read_starts.tolist() == [0, 4, 5]


@given(st.integers(1, 100_000))
def test_a_length_is_rounded_up_by_a_64th_at_most(size: int) -> None:
    assert size <= rounded(size) <= size * 65 / 64
    octave = range(1 << (size.bit_length() - 1), 1 << size.bit_length())
    assert size > 2000 or len({rounded(one) for one in octave}) <= 65
