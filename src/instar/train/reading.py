"""What weights say, without changing them: log-probs, likelihoods, the distance to a teacher.

T tokens of a tree, M trained tokens, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from instar.config import TrainingConfig
from instar.train import losses
from instar.train.copying import sent
from instar.train.linear import LinearHead
from instar.train.model import Model, View
from instar.types import Sample, Segment, Tree

Weights = Literal["policy", "base"]
"""The trained weights, or the model as it was before any training."""


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
        first, tree = len(prompt_ids), path(prompt_ids, sampled_ids)
        with self.model.frozen() if weights == "base" else self.model.reading() as view:
            found_M = losses.logprobs(
                self.head_of(view),
                self.model.hidden(view, tree)[first - 1 : -1],
                targets_M=self.longs(sampled_ids),
                temperatures_M=self.floats([temperature] * len(sampled_ids)),
                chunk=self.chunk,
            )
        return tuple(found_M.tolist())

    @torch.no_grad()
    def sample_logprobs(self, sample: Sample) -> tuple[float, ...]:
        """Log-probs of a sample's trained tokens under the trained weights, at temperature 1.

        Turns that share a beginning are read together, so that it is read once.
        """
        previous = sample.tree.previous()
        with self.model.reading() as view:
            before_M = self.longs([previous[at] for at in sample.at])
            found_M = losses.logprobs(
                self.head_of(view),
                self.model.hidden(view, sample.tree)[before_M],
                targets_M=self.longs([sample.tree.ids[at] for at in sample.at]),
                temperatures_M=self.floats([1.0] * len(sample.at)),
                chunk=self.chunk,
            )
        return tuple(found_M.tolist())

    @torch.no_grad()
    def likelihoods(
        self, prompt_ids: Sequence[int], endings: Sequence[Sequence[int]]
    ) -> list[float]:
        """The log-prob of each ending under the frozen base; the prompt is read once."""
        tree = _fan(prompt_ids, endings)
        previous = tree.previous()
        at = list(range(len(prompt_ids), len(tree.ids)))
        with self.model.frozen() as view:
            found_M = losses.logprobs(
                self.head_of(view),
                self.model.hidden(view, tree)[self.longs([previous[one] for one in at])],
                targets_M=self.longs([tree.ids[one] for one in at]),
                temperatures_M=self.floats([1.0] * len(at)),
                chunk=self.chunk,
            )
        sizes = [len(one) for one in endings]
        return [float(part.sum()) for part in torch.split(found_M, sizes)]

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


def _fan(prompt_ids: Sequence[int], endings: Sequence[Sequence[int]]) -> Tree:
    """A prompt with several endings, the longest first as trees are laid out."""
    trunk = len(prompt_ids)
    ids, positions = list(prompt_ids), list(range(trunk))
    segments = [Segment(0, trunk, -1)]
    for ending in endings:
        segments.append(Segment(len(ids), len(ending), 0))
        ids += ending
        positions += range(trunk, trunk + len(ending))
    return Tree(ids=tuple(ids), positions=tuple(positions), segments=tuple(segments))
