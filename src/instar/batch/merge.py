"""Merges turns whose prompts share beginnings into trees: each token is computed once.

Comes in: turns with their credit. Goes out: Samples. A chain of turns becomes one path, a comb
(each turn a leaf on a shared trunk) a trunk with leaves, retries and edits branches. Only what
a trained turn was conditioned on is in a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from instar.batch.credit import Credit, Judged
from instar.types import Sample, Segment, Tree, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Samples, and what merging them cost or saved."""

    samples: tuple[Sample, ...]
    tokens: int
    """In the samples' trees."""
    unmerged_tokens: int
    """That training each turn on its own would take."""
    cuts: int = 0
    """Times a tree was cut in two since it would have grown too large."""
    too_long: tuple[str, ...] = ()
    """Turns left out since they alone are longer than the limit."""


Credited = tuple[Judged, Credit]


def merge(
    turns: Sequence[Credited], *, max_tokens: int | None = None, longest: int | None = None
) -> Merged:
    """Merge the turns into as few trees as their beginnings and the limit allow.

    A tree has at most `max_tokens`, a turn in it at most `longest`, where that is less.
    """
    limit = max_tokens if max_tokens is not None else _NO_LIMIT
    turn_limit = min(limit, longest if longest is not None else limit)
    fits = [one for one in turns if len(one[0].turn.ids) <= turn_limit]
    # In the order of their ids, turns that share most stand side by side, so cuts repeat little.
    fits.sort(key=lambda one: (one[0].turn.ids, one[0].turn.id))
    parts: list[list[Credited]] = []
    cuts = 0
    trie = _Trie()
    for one in fits:
        ids = one[0].turn.ids
        shared = trie.shared(ids)
        if not parts or shared == 0 or trie.size + len(ids) - shared > limit:
            cuts += bool(shared)
            trie = _Trie()
            parts.append([])
        trie.add(ids)
        parts[-1].append(one)
    samples = tuple(_sample(part) for part in parts)
    return Merged(
        samples=samples,
        tokens=sum(len(sample.tree.ids) for sample in samples),
        unmerged_tokens=sum(len(one[0].turn.ids) for one in fits),
        cuts=cuts,
        too_long=tuple(one[0].turn.id for one in turns if len(one[0].turn.ids) > turn_limit),
    )


_NO_LIMIT = 1 << 62


def _sample(part: Sequence[Credited]) -> Sample:
    """One tree of turns that share a beginning."""
    trie, hints = _Trie(), _Trie()
    for judged, credit in part:
        trie.add(judged.turn.ids)
        if any(credit.distill_weights):
            hints.add(_teacher_ids(judged))
    tree, at, hinted_at = trie.tree(), [], []
    hinted = hints.tree() if hints.size else None
    for judged, credit in part:
        size = len(judged.turn.sampled_ids)
        at += trie.find(judged.turn.ids)[-size:]
        distilled = any(credit.distill_weights)
        hinted_at += hints.find(_teacher_ids(judged))[-size:] if distilled else [-1] * size
    valued = any(credit.target is not None for _, credit in part)
    return Sample(
        tree=tree,
        turns=tuple(judged.turn.id for judged, _ in part),
        at=tuple(at),
        turn_index=tuple(n for n, one in enumerate(part) for _ in one[0].turn.sampled_ids),
        logprobs=tuple(value for judged, _ in part for value in judged.turn.logprobs),
        advantages=tuple(value for _, credit in part for value in credit.advantages),
        distill_weights=tuple(value for _, credit in part for value in credit.distill_weights),
        temperatures=tuple(
            temperature_of(judged.turn) for judged, _ in part for _ in judged.turn.sampled_ids
        ),
        hinted=hinted,
        hinted_at=tuple(hinted_at) if hinted is not None else (),
        values=tuple(credit.value for _, credit in part) if valued else (),
        returns=tuple(credit.target for _, credit in part) if valued else (),
    )


def temperature_of(turn: Turn) -> float:
    """The temperature of the recorded log-probs, which for greedy replies is 1."""
    return (turn.settings.temperature or 1.0) if turn.logprobs_scaled else 1.0


def _teacher_ids(judged: Judged) -> tuple[int, ...]:
    if judged.hinted_ids is None:
        raise ValueError(
            f"turn {judged.turn.id} has distillation weights but no hinted prompt for the teacher"
        )
    return judged.hinted_ids + judged.turn.sampled_ids


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


class _Trie:
    """Token sequences that share beginnings."""

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
