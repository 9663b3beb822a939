"""Looks for turns that something can be learned from, past all those that teach nothing.

What teaches nothing as things are set stays in the store as it was: with another setting, or after
another verdict, it may teach. So it is passed over, however much of it there is. What was found in
a stretch of the store is remembered. Each look reads the newest stretch again, which is where most
verdicts arrive, and one of the others in turn, so that a look takes as long in any store.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

from instar.batch.credit import says_nothing
from instar.config import TrainingConfig
from instar.learn.batches import settings_of
from instar.record import judged
from instar.record.judged import JudgedTurns, Mark
from instar.train.limits import Limit

log = logging.getLogger("instar.learn")

_AHEAD = 8
"""Batches that are looked at together: credit compares turns."""
_SAY_EVERY_S = 60.0
_FOR_GOOD = frozenset({"images", "empty", "cancelled", "truncated_dropped", "failed"})
"""Reasons that hold as long as this process runs; others may be gone with the next version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passed:
    """Why a turn was passed over once it had been read, and what it was like then."""

    reason: str
    score: int
    hint: bytes | None
    live: str | None
    """The version that was live, if the reason holds only for that."""

    def holds(self, mark: Mark, live: str) -> bool:
        same = (mark.score, mark.hint) == (self.score, self.hint)
        return same and self.live in (None, live)


@dataclass(slots=True)
class _Stretch:
    open: list[Mark] = field(default_factory=list)
    """Turns that may teach something, oldest first."""
    spare: list[Mark] = field(default_factory=list)
    """Praise that lacks nothing but a hint: others of its batch may say what is wanted."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How many others there are, by why they teach nothing."""

    def drop(self, gone: Collection[int]) -> None:
        self.open = [mark for mark in self.open if mark.seq not in gone]
        self.spare = [mark for mark in self.spare if mark.seq not in gone]


@dataclass(slots=True)
class _Known:
    """What is known of one owner's turns."""

    stretches: dict[int, _Stretch] = field(default_factory=dict)
    passed: dict[str, _Passed] = field(default_factory=dict)
    window: dict[str, Mark] = field(default_factory=dict)
    """What the last look found."""
    again: int = 0
    """The old stretch that is read next."""
    said: Counter[str] | None = None
    said_at: float = float("-inf")


