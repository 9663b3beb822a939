"""The gate: may this candidate replace the live version?

Comes in: how the live version and the candidate do on the owner's held-out corrections (turns
that were corrected and never trained on), and how likely the base and the candidate find the
reference answers of the retention set. Goes out: a report that accepts or rejects, in words.

The rules, all of which must hold:

- **Held-out verdicts.** Three numbers, each a mean over turns. Of corrected ones, the KL
  divergence a token from the policy to the hinted teacher (lower: it does by itself what the
  person had to ask for; tokens on which a verdict wants the opposite of the teacher are left
  out, as in training), and the log-prob a token of the reply that was corrected away (lower: it
  does that less). Of praised ones, minus the log-prob a token of the reply (lower: it does that
  more). The candidate is rejected if one of them gets worse and no other gets better: what
  costs a little here and gains there is learning, what only costs is not. That praised replies
  get rarer is made good only by corrected ones getting rarer too: a batch whose verdicts were
  turned round can still come nearer to the teacher, whose hints it did not change.
  Worse means two things at once: the mean over the turns is worse than
  the live version's by more than the tolerance, and it is not by chance, that is, 95 of 100
  paired resamplings of the turns say worse too (bootstrap; the same turns are compared, so that
  easy and hard ones cancel). Few turns vary less when they are drawn again than new ones would:
  what lies between is made wider by as much as Student's t is wider than the normal curve. One
  turn cannot be resampled at all, and two or three are hardly ever like all others: fewer than
  four have to say it louder. The tolerance is then 12, 6 or 4 times as large.
  The tolerance is at least a quarter of what the live version has gained on the base there: a
  first update often goes too far, and old replies drift apart from new ones that please as
  well. What is left is never below the base.
  Fewer than four praised turns are too few to say anything. Without held-out corrections there
  is nothing to compare, which the report says.
- **Verdicts that fit.** A batch most of whose verdicts are the opposite of what held-out ones
  say of such replies is rejected, however little harm one update of it does (`agreement`). Where
  held-out ones cannot quite tell, it is rejected if praised replies surely got rarer by it, too.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from instar.publish.agreement import ENOUGH, Agreement, Fit, agreement

T = TypeVar("T")

RESAMPLES = 2000
CONFIDENCE = 0.95
NORMAL, STUDENT = 1.645, (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""What 95 of 100 lie below: of the normal curve, and of Student's t with 1, 2, ... degrees."""
FEW = 12
"""Over their number, how many times the tolerance fewer corrections than `ENOUGH` may lose.

Two of ten first updates, all honest, lost 0.22 on a single one and 0.05 on each of three.
"""
GIVE_BACK = 0.25
"""Share of what was gained on held-out turns that one update may give back."""
ASTRAY = 1.0
"""Nats a token by which a version may be further from its teacher than the base.

One that has learned a style is surer than the teacher, who only obeys some of the time: 0.25 to
0.36 were seen on topic and praised in nine of ten replies, after which a narrower bound would have
let nothing be learned any more.
"""


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
    wanted_kl: float
    """The same without tokens on which the verdict wants the teacher's opposite."""
    reply_logprob: float
    """Mean a token of the reply that was corrected away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """How one version does on one turn of a held-out attempt at a task."""

    turn: str
    group: str
    """Attempts at one task; a praised reply is one by itself."""
    advantage: float
    """Of the attempt, against its group."""
    reply_logprob: float
    """Mean a token of the recorded reply."""

    @property
    def loss(self) -> float:
        return -self.advantage * self.reply_logprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How one version does on all that is held out."""

    corrections: Sequence[Correction] = ()
    praised: Sequence[Tried] = ()
    """Praised replies: an advantage of 1 each."""
    tried: Sequence[Tried] = ()
    fits: Sequence[Fit] = ()
    """How held-out replies fit their hints; only the base can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One measure of two versions over the same turns."""

    live: float
    candidate: float
    low: float
    high: float
    """Between these lie 90 of 100 differences (candidate - live), by resampling."""
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
    wanted_kl: Comparison | None = None
    reply_logprob: Comparison | None = None
    praised: Comparison | None = None
    """Over praised turns; None where they are too few."""
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
        known = {one.name for one in dataclasses.fields(cls)}
        values = {name: value for name, value in found.items() if name in known}
        for name in ("wanted_kl", "reply_logprob", "praised", "attempts"):
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
    old: Measured,
    new: Measured,
    base: Measured,
    references: Sequence[Reference],
    base_answers: Sequence[float],
    new_answers: Sequence[float],
    tolerance: float,
    min_retention: float,
    batch: Sequence[Fit] = (),
) -> GateReport:
    """The rules above, as a pure function. `batch`: how replies that were trained on fit hints."""
    turns = len(old.corrections)
    wrong = _unusable(old, new, base, references, base_answers, new_answers)
    if wrong:
        return GateReport(
            accepted=False,
            reasons=(wrong,),
            live=live,
            candidate=candidate,
            turns=turns,
            references=len(references),
        )
    # All are in nats a token, of which a share of a likelihood is log(1 + share).
    margin = math.log1p(tolerance)
    found = _verdicts(old, new, base, margin)
    astray = _compare(base.corrections, new.corrections, "teacher_kl", ASTRAY)
    against, fine = _on_verdicts(found, astray)
    wanted, logprob, praised = found.values()
    fits = agreement(batch, base.fits)
    if fits is not None:
        lies, text = _on_fits(fits, praised)
        (against if lies else fine).append(text)
    attempts = _compare_tried(old.tried, new.tried, margin=margin)
    if attempts is not None:
        words = _in_words(f"loss on {_tasks(old.tried)} held-out tasks", attempts)
        (against if attempts.worse else fine).append(words)
    elif old.tried:
        fine.append(f"{_tasks(old.tried)} held-out tasks are too few to say anything ({ENOUGH})")
    kept, by_kind = _retention(references, base_answers, new_answers)
    (against if kept is not None and kept < min_retention else fine).append(
        _retained(kept, min_retention)
    )
    return GateReport(
        accepted=not against,
        reasons=tuple(against or fine),
        live=live,
        candidate=candidate,
        turns=turns,
        references=len(references),
        wanted_kl=wanted,
        reply_logprob=logprob,
        praised=praised,
        attempts=attempts,
        retention=kept,
        retention_by_kind=by_kind,
    )


