"""Fits the running judge to people as they give explicit feedback."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from instar.judge.next_state import case_of
from instar.judge.probe import Probe, save_calibrations
from instar.record.feedback import feedback_counts, feedback_turns
from instar.record.store import TurnStore

log = logging.getLogger("instar.judge")

NEW_PAIRS = 5
"""Feedback of an owner, new since the last time, that is enough to fit the judge to them."""
MOST_PAIRS = 200
"""The latest feedback says how a person uses words; older is left out."""
_LOOK_S = 60.0


class Calibrator:
    """Looks now and then for people with enough new feedback."""

    def __init__(
        self,
        store: TurnStore,
        probe: Probe,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._probe = probe
        self._folder = folder
        self._clock = clock
        self._next = clock()
        self._seen = {owner: one.pairs for owner, one in probe.calibrations.items()}

    @classmethod
    def of(cls, store: TurnStore, voter: object, home: Path) -> Calibrator | None:
        """One for this judge, or None where the judge cannot be fitted to people."""
        return cls(store, voter, home / "judge") if isinstance(voter, Probe) else None

    async def look(self) -> list[str]:
        """Fit the judge to those with enough new feedback; returns who they are."""
        if self._clock() < self._next:
            return []
        self._next = self._clock() + _LOOK_S
        found = []
        counts = await feedback_counts(self._store)
        for owner in sorted({*counts, *self._seen}):
            new = counts.get(owner, 0) - self._seen.get(owner, 0)
            # Fewer than there were: what is forgotten must not go on in what was learned of it.
            if new >= NEW_PAIRS or new < 0:
                await self._fit(owner)
                self._seen[owner] = counts.get(owner, 0)
                found.append(owner)
        return found

    async def _fit(self, owner: str) -> None:
        pairs = [
            (case, turn.verdict.score)
            for turn in await feedback_turns(self._store, owner, limit=MOST_PAIRS)
            if turn.verdict is not None and (case := case_of(turn)) is not None
        ]
        if pairs:
            cases, scores = zip(*pairs, strict=True)
            await asyncio.to_thread(self._probe.recalibrate, owner, cases, scores)
        elif self._probe.calibrations.pop(owner, None) is None:
            return
        await asyncio.to_thread(save_calibrations, self._probe.calibrations, self._folder)
        log.info("the judge was fitted to %s by %d of their verdicts", owner, len(pairs))
