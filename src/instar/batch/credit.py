"""Credit: from judged turns to the streams that a loss reads, one pure function a method.

Comes in: turns with what is known of them (verdict, group, value, teacher). Goes out: for each
turn a Credit, or None where nothing is known to learn from. Unknown is never zero: a turn
without a verdict has no binary credit, and it is in no baseline either.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from instar.batch.gae import advantages
from instar.batch.loops import circles
from instar.types import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A turn and what is known of it beyond its record."""

    turn: Turn
    group: str | None = None
    """Turns of one group answer the same task and are compared with each other."""
    attempt: str | None = None
    """Turns of one attempt share its reward, which counts once in the group's mean."""
    reward: float | None = None
    """What the attempt earned. The verdict is then that of one step of it."""
    value: float | None = None
    """The value head's estimate before the turn; all turns of a session have one, or none."""
    age: int = 0
    """Versions published since the one that sampled it."""
    hinted_ids: tuple[int, ...] | None = None
    """The prompt with the hint in it, for the teacher."""
    unread: bool = False
    """Whether there is a hint, but no teacher can read the prompt with it: it would be too long."""
    teacher_logprobs: tuple[float, ...] | None = None
    """Of the sampled tokens after `hinted_ids`, at the temperature of the recorded ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What one turn's sampled tokens are worth."""

    advantages: tuple[float, ...]
    distill_weights: tuple[float, ...]
    """How much each token is drawn to the teacher's whole distribution."""
    value: float | None = None
    target: float | None = None
    """What the value estimate should have been."""

    @property
    def is_empty(self) -> bool:
        return self.target is None and not any(self.advantages) and not any(self.distill_weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditSettings:
    """How verdicts and hints become credit."""

    advantage: Literal["verdict", "centred", "gae"] = "verdict"
    """For turns without a group: the verdict, the verdict less the mean, or GAE along a session."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    group_scale: Literal["none", "std"] = "none"
    """Whether a group's advantages are divided by their standard deviation."""
    step_weight: float = 0.0
    """Weight of a step's verdict, against the group's mean step, beside its attempt's reward."""
    opd: Literal["full", "sampled"] = "full"
    """Draw to the teacher's whole distribution, or reward the sampled token only."""
    opd_clip: float = 5.0
    """Largest advantage of one token in `sampled`, either way."""
    loop_tokens: int = 6
    """No teacher is heard where a reply in circles says so many tokens again; 0 is off."""
    binary_weight: float = 0.3
    opd_weight: float = 1.0
    truncated: Literal["no_praise", "drop", "keep"] = "no_praise"
    """What a reply cut by its length limit may earn; by default nothing above zero."""
    max_age: int = 4
    """Turns sampled by an older version are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """How sessions went on beside the turns that are trained: GAE looks along them."""

    parents: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    """Of every turn, also of those that are not judged, private or held out: it leads past them."""
    scores: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Verdicts that count for the turns before them, whatever becomes of their own."""


_UNKNOWN = Lines()
_UNDECIDED = 4
"""Verdicts of 0 that the mean of `centred` starts from."""

Method = Callable[[Sequence[Judged], CreditSettings, Lines], dict[str, Credit]]
"""Turn id to credit; a turn with nothing to learn from is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited:
    """Turns with their credit, and how many were left out and why."""

    turns: tuple[tuple[Judged, Credit], ...]
    rewards: tuple[float, ...]
    counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    silent: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Why each of the others was left out, by turn."""


def credit(
    judged: Sequence[Judged], method: str, settings: CreditSettings, lines: Lines = _UNKNOWN
) -> Credited:
    """Apply a method of METHODS to the turns that may be trained; count the others."""
    silent = {one.turn.id: why for one in judged if (why := _excluded(one, settings))}
    kept = [one for one in judged if one.turn.id not in silent]
    found = METHODS[method](kept, settings, lines)
    out = []
    for one in kept:
        earned = found.get(one.turn.id)
        if earned is not None and not earned.is_empty:
            out.append((one, earned))
        elif one.unread:
            silent[one.turn.id] = "teacher_too_long"
        else:
            silent[one.turn.id] = "nothing_known" if earned is None else "no_credit"
    counts = Counter(silent.values())
    counts["zero_variance_groups"] = len(flat_groups(kept, settings))
    counts["truncated"] = sum(one.turn.finish == "length" for one, _ in out)
    return Credited(
        turns=tuple(out),
        rewards=tuple(_outcomes([one for one in kept if _is_known(one)]).values()),
        counts={key: n for key, n in counts.items() if n},
        silent=silent,
    )


def says_nothing(
    score: int, *, hinted: bool, truncated: bool, method: str, settings: CreditSettings
) -> str | None:
    """Why a turn with this verdict has no credit, whatever else is known of it.

    None where it may have some. This much is known without reading the turn.
    """
    from_hint, from_verdict = _weights(method, settings)
    if hinted and from_hint:
        return None
    if not from_verdict:
        return "no_hint"
    if settings.advantage == "gae":
        return None  # what comes later in its session counts for a verdict of 0, too
    if score == 0:
        return "neutral"
    unpraised = score > 0 and truncated and settings.truncated == "no_praise"
    return "no_praise" if unpraised else None


def _excluded(one: Judged, settings: CreditSettings) -> str | None:
    """Why a turn must not be trained, or None."""
    turn = one.turn
    if turn.kind == "side":
        return "side"
    if turn.no_train:
        return "private"
    if turn.finish == "cancelled":
        return "cancelled"
    if not turn.sampled_ids:
        return "empty"
    if turn.has_images:
        # The trainer reads tokens only: without the image it would see another prompt.
        return "images"
    if one.age > settings.max_age:
        return "stale"
    if turn.finish == "length" and settings.truncated == "drop":
        return "truncated_dropped"
    return None


def binary(
    judged: Sequence[Judged], settings: CreditSettings, lines: Lines = _UNKNOWN
) -> dict[str, Credit]:
    """The verdict: against its group's mean, along the session (GAE), or as it stands.

    An attempt's reward has no worth but against others: alone, nothing is known to learn from.
    """
    known = [one for one in judged if _is_known(one)]
    grouped = _groups(known)
    alone = [one for one in known if one.group not in grouped and one.reward is None]
    worth: dict[str, tuple[float, float | None]] = {}
    for members in grouped.values():
        worth |= {name: (value, None) for name, value in _normalised(members, settings).items()}
    if settings.advantage == "gae":
        parents = {**lines.parents, **{one.turn.id: one.turn.parent for one in judged}}
        worth |= _along_sessions(alone, Lines(parents=parents, scores=lines.scores), settings)
    elif settings.advantage == "centred":
        worth |= {name: (value, None) for name, value in _centred(alone).items()}
    else:
        worth |= {one.turn.id: (_reward(one), None) for one in alone}
    out = {}
    for one in known:
        if one.turn.id not in worth:
            continue
        advantage, target = worth[one.turn.id]
        if one.turn.finish == "length" and settings.truncated == "no_praise":
            advantage = min(advantage, 0.0)
        size = len(one.turn.sampled_ids)
        out[one.turn.id] = Credit(
            advantages=(advantage,) * size,
            distill_weights=(0.0,) * size,
            value=one.value if target is not None else None,
            target=target,
        )
    return out


def opd(
    judged: Sequence[Judged], settings: CreditSettings, lines: Lines = _UNKNOWN
) -> dict[str, Credit]:
    """The hinted teacher against the policy, where there is a hint and a teacher for it.

    The verdict plays no part: a reply that needed a hint is never reinforced as it stands.
    """
    if settings.opd == "full":
        return {
            one.turn.id: Credit(
                advantages=(0.0,) * len(one.turn.sampled_ids),
                distill_weights=_heard(one.turn, settings),
            )
            for one in judged
            if one.hinted_ids is not None
        }
    hinted = [one for one in judged if one.turn.hint is not None]
    return {
        one.turn.id: Credit(
            advantages=_gap(one.turn, one.teacher_logprobs, settings),
            distill_weights=(0.0,) * len(one.turn.sampled_ids),
        )
        for one in hinted
        if one.teacher_logprobs is not None
    }


def combine(
    judged: Sequence[Judged], settings: CreditSettings, lines: Lines = _UNKNOWN
) -> dict[str, Credit]:
    """opd_weight x opd + binary_weight x binary; a turn that has one of them has that one."""
    parts = (
        (settings.opd_weight, opd(judged, settings)),
        (settings.binary_weight, binary(judged, settings, lines)),
    )
    out: dict[str, Credit] = {}
    for weight, credits in parts:
        for name, one in credits.items():
            scaled = _scaled(one, weight)
            out[name] = _added(out[name], scaled) if name in out else scaled
    return out


METHODS: dict[str, Method] = {"binary": binary, "opd": opd, "combine": combine}


def _weights(method: str, settings: CreditSettings) -> tuple[float, float]:
    """Of hints and of verdicts."""
    plain = {"opd": (1.0, 0.0), "binary": (0.0, 1.0)}
    return plain.get(method, (settings.opd_weight, settings.binary_weight))


def _is_known(one: Judged) -> bool:
    return one.reward is not None or one.turn.verdict is not None


def _reward(one: Judged) -> float:
    if one.reward is not None:
        return one.reward
    assert one.turn.verdict is not None
    return float(one.turn.verdict.score)


def _outcomes(known: Sequence[Judged]) -> dict[str, float]:
    """What each attempt earned; a turn that is part of none is one by itself."""
    return {one.attempt or one.turn.id: _reward(one) for one in known}


def _steps(known: Sequence[Judged]) -> list[float]:
    """Verdicts on steps of attempts, as far as there are any."""
    verdicts = [one.turn.verdict for one in known if one.reward is not None]
    return [float(verdict.score) for verdict in verdicts if verdict is not None]


def _heard(turn: Turn, settings: CreditSettings) -> tuple[float, ...]:
    """How much a teacher is heard on each token."""
    return tuple(float(not one) for one in circles(turn.sampled_ids, settings.loop_tokens))


def _gap(turn: Turn, teacher: Sequence[float], settings: CreditSettings) -> tuple[float, ...]:
    if len(teacher) != len(turn.logprobs):
        raise ValueError(
            f"turn {turn.id}: the teacher gave {len(teacher)} log-probs for "
            f"{len(turn.logprobs)} sampled tokens; they are never padded or cut"
        )
    clip = settings.opd_clip
    gaps = (ours - theirs for ours, theirs in zip(teacher, turn.logprobs, strict=True))
    clipped = (max(-clip, min(clip, gap)) for gap in gaps)
    return tuple(a * b for a, b in zip(clipped, _heard(turn, settings), strict=True))


def _groups(known: Sequence[Judged]) -> dict[str | None, list[Judged]]:
    """Groups of at least two attempts; one alone has nothing to be compared with."""
    groups: defaultdict[str | None, list[Judged]] = defaultdict(list)
    for one in known:
        if one.group is not None and _is_known(one):
            groups[one.group].append(one)
    return {name: members for name, members in groups.items() if len(_outcomes(members)) > 1}


def flat_groups(judged: Sequence[Judged], settings: CreditSettings) -> list[str | None]:
    """Groups whose members all fared alike, from which nothing is learned."""
    return [
        name
        for name, members in _groups(judged).items()
        if len(set(_outcomes(members).values())) == 1
        and (not settings.step_weight or len(set(_steps(members))) < 2)
    ]


def _normalised(members: Sequence[Judged], settings: CreditSettings) -> dict[str, float]:
    """Against the mean of the group's attempts, and each step against the mean of its steps."""
    outcome = _against(list(_outcomes(members).values()), settings)
    step = _against(_steps(members), settings)
    out = {}
    for one in members:
        worth = outcome(_reward(one))
        if one.reward is not None and one.turn.verdict is not None:
            worth += settings.step_weight * step(float(one.turn.verdict.score))
        out[one.turn.id] = worth
    return out


def _against(values: Sequence[float], settings: CreditSettings) -> Callable[[float], float]:
    """How far a value is from the mean of these."""
    if not values:
        return lambda value: 0.0
    mean, spread = statistics.fmean(values), statistics.pstdev(values)
    scale = spread if settings.group_scale == "std" and spread else 1.0
    return lambda value: (value - mean) / scale


def _centred(alone: Sequence[Judged]) -> dict[str, float]:
    """Each verdict less the mean of them all; 0 says nothing, so it stays 0 and is in no mean.

    The mean is drawn to 0 as by a few more verdicts: one alone still counts, and so do many that
    are all the same.
    """
    told = [_reward(one) for one in alone if _reward(one)]
    mean = sum(told) / (len(told) + _UNDECIDED)
    return {one.turn.id: _reward(one) - mean if _reward(one) else 0.0 for one in alone}


def _along_sessions(
    known: Sequence[Judged], lines: Lines, settings: CreditSettings
) -> dict[str, tuple[float, float | None]]:
    """Turn id to (advantage, value target); the target is None without value estimates."""
    missing = [one.turn.id for one in known if one.value is None]
    if missing and len(missing) != len(known):
        raise ValueError(
            f"turn {missing[0]} has no value estimate but others have one; give all or none"
        )
    values = {one.turn.id: one.value for one in known if one.value is not None}
    rewards = {one.turn.id: _reward(one) for one in known}
    # Nobody estimated the others: beside estimates they are passed over.
    others = {} if values else lines.scores
    gains = advantages(
        {**others, **rewards},
        values,
        lines.parents,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
    )
    return {name: (gains[name], gains[name] + values[name] if values else None) for name in rewards}


def _scaled(one: Credit, weight: float) -> Credit:
    return Credit(
        advantages=tuple(weight * value for value in one.advantages),
        distill_weights=tuple(weight * value for value in one.distill_weights),
        value=one.value,
        target=one.target,
    )


def _added(one: Credit, other: Credit) -> Credit:
    return Credit(
        advantages=tuple(a + b for a, b in zip(one.advantages, other.advantages, strict=True)),
        distill_weights=tuple(
            a + b for a, b in zip(one.distill_weights, other.distill_weights, strict=True)
        ),
        value=one.value if one.value is not None else other.value,
        target=one.target if one.target is not None else other.target,
    )