def _verdicts(
    old: Measured, new: Measured, base: Measured, margin: float
) -> dict[str, Comparison | None]:
    """The three numbers of held-out verdicts, by what each is called in a report."""
    before, after, turns = old.corrections, new.corrections, len(old.corrections)

    def compared(measure: str) -> Comparison | None:
        gained = _gained(base.corrections, before, lambda one: float(getattr(one, measure)))
        wide = margin * (FEW / turns if 0 < turns < ENOUGH else 1.0)
        return _compare(before, after, measure, wide, may_lose=GIVE_BACK * gained)

    return {
        f"KL to the hinted teacher on {turns} held-out corrections": compared("wanted_kl"),
        f"log-prob of the bad reply on {turns} held-out corrections": compared("reply_logprob"),
        f"minus the log-prob of {len(old.praised)} praised replies": _compare_tried(
            old.praised,
            new.praised,
            margin=margin,
            may_lose=GIVE_BACK * _gained(base.praised, old.praised, lambda one: one.loss),
        ),
    }


def _on_verdicts(
    found: Mapping[str, Comparison | None], astray: Comparison | None
) -> tuple[list[str], list[str]]:
    """What held-out verdicts say against a candidate and what for it."""
    against: list[str] = []
    fine: list[str] = []
    wanted, logprob, praised = found.values()
    excuses = ((logprob, praised), (wanted, praised), (logprob,))
    for (name, one), others in zip(found.items(), excuses, strict=True):
        if one is None:
            continue
        gained = any(other.better for other in others if other is not None)
        (against if one.worse and not gained else fine).append(_in_words(name, one))
    if astray is None:
        fine.append("there are no held-out corrections yet, so none could get worse")
    elif astray.worse:
        against.append(
            f"KL to the hinted teacher is {astray.candidate:.4f}, much further than "
            f"the {astray.live:.4f} of the base before it learned anything"
        )
    return against, fine


def _on_fits(fits: Agreement, praised: Comparison | None) -> tuple[bool, str]:
    """Whether a batch is taken for a lie, and what its verdicts are like."""
    rarer = fits.doubtful and praised is not None and praised.low > 0
    text = fits.text() + (", and praised replies got rarer" if rarer else "")
    return fits.at_odds or rarer, text