class Waiting:
    """Turns that may be learned from, by owner."""

    def __init__(self, turns: JudgedTurns, *, training: TrainingConfig, limit: Limit) -> None:
        """`limit` is the longest sequence that can be trained."""
        self._turns = turns
        self._training = training
        self._limit = limit
        self._settings = settings_of(training)
        self._known: dict[str, _Known] = {}

    async def look(
        self, owner: str, live: str, *, stale: Collection[str] = (), standing: bool = False
    ) -> list[Mark]:
        """The oldest turns that may teach something, up to a few batches of them.

        Behind them, where they are few, praise that has a hint only if one of them says so.
        Versions in `stale` are too old. `standing` says that praise has a hint, too.
        """
        known = self._known.setdefault(owner, _Known())

        def why_not(mark: Mark) -> str | None:
            return self._why_not(known, mark, live, stale, standing)

        await self._read(owner, known, why_not)
        window = await self._window(owner, known, why_not)
        known.window = {mark.id: mark for mark in window}
        await self._tell(owner, known)
        return window

    def pass_over(self, owner: str, live: str, reasons: Mapping[str, str]) -> bool:
        """Leave out turns of the last look, for these reasons; whether there were any."""
        known = self._known[owner]
        found = [known.window[name] for name in reasons if name in known.window]
        for mark in found:
            reason = reasons[mark.id]
            known.passed[mark.id] = _Passed(
                reason=reason,
                score=mark.score,
                hint=mark.hint,
                live=None if reason in _FOR_GOOD else live,
            )
            stretch = known.stretches[mark.seq // judged.STRETCH]
            stretch.drop({mark.seq})
            stretch.reasons[reason] += 1
            del known.window[mark.id]
        return bool(found)

    def counts(self, owner: str) -> Counter[str]:
        """How many turns are passed over, by reason."""
        known = self._known.get(owner, _Known())
        stretches = known.stretches.values()
        spare = Counter(no_hint=sum(len(one.spare) for one in stretches))
        return sum((one.reasons for one in stretches), +spare)

    async def _read(self, owner: str, known: _Known, why_not: Callable[[Mark], str | None]) -> None:
        growing = max(known.stretches, default=0)
        last = await self._turns.newest(owner) // judged.STRETCH
        known.again = known.again % growing if growing else 0
        for number in {known.again, *range(growing, last + 1)}:
            found = _Stretch()
            share = self._training.holdout_share
            for mark in await self._turns.stretch(owner, number, share=share):
                if (reason := why_not(mark)) is None:
                    found.open.append(mark)
                elif self._lacks_a_hint(mark, reason):
                    found.spare.append(mark)
                else:
                    found.reasons[reason] += 1
            known.stretches[number] = found
        known.again += 1

    async def _window(
        self, owner: str, known: _Known, why_not: Callable[[Mark], str | None]
    ) -> list[Mark]:
        """The oldest of those that are open, as they are now, and others to fill up with."""
        wanted = _AHEAD * self._training.batch_size
        share = self._training.holdout_share
        while True:
            ordered = [known.stretches[number] for number in sorted(known.stretches)]
            old = list(islice((mark for one in ordered for mark in one.open), wanted))
            if old:
                spare = (mark for one in ordered for mark in one.spare)
                old += islice(spare, max(0, self._training.batch_size - len(old)))
            seqs = [mark.seq for mark in old]
            new = {mark.seq: mark for mark in await self._turns.again(owner, seqs, share=share)}
            gone = {mark.seq for mark in old if not self._is_still(mark, new, why_not)}
            if not gone:
                return [new[seq] for seq in seqs]
            for number in {seq // judged.STRETCH for seq in gone}:
                known.stretches[number].drop(gone)

    def _is_still(
        self, mark: Mark, new: Mapping[int, Mark], why_not: Callable[[Mark], str | None]
    ) -> bool:
        """Whether a turn still waits and may teach something."""
        if mark.seq not in new:
            return False
        reason = why_not(new[mark.seq])
        return reason is None or self._lacks_a_hint(mark, reason)

    def _lacks_a_hint(self, mark: Mark, reason: str) -> bool:
        may_have_one = self._training.standing_hints and self._training.opd == "full"
        return reason == "no_hint" and mark.score > 0 and may_have_one

    def _why_not(
        self, known: _Known, mark: Mark, live: str, stale: Collection[str], standing: bool
    ) -> str | None:
        """Why a turn teaches nothing now; None where it may."""
        if mark.version in stale:
            return "stale"
        if mark.finish == "cancelled":
            return "cancelled"
        if mark.finish == "length" and self._training.truncated == "drop":
            return "truncated_dropped"
        if mark.tokens > self._limit.tokens:
            return "too_long"
        passed = known.passed.get(mark.id)
        if passed is not None and passed.holds(mark, live):
            return passed.reason
        known.passed.pop(mark.id, None)
        return says_nothing(
            mark.score,
            hinted=standing if mark.score > 0 else mark.hint is not None,
            truncated=mark.finish == "length",
            method=self._training.method,
            settings=self._settings,
        )

    async def _tell(self, owner: str, known: _Known) -> None:
        """Say how many are passed over and why, when that is new."""
        counts, now = self.counts(owner), time.monotonic()
        if counts == known.said:
            return
        same = known.said is not None and counts.keys() <= known.said.keys()
        if same and now - known.said_at < _SAY_EVERY_S:
            return
        known.said, known.said_at = counts, now
        await self._turns.note_passed(owner, counts)
        if counts:
            told = "; ".join(f"{n} {self._words(reason)}" for reason, n in sorted(counts.items()))
            log.info("judged turns of %s that teach nothing now: %s", owner, told)

    def _words(self, reason: str) -> str:
        training = self._training
        return {
            "stale": f"of versions older than training.max_staleness ({training.max_staleness})",
            "cancelled": "cut off by their client",
            "truncated_dropped": "cut off by their length limit (training.truncated is drop)",
            "no_praise": f"praised but cut off (training.truncated is {training.truncated})",
            "too_long": f"longer than {self._limit}",
            "teacher_too_long": f"that with their hint would be longer than {self._limit}",
            "neutral": "with a verdict of 0",
            "no_hint": f"without a hint (training.method is {training.method})",
            "images": "with images, which the trainer does not read",
            "failed": "set aside, since learning from them failed",
        }.get(reason, f"without any worth ({reason})")
