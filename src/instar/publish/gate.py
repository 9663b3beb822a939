"""The gate: may this candidate replace the live version?

Comes in: how the live version and the candidate do on the owner's held-out corrections (turns
that were corrected and never trained on), and how likely the base and the candidate find the
reference answers of the retention set. Goes out: a report that accepts or rejects, in words.

The rules, all of which must hold:

- **Held-out corrections.** Each turn has two numbers: the mean KL divergence a token from the
  policy to the hinted teacher (lower: it does by itself what the person had to ask for), and
  the mean log-prob a token of the reply that was corrected away (lower: it does that less).
  The candidate is rejected if one gets worse and the other does not get better: a verdict can
  move a policy a little past its teacher, which is no loss as long as what was corrected away
  goes on getting rarer. Worse means two things at once: the mean over the turns is worse than
  the live version's by more than the tolerance, and it is not by chance, that is, 95 of 100
  paired resamplings of the turns say worse too (bootstrap; the same turns are compared, so that
  easy and hard ones cancel). One turn cannot be resampled; there the tolerance alone decides.
  Without held-out corrections there is nothing to compare, which the report says.
- **Never far from the teacher.** A candidate that is much further from the teacher than the
  base was before it learned anything has left the topic, whatever else got better: rejected.
- **Held-out attempts.** Tasks of environments of which attempts are kept from training. Their
  turns have a number each: minus the advantage of the attempt against its group times the mean
  log-prob a token (lower: what succeeded is likelier, what failed less so). It is a first-order
  estimate of the reward on tasks never trained on, from attempts that are there anyway; playing
  them again with every candidate would take longer than training it. The same two conditions
  make it worse, but what is resampled are tasks: turns at one task fare alike, so that many of
  them say little more than one. Fewer than four tasks decide nothing, which the report says.
- **Retention.** exp(mean log-prob a token of the candidate - that of the base) over the
  reference answers must reach `min_retention`: compared with the base and not with the live
  version, so that many small losses cannot add up to a large one.
- **Numbers.** A measurement that is missing or not finite rejects: unknown is not fine.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from statistics import fmean
from typing import Any

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
TASKS = 4
"""Held-out tasks that it takes to reject a version by them: two or three may all get worse by
chance, and a run begins with few."""
ASTRAY = 0.25
"""Nats a token by which a version may be further from its teacher than the base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One entry of the retention set."""

    kind: str
    """Such as fact, how_to, story, list, translation, code or small_talk."""
    question: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """How one version does on one held-out corrected turn."""

    turn: str
    teacher_kl: float
    """Mean a token, policy against hinted teacher, on the recorded reply."""
    reply_logprob: float
    """Mean a token of the reply that was corrected away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """How one version does on one turn of a held-out attempt at a task."""

    turn: str
    group: str
    """Attempts at one task."""
    advantage: float
    """Of the attempt, against its group."""
    reply_logprob: float
    """Mean a token of the recorded reply."""

    @property
    def loss(self) -> float:
        return -self.advantage * self.reply_logprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One measure of two versions over the same turns."""

    live: float
    candidate: float
    low: float
    high: float
    """Between these lie 90 of 100 resampled differences (candidate - live)."""
    worse: bool
    better: bool = False
    """By more than the tolerance, and not by chance; between the two it is as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """What the gate measured, what it decided, and why."""

    accepted: bool
    reasons: tuple[str, ...]
    """In words: why it was rejected, or what spoke for it."""
    live: str
    candidate: str
    turns: int
    """Held-out corrections that were compared."""
    references: int
    teacher_kl: Comparison | None = None
    reply_logprob: Comparison | None = None
    attempts: Comparison | None = None
    """Over held-out tasks: the mean over the turns of each one's attempts."""
    retention: float | None = None
    """Likelihood of the reference answers, a token, as a share of the base's."""
    retention_by_kind: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a manifest or a row. Numbers that JSON cannot hold become null."""
        found: dict[str, Any] = _plain(dataclasses.asdict(self))
        return found

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> GateReport:
        values = dict(found)
        for name in ("teacher_kl", "reply_logprob", "attempts"):
            if values.get(name) is not None:
                values[name] = Comparison(**values[name])
        return cls(**{**values, "reasons": tuple(values["reasons"])})

    def text(self) -> str:
        """For people."""
        verdict = "accepted" if self.accepted else "REJECTED"
        lines = [f"{self.candidate} against {self.live}: {verdict}"]
        lines += [f"  - {reason}" for reason in self.reasons]
        if self.retention_by_kind:
            kinds = sorted(self.retention_by_kind.items(), key=lambda pair: pair[1])
            lines.append("  retention by kind: " + ", ".join(f"{k} {v:.3f}" for k, v in kinds))
        return "\n".join(lines)


def decide(
    *,
    candidate: str,
    live: str,
    old: Sequence[Correction],
    new: Sequence[Correction],
    base: Sequence[Correction],
    references: Sequence[Reference],
    base_answers: Sequence[float],
    new_answers: Sequence[float],
    tolerance: float,
    min_retention: float,
    tried: tuple[Sequence[Tried], Sequence[Tried]] = ((), ()),
) -> GateReport:
    """The rules above, as a pure function. `tried` is of the live version and the candidate."""
    wrong = _unusable((old, new, base), references, base_answers, new_answers, tried)
    if wrong:
        return GateReport(
            accepted=False,
            reasons=(wrong,),
            live=live,
            candidate=candidate,
            turns=len(old),
            references=len(references),
        )
    # Both are in nats a token, of which a share of a likelihood is log(1 + share).
    kl, logprob = _compare(old, new, margin=math.log1p(tolerance))
    astray, _ = _compare(base, new, margin=ASTRAY)
    against, fine = _on_corrections(kl, logprob, astray, len(old))
    attempts = _compare_tried(*tried, tolerance=tolerance)
    if attempts is not None:
        words = _in_words("loss", attempts, _tasks(tried[0]), "held-out tasks")
        (against if attempts.worse else fine).append(words)
    elif tried[0]:
        fine.append(f"{_tasks(tried[0])} held-out tasks are too few to say anything ({TASKS})")
    kept, by_kind = _retention(references, base_answers, new_answers)
    if kept is None:
        fine.append("the retention set is empty, so forgetting was not measured")
    elif kept < min_retention:
        against.append(f"retention is {kept:.3f}, below the {min_retention:g} that is asked for")
    else:
        fine.append(f"retention is {kept:.3f} ({min_retention:g} is asked for)")
    return GateReport(
        accepted=not against,
        reasons=tuple(against or fine),
        live=live,
        candidate=candidate,
        turns=len(old),
        references=len(references),
        teacher_kl=kl,
        reply_logprob=logprob,
        attempts=attempts,
        retention=kept,
        retention_by_kind=by_kind,
    )


def _on_corrections(
    kl: Comparison | None, logprob: Comparison | None, astray: Comparison | None, turns: int
) -> tuple[list[str], list[str]]:
    """What held-out corrections say against a candidate and what for it."""
    if kl is None or logprob is None or astray is None:
        return [], ["there are no held-out corrections yet, so none could get worse"]
    against: list[str] = []
    fine: list[str] = []
    for name, found, other in (
        ("KL to the hinted teacher", kl, logprob),
        ("log-prob of the bad reply", logprob, kl),
    ):
        words = _in_words(name, found, turns)
        (against if found.worse and not other.better else fine).append(words)
    if astray.worse:
        against.append(
            f"KL to the hinted teacher is {astray.candidate:.4f}, much further than "
            f"the {astray.live:.4f} of the base before it learned anything"
        )
    return against, fine


def retention_set() -> list[Reference]:
    """The questions and reference answers that come with instar."""
    file = resources.files("instar.publish").joinpath("data/retention.jsonl")
    return [Reference(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def _unusable(
    measured: Sequence[Sequence[Correction]],
    references: Sequence[Reference],
    base_answers: Sequence[float],
    new_answers: Sequence[float],
    tried: tuple[Sequence[Tried], Sequence[Tried]],
) -> str | None:
    """Why these measurements decide nothing."""
    if len({tuple(sorted(one.turn for one in found)) for found in measured}) > 1:
        return "the versions were not measured on the same held-out turns"
    if not len(references) == len(base_answers) == len(new_answers):
        return "not every reference answer was measured under both versions"
    if [one.turn for one in tried[0]] != [one.turn for one in tried[1]]:
        return "the two versions were not measured on the same held-out attempts"
    numbers = [
        n for found in measured for one in found for n in (one.teacher_kl, one.reply_logprob)
    ]
    numbers += [one.loss for some in tried for one in some]
    bad = [n for n in (*numbers, *base_answers, *new_answers) if not math.isfinite(n)]
    if bad:
        return f"{len(bad)} measurements are not finite numbers (the first is {bad[0]})"
    return None


def _compare(
    old: Sequence[Correction], new: Sequence[Correction], *, margin: float
) -> tuple[Comparison | None, Comparison | None]:
    if not old:
        return None, None
    by_turn = {one.turn: one for one in new}
    pairs = [(one, by_turn[one.turn]) for one in old]
    kl = [(before.teacher_kl, after.teacher_kl) for before, after in pairs]
    logprob = [(before.reply_logprob, after.reply_logprob) for before, after in pairs]
    return (
        _paired(*zip(*kl, strict=True), margin=margin),
        _paired(*zip(*logprob, strict=True), margin=margin),
    )


def _compare_tried(
    live: Sequence[Tried], candidate: Sequence[Tried], *, tolerance: float
) -> Comparison | None:
    if _tasks(live) < TASKS:
        return None
    # A change of a likelihood by the tolerance, for the typical attempt.
    margin = math.log1p(tolerance) * fmean(abs(one.advantage) for one in live)
    return _paired(_by_task(live), _by_task(candidate), margin=margin)


def _tasks(tried: Sequence[Tried]) -> int:
    return len({one.group for one in tried})


def _by_task(tried: Sequence[Tried]) -> list[float]:
    """The mean loss of each group's turns, always in the same order."""
    groups: dict[str, list[float]] = {}
    for one in tried:
        groups.setdefault(one.group, []).append(one.loss)
    return [fmean(groups[name]) for name in sorted(groups)]


