"""What weights say, without changing them: log-probs and the distance to a teacher.

T tokens of a tree, M trained tokens, D features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from instar.config import TrainingConfig
from instar.train import losses
from instar.train.copying import sent
from instar.train.linear import LinearHead
from instar.train.model import Model, View
from instar.tries import Trie
from instar.types import Sample, Segment, Tree

Weights = Literal["policy", "base"]
"""The trained weights, or the model as it was before any training."""

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""A prompt, and what was sampled after it."""

_PASS = 1024
"""Tokens that are read side by side: more are no faster, and need more memory. What shares most of
its tokens with those joins them all the same, up to `training.max_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstTeacher:
    """How some weights stand to a hinted teacher on one reply, each a mean over its tokens."""

    kl: float
    """KL from the weights to the teacher."""
    wanted: float
    """The part of it that training works at: without what the verdict has overruled."""
    logprob: float
    """Of the reply itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What reading something more does to the frozen base on one reply."""

    kl: float
    """From what it thinks then to what it thinks without, a mean over the reply's tokens."""
    gains: tuple[float, ...]
    """Of the reply's own tokens: log-probs with it minus without."""


class WeightsReader:
    """Reads with a model that something else may train."""

    def __init__(self, model: Model, training: TrainingConfig) -> None:
        self.model, self.training = model, training
        self.chunk = losses.chunk_size(model.vocab, model.memory)

    @torch.no_grad()
    def logprobs(
        self,
        prompt_ids: Sequence[int],
        sampled_ids: Sequence[int],
        *,
        temperature: float = 1.0,
        weights: Weights = "policy",
    ) -> tuple[float, ...]:
        """Log-probs of sampled ids after a prompt, under the trained weights or the frozen base."""
        pairs = [(tuple(prompt_ids), tuple(sampled_ids))]
        return self.each_logprobs(pairs, temperature=temperature, weights=weights)[0]

    @torch.no_grad()
    def each_logprobs(
        self, pairs: Sequence[Pair], *, temperature: float = 1.0, weights: Weights = "policy"
    ) -> list[tuple[float, ...]]:
        """The same of many prompts with what was sampled after each.

        What they begin with alike is read once, and short ones side by side: one after the other
        a CPU took twice as long for replies of a dozen words.
        """
        found: dict[int, tuple[float, ...]] = {}
        with self.model.frozen() if weights == "base" else self.model.reading() as view:
            for some, trie in _passes(pairs, most=self.training.max_tokens):
                chosen = [pairs[at] for at in some]
                found |= zip(some, self._logprobs(view, chosen, trie, temperature), strict=True)
        return [found[at] for at in range(len(pairs))]

    def _logprobs(
        self, view: View, pairs: Sequence[Pair], trie: Trie, temperature: float
    ) -> list[tuple[float, ...]]:
        """In one pass over the trie of these pairs."""
        tree = trie.tree()
        previous = tree.previous()
        at = [one for prompt, said in pairs for one in trie.find(prompt + said)[len(prompt) :]]
        found_M = losses.logprobs(
            self.head_of(view),
            self.model.hidden(view, tree)[self.longs([previous[one] for one in at])],
            targets_M=self.longs([tree.ids[one] for one in at]),
            temperatures_M=self.floats([temperature] * len(at)),
            chunk=self.chunk,
        )
        parts = torch.split(found_M, [len(sampled) for _, sampled in pairs])
        return [tuple(part.tolist()) for part in parts]

    @torch.no_grad()
    def teacher_of(self, hinted_ids: Sequence[int], sampled_ids: Sequence[int]) -> losses.Teacher:
        """What the frozen base thinks of a reply once it has read the hint: it never changes.

        Not the teacher of the loss, half of which is the policy: two versions are compared by it.
        """
        with self.model.frozen() as view:
            hidden_TD = self.model.hidden(view, path(hinted_ids, sampled_ids))
            return losses.Teacher(
                head=self.head_of(view),
                hinted_MD=hidden_TD[len(hinted_ids) - 1 : -1],
                temperature=self.training.teacher_temperature,
            )

    @torch.no_grad()
    def moved(
        self,
        prompt_ids: Sequence[int],
        sampled_ids: Sequence[int],
        others: Sequence[Sequence[int]],
    ) -> list[Moved]:
        """How the frozen base moves where it reads each of these prompts instead."""
        out = []
        with self.model.frozen() as view:
            head = self.head_of(view)

            def read(ids: Sequence[int]) -> Tensor:
                return self.model.hidden(view, path(ids, sampled_ids))[len(ids) - 1 : -1]

            plain_MD = read(prompt_ids)
            for other in others:
                found = losses.taught(
                    head,
                    plain_MD,
                    teacher=losses.Teacher(head=head, hinted_MD=read(other), temperature=1.0),
                    targets_M=self.longs(sampled_ids),
                    temperatures_M=self.floats([1.0] * len(sampled_ids)),
                    chunk=self.chunk,
                    kind="forward",
                )
                gains = (found.theirs_M - found.logprobs_M).tolist()
                out.append(Moved(kl=float(found.divergence_M.mean()), gains=tuple(gains)))
        return out

    @torch.no_grad()
    def against_teacher(
        self,
        prompt_ids: Sequence[int],
        sampled_ids: Sequence[int],
        teacher: losses.Teacher,
        *,
        verdict: float = 0.0,
        unheard: Sequence[bool] = (),
        weights: Weights = "policy",
    ) -> AgainstTeacher:
        """Some weights against the teacher that has read the hint, on a reply with a verdict.

        Training does not listen to the teacher on tokens that are `unheard`.
        """
        plain = path(prompt_ids, sampled_ids)
        ones_M = self.floats([1.0] * len(sampled_ids))
        with self.model.frozen() if weights == "base" else self.model.reading() as view:
            found = losses.taught(
                self.head_of(view),
                self.model.hidden(view, plain)[len(prompt_ids) - 1 : -1],
                teacher=teacher,
                targets_M=self.longs(sampled_ids),
                temperatures_M=ones_M,
                chunk=self.chunk,
            )
        agreed_M = losses.agreement(verdict * ones_M, found, dissent=self.training.dissent)
        if unheard:
            agreed_M = agreed_M * (1 - self.floats(unheard))
        return AgainstTeacher(
            kl=float(found.divergence_M.mean()),
            wanted=float((agreed_M * found.divergence_M).mean()),
            logprob=float(found.logprobs_M.mean()),
        )

    def _before(self, sample: Sample) -> Tensor:
        """Where each trained token's logits come from."""
        previous = sample.tree.previous()
        return self.longs([previous[at] for at in sample.at])

    def head_of(self, view: View) -> losses.Head:
        if (weight_VD := view.product) is not None:
            return LinearHead(weight_VD)

        def logits(hidden_CD: Tensor) -> Tensor:
            with self.model.precision():
                return view.head(hidden_CD)

        return logits

    def longs(self, values: Sequence[int]) -> Tensor:
        return sent(values, torch.long, self.model.device)

    def floats(self, values: Sequence[float]) -> Tensor:
        return sent(values, torch.float32, self.model.device)


def path(prompt_ids: Sequence[int], sampled_ids: Sequence[int]) -> Tree:
    """A tree without branches."""
    ids = (*prompt_ids, *sampled_ids)
    return Tree(ids=ids, positions=tuple(range(len(ids))), segments=(Segment(0, len(ids), -1),))


def _passes(pairs: Sequence[Pair], *, most: int) -> Iterator[tuple[list[int], Trie]]:
    """Which are read together: neighbours in the order of their ids, for those share most."""
    whole = [prompt + sampled for prompt, sampled in pairs]
    some: list[int] = []
    trie = Trie()
    for at in sorted(range(len(pairs)), key=whole.__getitem__):
        shared = trie.shared(whole[at])
        new = len(whole[at]) - shared
        if some and trie.size + new > (most if shared > new else min(most, _PASS)):
            yield some, trie
            some, trie = [], Trie()
        trie.add(whole[at])
        some.append(at)
    if some:
        yield some, trie
