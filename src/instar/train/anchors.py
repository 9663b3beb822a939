"""Holds a policy to what it must not forget, while it learns something else.

Comes in: answers to questions that have nothing to do with what is trained. Goes out: gradients
beside those of a batch, KL(base || policy) over the answers that the policy finds less likely than
the base did. The others weigh nothing: a style that suits them too may show in them.

T tokens of a forest, M tokens of the answers, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from instar.train import losses
from instar.train.linear import LinearHead
from instar.train.reading import WeightsReader, path
from instar.types import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """An answer without the token that ends it: how long a person likes answers is theirs."""

    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]


class Anchors:
    """Some of the answers at a time, in turn: together they cost more than what is learned."""

    def __init__(self, reader: WeightsReader, every: Sequence[Anchor]) -> None:
        limit = reader.model.limit
        self._reader = reader
        self._every = [one for one in every if limit is None or _length(one) <= limit.tokens]
        self._base: dict[int, Tensor] = {}
        """Hidden states before the tokens of those that have been read: the base stays as it is."""

    def accumulate(self, turn: int, *, count: int, weight: float) -> dict[str, float]:
        """Add the gradients of `count` answers, of others with each turn; gives its metrics."""
        count = min(count, len(self._every))
        chosen = [(turn * count + at) % len(self._every) for at in range(count)]
        if not chosen or not weight:
            return {}
        found = self._read(chosen)
        sizes = [len(self._every[at].reply_ids) for at in chosen]
        lost_M = (found.theirs_M - found.logprobs_M).detach()
        lost = [float(part.mean()) for part in torch.split(lost_M, sizes)]
        weights_M = self._reader.floats(
            [weight * (of > 0) for of, size in zip(lost, sizes, strict=True) for _ in range(size)]
        )
        loss = (weights_M * found.divergence_M).sum() / sum(sizes)
        loss.backward()  # type: ignore[no-untyped-call]
        rarer = sum(of > 0 for of in lost)
        return {"anchor_loss": float(loss.detach()), "anchors_rarer": float(rarer)}

    def _read(self, chosen: Sequence[int]) -> losses.Taught:
        """What the policy says of these answers, and the base."""
        reader, model = self._reader, self._reader.model
        targets_M = reader.longs([id for at in chosen for id in self._every[at].reply_ids])
        temperatures_M = torch.ones_like(targets_M, dtype=torch.float32)
        base = self._of_base(chosen)
        teacher = (
            base.summary(targets_M=targets_M, temperatures_M=temperatures_M, chunk=reader.chunk)
            if isinstance(reader.head_of(model.policy), LinearHead)
            else None
        )
        tree, before = self._forest(chosen)
        return losses.taught(
            reader.head_of(model.policy),
            model.hidden(model.policy, tree)[reader.longs(before)],
            teacher=teacher or base,
            targets_M=targets_M,
            temperatures_M=temperatures_M,
            chunk=reader.chunk,
            kind="forward",
        )

    def _of_base(self, chosen: Sequence[int]) -> losses.Teacher:
        """The base as a teacher of these answers; what it has not read yet, it reads."""
        reader = self._reader
        missing = [at for at in chosen if at not in self._base]
        with reader.model.frozen() as view:
            if missing:
                tree, before = self._forest(missing)
                hidden_MD = reader.model.hidden(view, tree)[reader.longs(before)]
                sizes = [len(self._every[at].reply_ids) for at in missing]
                parts = torch.split(hidden_MD, sizes)
                self._base |= {at: part.clone() for at, part in zip(missing, parts, strict=True)}
            hidden_MD = torch.cat([self._base[at] for at in chosen])
            return losses.Teacher(head=reader.head_of(view), hinted_MD=hidden_MD)

    def _forest(self, chosen: Sequence[int]) -> tuple[Tree, list[int]]:
        """Answers side by side, and where the logits of their tokens come from."""
        some = [self._every[at] for at in chosen]
        before: list[int] = []
        start = 0
        for one in some:
            first = start + len(one.prompt_ids) - 1
            before += range(first, first + len(one.reply_ids))
            start += _length(one)
        return Tree.joined([path(one.prompt_ids, one.reply_ids) for one in some]), before


def _length(one: Anchor) -> int:
    return len(one.prompt_ids) + len(one.reply_ids)