def retention_set() -> list[Reference]:
    """The questions and reference answers that come with instar."""
    file = resources.files("instar.publish").joinpath("data/retention.jsonl")
    return [Reference(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def _unusable(
    old: Measured,
    new: Measured,
    base: Measured,
    references: Sequence[Reference],
    base_answers: Sequence[float],
    new_answers: Sequence[float],
) -> str | None:
    """Why these measurements decide nothing."""
    measured = (old.corrections, new.corrections, base.corrections)
    if len({tuple(sorted(one.turn for one in found)) for found in measured}) > 1:
        return "the versions were not measured on the same held-out turns"
    if not len(references) == len(base_answers) == len(new_answers):
        return "not every reference answer was measured under both versions"
    for before, after in ((old.praised, new.praised), (old.tried, new.tried)):
        if [one.turn for one in before] != [one.turn for one in after]:
            return "the two versions were not measured on the same held-out turns"
    numbers = [
        n
        for found in measured
        for one in found
        for n in (one.teacher_kl, one.wanted_kl, one.reply_logprob)
    ]
    numbers += [one.loss for side in (old, new) for one in (*side.praised, *side.tried)]
    bad = [n for n in (*numbers, *base_answers, *new_answers) if not math.isfinite(n)]
    if bad:
        return f"{len(bad)} measurements are not finite numbers (the first is {bad[0]})"
    return None


def _gained(base: Sequence[T], live: Sequence[T], measure: Callable[[T], float]) -> float:
    """How much lower than the base the live version is; 0 where it is not."""
    if not live or not base:
        return 0.0
    return max(0.0, fmean(map(measure, base)) - fmean(map(measure, live)))


def _compare(
    old: Sequence[Correction],
    new: Sequence[Correction],
    measure: str,
    margin: float,
    *,
    may_lose: float = 0.0,
) -> Comparison | None:
    if not old:
        return None
    after = {one.turn: getattr(one, measure) for one in new}
    return _paired(
        [getattr(one, measure) for one in old],
        [after[one.turn] for one in old],
        margin=margin,
        may_lose=may_lose,
    )


def _compare_tried(
    live: Sequence[Tried], candidate: Sequence[Tried], *, margin: float, may_lose: float = 0.0
) -> Comparison | None:
    if _tasks(live) < ENOUGH:
        return None
    # A change of a likelihood by the tolerance, for the typical attempt.
    margin *= fmean(abs(one.advantage) for one in live)
    return _paired(_by_task(live), _by_task(candidate), margin=margin, may_lose=may_lose)


def _tasks(tried: Sequence[Tried]) -> int:
    return len({one.group for one in tried})


def _by_task(tried: Sequence[Tried]) -> list[float]:
    """The mean loss of each group's turns, always in the same order."""
    groups: dict[str, list[float]] = {}
    for one in tried:
        groups.setdefault(one.group, []).append(one.loss)
    return [fmean(groups[name]) for name in sorted(groups)]


def _paired(
    live: Sequence[float], candidate: Sequence[float], *, margin: float, may_lose: float = 0.0
) -> Comparison:
    """Measures are better when lower; `may_lose` widens the margin on the worse side."""
    differences = np.subtract(candidate, live)
    # Seeded: the same measurements always give the same decision.
    chance = np.random.default_rng(len(live))
    drawn = chance.integers(0, len(live), size=(RESAMPLES, len(live)))
    means = differences[drawn].mean(axis=1)
    change, wider = float(differences.mean()), _wider(len(live))
    low, high = (
        change + wider * (float(np.quantile(means, q)) - change)
        for q in (1 - CONFIDENCE, CONFIDENCE)
    )
    return Comparison(
        live=fmean(live),
        candidate=fmean(candidate),
        low=low,
        high=high,
        worse=change > max(margin, may_lose) and low > 0,
        better=change < -margin and high < 0,
    )


def _wider(turns: int) -> float:
    """By how much the means of so many turns vary more than resampling shows."""
    free = turns - 1
    if not free:
        return 1.0
    t = STUDENT[free - 1] if free <= len(STUDENT) else NORMAL + (NORMAL**3 + NORMAL) / (4 * free)
    return math.sqrt(turns / free) * t / NORMAL


def _in_words(name: str, found: Comparison) -> str:
    change = found.candidate - found.live
    way = "worse" if found.worse else ("better" if change < 0 else "no worse within the tolerance")
    return (
        f"{name} went from {found.live:.4f} to {found.candidate:.4f} "
        f"({change:+.4f}, resampled {found.low:+.4f} to {found.high:+.4f}): {way}"
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


def _retained(kept: float | None, wanted: float) -> str:
    if kept is None:
        return "the retention set is empty, so forgetting was not measured"
    if kept < wanted:
        return f"retention is {kept:.3f}, below the {wanted:g} that is asked for"
    return f"retention is {kept:.3f} ({wanted:g} is asked for)"


def _exp(value: float) -> float:
    return math.exp(min(value, 50.0))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
