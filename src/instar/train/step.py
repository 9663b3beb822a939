"""One optimiser step from one Batch, on one machine with PyTorch.

Comes in: samples (token trees with streams). Goes out: better weights and metrics. The trainer
never learns which method gave the credit: it reads advantages and distillation weights.

T tokens of a tree, M trained tokens, D features, P turns with a value estimate.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from instar.config import TrainingConfig
from instar.errors import ModelError
from instar.train import losses
from instar.train.anchors import Anchor, Anchors
from instar.train.linear import LinearHead, Summary
from instar.train.model import Model, View
from instar.train.reading import WeightsReader, path
from instar.types import Batch, Sample

_VALUE_HEAD = "value."
"""How the names of its parameters begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lesson:
    """A teacher, and which trained tokens it has something to say on."""

    at_M: Tensor
    others_M: Tensor
    teacher: losses.Teacher | Summary


class TorchTrainer(WeightsReader):
    """Holds the model, the optimiser and nothing of where batches come from."""

    def __init__(
        self,
        folder: Path,
        training: TrainingConfig,
        *,
        device: str = "auto",
        dtype: str = "auto",
        seed: int = 0,
        anchors: Sequence[Anchor] = (),
    ) -> None:
        """With `anchors`, each step also holds the policy to some of these answers."""
        super().__init__(Model(folder, training, device=device, dtype=dtype, seed=seed), training)
        self.steps = 0
        self._anchors = Anchors(self, anchors)
        self._value: nn.Linear | None = None
        if self.training.value_head:
            self._value = nn.Linear(self.model.hidden_size, 1).to(self.model.device)
            nn.init.zeros_(self._value.weight)
            nn.init.zeros_(self._value.bias)
        self._parameters = self.model.trainable() | dict(self._value_parameters())
        self._optimizer = torch.optim.AdamW(
            list(self._parameters.values()),
            lr=training.learning_rate,
            weight_decay=self.training.weight_decay,
            # In one kernel for all of them, where that is faster.
            fused=True if self.model.device.type == "cuda" else None,
        )

    def steps_on(self, batch: Batch, times: float) -> dict[str, float]:
        """So many updates from one batch; the teacher, which stays as it is, reads it once.

        2.5 are three that are each as long as five sixths of one.
        """
        teachers = [self._teacher(sample) for sample in batch.samples]
        whole = math.ceil(times)
        metrics: dict[str, float] = {}
        for _ in range(whole):
            metrics = self.step(batch, teachers, length=times / whole)
        return metrics

    def step(
        self, batch: Batch, teachers: Sequence[_Lesson | None] = (), *, length: float = 1.0
    ) -> dict[str, float]:
        """One update; gives its metrics."""
        if not batch.turns:
            raise ValueError("the batch has no turn with credit; there is nothing to train on")
        self._optimizer.zero_grad(set_to_none=True)
        terms = self.accumulate(batch, teachers)
        held = self._anchors.accumulate(
            self.steps, count=self.training.anchors, weight=self.training.anchor_weight
        )
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), self.training.clip_grad_norm)
        rate = length * self._rate()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._update(sound=torch.isfinite(norm))
        self._optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        # Read only now: a GPU that is asked sooner has nothing to do meanwhile.
        size = float(norm)
        skipped = 1.0 - math.isfinite(size)
        return (
            _metrics(batch, _summed(terms))
            | held
            | {"grad_norm": size, "lr": rate, "skipped": skipped}
        )

    def _update(self, *, sound: Tensor) -> None:
        """One broken batch must not break the weights for good."""
        if self.model.device.type == "cuda":
            # Its optimiser looks there itself; asked here, the GPU would wait for the answer.
            self._optimizer.found_inf = 1.0 - sound.float()  # type: ignore[attr-defined]
            self._optimizer.step()
        elif sound:
            self._optimizer.step()

    def accumulate(
        self, batch: Batch, teachers: Sequence[_Lesson | None] = ()
    ) -> list[dict[str, Tensor]]:
        """Add the gradients of a batch to the parameters, one forward pass a sample; gives what
        its metrics are made of."""
        every: list[dict[str, Tensor]] = []
        turns, tokens = len(batch.turns), sum(len(sample.at) for sample in batch.samples)
        for at, sample in enumerate(batch.samples):
            weights = losses.token_weights(
                sample.turn_index, turns=turns, tokens=tokens, per=self.training.loss_mean
            )
            lesson = teachers[at] if teachers else self._teacher(sample)
            loss, terms = self._loss(sample, lesson, weights, turns)
            loss.backward()  # type: ignore[no-untyped-call]
            every.append(terms)
        return every

    @torch.no_grad()
    def value(self, prompt_ids: Sequence[int]) -> float:
        """The value head's estimate at the end of a prompt."""
        if self._value is None:
            raise ModelError("this trainer has no value head; set training.value_head")
        tree = path(prompt_ids, ())
        with self.model.reading() as view:
            return float(self._value(self.model.hidden(view, tree)[-1].float()))

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's folder form; all weights where all are trained."""
        self.model.save(folder)

    def load_adapter(self, folder: Path) -> None:
        """Go on from a saved adapter, with a fresh optimiser state."""
        self.model.load_adapter(folder)

    def state(self) -> dict[str, Any]:
        """All that the next step depends on: weights, moments and random numbers belong together.

        Tensors and plain values only, for `torch.save` and `torch.load(weights_only=True)`.
        """
        device = self.model.device
        return {
            "steps": self.steps,
            "weights": {name: one.detach().cpu() for name, one in self._parameters.items()},
            "optimizer": self._optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state` was taken; a value head that it does not have begins anew."""
        weights = state["weights"]
        if odd := _shapes(weights).items() ^ _shapes(self._parameters).items():
            name, shape = min(odd)
            raise ModelError(
                f"The trainer's state is of other parameters than are trained now: {name} of shape "
                f"{list(shape)} is in one of the two only. Expected the same model and the same "
                "lora_rank and lora_target_modules as when it was saved."
            )
        with torch.no_grad():
            for name, own in self._parameters.items():
                own.copy_(weights[name]) if name in weights else own.zero_()
        self._optimizer.load_state_dict(self._moments(state))
        self.steps = state["steps"]
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"] is not None and self.model.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], self.model.device)

    def _moments(self, state: dict[str, Any]) -> dict[str, Any]:
        """The optimiser's part of a state, for what is trained now and as it is set now."""
        names = list(state["weights"])
        place = {name: at for at, name in enumerate(self._parameters)}
        moments = {
            place[names[at]]: one
            for at, one in state["optimizer"]["state"].items()
            if names[at] in place
        }
        return {"state": moments, "param_groups": self._optimizer.state_dict()["param_groups"]}

    def _loss(
        self, sample: Sample, lesson: _Lesson | None, weights: Sequence[float], turns: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The sample's share of the batch's loss, and what its metrics are made of."""
        hidden_TD = self.model.hidden(self.model.policy, sample.tree)
        hidden_MD = hidden_TD[self._before(sample)]
        weights_M = self.floats(weights)
        logprobs_M, found = self._read(sample, lesson, hidden_MD)
        advantages_M = self._advantages(sample, lesson, found)
        policy, terms = self._policy_loss(sample, logprobs_M, advantages_M, weights_M)
        distill, more = self._distill_loss(sample, lesson, found, weights_M)
        value = self._value_loss(sample, hidden_MD) / turns
        loss = policy + distill + self.training.value_weight * value
        terms |= more | {"loss": loss.detach(), "value_loss": value.detach()}
        return loss, terms

    def _read(
        self, sample: Sample, lesson: _Lesson | None, hidden_MD: Tensor
    ) -> tuple[Tensor, losses.Taught | None]:
        """Log-probs of all trained tokens, and what a teacher says where there is one."""
        head = self.head_of(self.model.policy)
        targets_M = self.longs([sample.tree.ids[at] for at in sample.at])
        temperatures_M = self.floats(sample.temperatures)
        frozen = not self.model.trains_head
        if lesson is None:
            found_M = losses.logprobs(
                head,
                hidden_MD,
                targets_M=targets_M,
                temperatures_M=temperatures_M,
                chunk=self.chunk,
                frozen=frozen,
            )
            return found_M, None
        found = losses.taught(
            head,
            hidden_MD[lesson.at_M],
            teacher=lesson.teacher,
            targets_M=targets_M[lesson.at_M],
            temperatures_M=temperatures_M[lesson.at_M],
            chunk=self.chunk,
            top_k=self.training.opd_top_k,
            kind=self.training.divergence,
        )
        alone_M = losses.logprobs(
            head,
            hidden_MD[lesson.others_M],
            targets_M=targets_M[lesson.others_M],
            temperatures_M=temperatures_M[lesson.others_M],
            chunk=self.chunk,
            frozen=frozen,
        )
        order_M = torch.cat((lesson.at_M, lesson.others_M)).argsort()
        return torch.cat((found.logprobs_M, alone_M))[order_M], found

    def _advantages(
        self, sample: Sample, lesson: _Lesson | None, found: losses.Taught | None
    ) -> Tensor:
        """What each trained token is worth, once its teacher has been heard."""
        advantages_M = self.floats(sample.advantages)
        if lesson is not None and found is not None:
            heard_M = losses.blamed(advantages_M[lesson.at_M], found, blame=self.training.blame)
            advantages_M[lesson.at_M] = heard_M
        return advantages_M

    def _policy_loss(
        self, sample: Sample, logprobs_M: Tensor, advantages_M: Tensor, weights_M: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        found = losses.policy_loss(
            logprobs_M,
            recorded_M=self.floats(sample.logprobs),
            advantages_M=advantages_M,
            clip_low=self.training.ppo_clip_ratio,
            clip_high=self.training.ppo_clip_ratio_high,
            ratio_cap=self.training.importance_cap,
        )
        loss = (weights_M * found.loss_M).sum()
        return loss, {
            "policy_loss": loss.detach(),
            "clip_sum": found.clipped_M.sum(),
            "ratio_sum": found.ratio_M.sum(),
            "kl_sum": (found.ratio_M - 1 - found.ratio_M.log()).sum(),
        }

    def _distill_loss(
        self,
        sample: Sample,
        lesson: _Lesson | None,
        found: losses.Taught | None,
        weights_M: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if lesson is None or found is None:
            zero = weights_M.new_zeros(())
            return zero, {"distill_loss": zero, "distill_kl_sum": zero}
        at_M = lesson.at_M
        wanted_M = weights_M[at_M] * self.floats(sample.distill_weights)[at_M]
        wanted_M = wanted_M * losses.agreement(
            self.floats(sample.advantages)[at_M], found, dissent=self.training.dissent
        )
        clipped_M = losses.clipped_kl(found.divergence_M, self.training.opd_clip)
        loss = (wanted_M * clipped_M).sum()
        kl = found.divergence_M.detach().sum()
        return loss, {"distill_loss": loss.detach(), "distill_kl_sum": kl}

    def _teacher(self, sample: Sample) -> _Lesson | None:
        """What is said before each distilled token by those that have read the hint."""
        entries = [at for at, weight in enumerate(sample.distill_weights) if weight]
        if not entries or sample.hinted is None:
            return None
        at_M = self.longs(entries)
        others = sorted(set(range(len(sample.at))) - set(entries))
        with self.model.frozen() as view:
            teacher = losses.Teacher(
                head=self.head_of(view),
                hinted_MD=self._hinted(view, sample, entries),
                temperature=self.training.teacher_temperature,
            )
        # Of one head, a mean of hidden states has the mean of their logits.
        share = self.training.teacher_share
        if share and not self.model.trains_head:
            with self.model.reading() as view:
                own_MD = self._hinted(view, sample, entries)
            teacher = replace(teacher, hinted_MD=torch.lerp(teacher.hinted_MD, own_MD, share))
        return _Lesson(
            at_M=at_M,
            others_M=self.longs(others),
            teacher=self._summary(sample, entries, teacher) or teacher,
        )

    def _hinted(self, view: View, sample: Sample, entries: Sequence[int]) -> Tensor:
        """Hidden states before these trained tokens, where the hint has been read."""
        assert sample.hinted is not None
        previous = sample.hinted.previous()
        before_M = self.longs([previous[sample.hinted_at[entry]] for entry in entries])
        return self.model.hidden(view, sample.hinted)[before_M]

    def _summary(
        self, sample: Sample, entries: Sequence[int], teacher: losses.Teacher
    ) -> Summary | None:
        """What all steps on a batch need of its teacher, made once; None where that is not all."""
        if self.training.divergence != "forward" or self.training.opd_top_k:
            return None
        if not isinstance(self.head_of(self.model.policy), LinearHead):
            return None  # a head that is trained has to be read with its logits
        return teacher.summary(
            targets_M=self.longs([sample.tree.ids[sample.at[entry]] for entry in entries]),
            temperatures_M=self.floats([sample.temperatures[entry] for entry in entries]),
            chunk=self.chunk,
        )

    def _value_loss(self, sample: Sample, hidden_MD: Tensor) -> Tensor:
        """Summed over turns; estimates are made at the end of a turn's prompt."""
        known = [at for at, target in enumerate(sample.returns) if target is not None]
        if self._value is None or not known:
            return hidden_MD.new_zeros((), dtype=torch.float32)
        first = {turn: at for at, turn in reversed(list(enumerate(sample.turn_index)))}
        # Detached: the estimate must not pull on what the model says.
        hidden_PD = hidden_MD.detach()[[first[turn] for turn in known]].float()
        return losses.value_loss(
            self._value(hidden_PD)[:, 0],
            old_P=self.floats([sample.values[turn] or 0.0 for turn in known]),
            returns_P=self.floats([sample.returns[turn] or 0.0 for turn in known]),
            clip=self.training.value_clip_ratio if self.training.value_clip else None,
        ).sum()

    def _rate(self) -> float:
        warmup = self.training.warmup_steps
        return self.training.learning_rate * min(1.0, (self.steps + 1) / (warmup + 1))

    def _value_parameters(self) -> list[tuple[str, nn.Parameter]]:
        if self._value is None:
            return []
        return [(f"{_VALUE_HEAD}{name}", one) for name, one in self._value.named_parameters()]


def _summed(every: Sequence[Mapping[str, Tensor]]) -> Counter[str]:
    if not every:
        return Counter()
    names = list(every[0])
    rows = [torch.stack([terms[name].double() for name in names]) for terms in every]
    return Counter(dict(zip(names, torch.stack(rows).sum(0).tolist(), strict=True)))


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Of all but the value head, which may be there or not."""
    return {
        name: tuple(one.shape) for name, one in weights.items() if not name.startswith(_VALUE_HEAD)
    }


def _metrics(batch: Batch, sums: Counter[str]) -> dict[str, float]:
    """What is shown of a step; sums over trained tokens become means."""
    trained = sum(len(sample.at) for sample in batch.samples)
    distilled = sum(bool(weight) for sample in batch.samples for weight in sample.distill_weights)
    return {
        **{name: sums[name] for name in ("loss", "policy_loss", "distill_loss", "value_loss")},
        "kl": sums["kl_sum"] / trained,
        "ratio": sums["ratio_sum"] / trained,
        "clip_share": sums["clip_sum"] / trained,
        "distill_kl": sums["distill_kl_sum"] / max(1, distilled),
        "reward_mean": statistics.fmean(batch.rewards) if batch.rewards else float("nan"),
        "reward_std": statistics.pstdev(batch.rewards) if batch.rewards else float("nan"),
        "turns": float(len(batch.turns)),
        "tokens": float(sum(len(sample.tree.ids) for sample in batch.samples)),
        "trained_tokens": float(trained),
        "stale": float(batch.counts.get("stale", 0)),
    }