def _paired(live: Sequence[float], candidate: Sequence[float], *, margin: float) -> Comparison:
    """Both measures are better when lower."""
    differences = np.subtract(candidate, live)
    # Seeded: the same measurements always give the same decision.
    chance = np.random.default_rng(len(live))
    drawn = chance.integers(0, len(live), size=(RESAMPLES, len(live)))
    means = differences[drawn].mean(axis=1)
    low, high = (float(np.quantile(means, q)) for q in (1 - CONFIDENCE, CONFIDENCE))
    change = float(differences.mean())
    return Comparison(
        live=fmean(live),
        candidate=fmean(candidate),
        low=low,
        high=high,
        worse=change > margin and low > 0,
        better=change < -margin and high < 0,
    )


def _in_words(name: str, found: Comparison, turns: int, what: str = "held-out corrections") -> str:
    change = found.candidate - found.live
    way = "worse" if found.worse else ("better" if change < 0 else "no worse within the tolerance")
    return (
        f"{name} on {turns} {what} went from {found.live:.4f} to "
        f"{found.candidate:.4f} ({change:+.4f}, resampled {found.low:+.4f} to {found.high:+.4f}): "
        f"{way}"
    )


def _retention(
    references: Sequence[Reference], base: Sequence[float], new: Sequence[float]
) -> tuple[float | None, dict[str, float]]:
    if not references:
        return None, {}
    by_kind: dict[str, list[float]] = {}
    for one, before, after in zip(references, base, new, strict=True):
        by_kind.setdefault(one.kind, []).append(after - before)
    every = [change for changes in by_kind.values() for change in changes]
    return _exp(fmean(every)), {kind: _exp(fmean(changes)) for kind, changes in by_kind.items()}


def _exp(value: float) -> float:
    return math.exp(min(value, 50.0))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
