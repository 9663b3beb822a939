"""Judges turns as what followed them becomes known. Slow or failing judges only delay verdicts."""

from __future__ import annotations

import asyncio
import logging

from instar.errors import StoreError
from instar.judge.panel import PanelJudge
from instar.record.store import TurnStore

log = logging.getLogger("instar.judge")

_IDLE_S = 0.5
_FAILED_S = 10.0
_AT_ONCE = 16


class JudgeWorker:
    """Asks one judge about every ready turn of a store."""

    def __init__(self, store: TurnStore, judge: PanelJudge, *, steps: bool = True) -> None:
        """Without `steps`, turns of attempts at tasks are left alone."""
        self._store = store
        self._judge = judge
        self._steps = steps
        self.judged = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`: a judge that is down is asked again later; no turn is given up."""
        while not stop.is_set():
            try:
                failed, found = await self.once()
            except StoreError as error:
                log.warning("the store cannot be read or written now: %s", error)
                failed, found = True, 0
            if failed or not found:
                await pause(stop, _FAILED_S if failed else _IDLE_S)

    async def once(self) -> tuple[bool, int]:
        """Judge what is ready; whether the judge failed, and how many turns were looked at."""
        turns = await self._store.ready(limit=_AT_ONCE, steps=self._steps)
        for turn in turns:
            opinion = await self._judge.opinion(turn)
            if opinion is not None and opinion.failed:
                return True, len(turns)
            verdict, hint = (None, None) if opinion is None else opinion.outcome()
            await self._store.set_verdict(turn.id, verdict, hint)
            self.judged += 1
        return False, len(turns)


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait so long, or until `stop`."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
