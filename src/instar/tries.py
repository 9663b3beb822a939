"""Token sequences that share beginnings, as one tree in which each token stands once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from instar.types import Segment, Tree


@dataclass(slots=True, eq=False)
class _Node:
    """A run of tokens without a branch, and what follows it."""

    ids: tuple[int, ...]
    children: dict[int, _Node] = field(default_factory=dict)
    """By their first token."""
    weight: int = 0
    """Tokens on the longest path from here on."""
    start: int = 0
    """Where it lies in the packed tree."""


class Trie:
    """Grows by one sequence at a time."""

    def __init__(self) -> None:
        self._root = _Node(())
        self.size = 0

    def shared(self, ids: Sequence[int]) -> int:
        """How many of the first tokens are in the trie."""
        return self._walk(ids)[1]

    def add(self, ids: tuple[int, ...]) -> None:
        path, shared = self._walk(ids)
        node = path[-1]
        into = shared - sum(len(one.ids) for one in path[:-1])
        if into < len(node.ids):
            rest = _Node(node.ids[into:], node.children)
            node.ids, node.children = node.ids[:into], {rest.ids[0]: rest}
        if shared < len(ids):
            node.children[ids[shared]] = _Node(ids[shared:])
            self.size += len(ids) - shared

    def tree(self) -> Tree:
        """Depth first, the longest branch first: then the longest path is one run of tokens."""
        for node in reversed(self._nodes()):
            longest = max((child.weight for child in node.children.values()), default=0)
            node.weight = len(node.ids) + longest
        ids: list[int] = []
        positions: list[int] = []
        segments: list[Segment] = []
        todo = [(child, -1, 0) for child in _longest_last(self._root)]
        while todo:
            node, parent, depth = todo.pop()
            node.start = len(ids)
            segments.append(Segment(node.start, len(node.ids), parent))
            ids += node.ids
            positions += range(depth, depth + len(node.ids))
            here, below = len(segments) - 1, depth + len(node.ids)
            todo += [(child, here, below) for child in _longest_last(node)]
        return Tree(ids=tuple(ids), positions=tuple(positions), segments=tuple(segments))

    def find(self, ids: Sequence[int]) -> list[int]:
        """Where each token lies in the packed tree."""
        path, _ = self._walk(ids)
        places = [at for node in path for at in range(node.start, node.start + len(node.ids))]
        return places[: len(ids)]

    def _walk(self, ids: Sequence[int]) -> tuple[list[_Node], int]:
        """The nodes along these ids, the last perhaps only in part, and how many ids match."""
        path, at = [self._root], 0
        while at < len(ids) and (child := path[-1].children.get(ids[at])) is not None:
            path.append(child)
            matched = _common(child.ids, ids[at : at + len(child.ids)])
            at += matched
            if matched < len(child.ids):
                break
        return path, at

    def _nodes(self) -> list[_Node]:
        """Parents before children."""
        out = [self._root]
        for node in out:
            out += node.children.values()
        return out


def _longest_last(node: _Node) -> list[_Node]:
    return sorted(node.children.values(), key=lambda child: (child.weight, child.ids))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning, by halving: whole slices compare faster than tokens."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if tuple(one[low:middle]) == tuple(other[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
