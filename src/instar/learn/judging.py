"""Judges turns as what followed them becomes known. Slow or failing judges only delay verdicts.

A judge that is down as a whole is asked again for ever, with growing pauses. One turn on which it
fails while it answers others is given up after `ATTEMPTS`: it is *no verdict* then, and logged.

A turn that the person themselves called bad comes here too once something followed it: only for a
hint, and only if the judge reads what followed as said of that reply. The next request is no hint.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from instar.config import Config
from instar.errors import StoreError
from instar.judge.panel import Opinion, PanelJudge, make_judge
from instar.learn.calibrating import Calibrator
from instar.loop import model_folder
from instar.record.feedback import keep_opinion, told_score
from instar.record.store import TurnStore
from instar.types import Turn

log = logging.getLogger("instar.judge")

ATTEMPTS = 5
"""How often a judge that answers otherwise is asked about a turn on which it fails."""
_IDLE_S = 0.5
_FAILED_S = (10.0, 20.0, 60.0, 300.0)
"""Pauses while the judge is down, by how many rounds in a row it failed."""
_DOWN = 3
"""Failures without any answer between them after which a round ends: the judge seems down."""
_AT_ONCE = 16


class JudgeWorker:
    """Asks one judge about every ready turn of a store."""

    def __init__(
        self,
        store: TurnStore,
        judge: PanelJudge,
        *,
        calibrator: Calibrator | None = None,
        steps: bool = True,
    ) -> None:
        """Without `steps`, turns of attempts at tasks are left alone."""
        self._store = store
        self._judge = judge
        self._calibrator = calibrator
        self._steps = steps
        self._asked: Counter[str] = Counter()
        """How often it failed on a turn that still waits, for whatever reason."""
        self._failures: Counter[str] = Counter()
        """How often it failed on one while it answered others."""
        self._answered: Turn | None = None
        self.counts: Counter[str] = Counter(judged=0, no_verdict=0, hinted=0, given_up=0, failed=0)
        """What became of turns: `hinted` counts those that the person had judged themselves and
        that got a hint, `failed` the times the judge could not be asked."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        down = 0
        while not stop.is_set():
            try:
                if self._calibrator is not None:
                    await self._calibrator.look()
                answered, found = await self.once()
            except (StoreError, OSError) as error:
                # A full disk ends neither the judge nor the trainer, which share a process.
                log.warning("judging has to wait: %s", error)
                answered, found = False, 1
            down = 0 if answered or not found else down + 1
            if down:
                await pause(stop, _FAILED_S[min(down, len(_FAILED_S)) - 1])
            elif not found:
                await pause(stop, _IDLE_S)

    async def drain(self) -> bool:
        """Judge all that is ready; whether nothing is left that the judge could not be asked."""
        if self._calibrator is not None:
            await self._calibrator.look()
        while True:
            answered, found = await self.once()
            if not found:
                return True
            if not answered:
                return False

    async def once(self) -> tuple[bool, int]:
        """One round over what is ready: whether the judge answered, and how many turns there were.

        A turn that failed before comes last, so that it keeps no other from being judged.
        """
        turns = await self._store.ready(limit=_AT_ONCE + len(self._asked), steps=self._steps)
        waiting = {turn.id for turn in turns}
        self._asked = Counter({k: n for k, n in self._asked.items() if k in waiting})
        self._failures = Counter({k: n for k, n in self._failures.items() if k in waiting})
        answered = False
        failed: list[tuple[Turn, Opinion]] = []
        for turn in sorted(turns, key=lambda one: self._asked[one.id]):
            opinion = await self._judge.opinion(turn)
            if opinion is not None and opinion.failed:
                failed.append((turn, opinion))
                self._asked[turn.id] += 1
                self.counts["failed"] += 1
                if not answered and len(failed) >= _DOWN:
                    break
                continue
            answered = True
            self._answered = turn
            await self._keep(turn, opinion)
        if failed and (answered or await self._is_up()):
            answered = True
            await self._blame(failed)
        return answered, len(turns)

    async def _keep(self, turn: Turn, opinion: Opinion | None) -> None:
        verdict, hint = (None, None) if opinion is None else opinion.outcome()
        if not await keep_opinion(self._store, turn, verdict, hint):
            return  # the person spoke meanwhile: if a hint is still missing, the turn comes again
        if told_score(turn) is None:
            self.counts["no_verdict" if verdict is None else "judged"] += 1
        elif hint is not None:
            self.counts["hinted"] += 1

    async def _is_up(self) -> bool:
        """Ask again about a turn that it answered: if it does, the others are to blame."""
        if self._answered is None:
            return False
        opinion = await self._judge.opinion(self._answered)
        return opinion is None or not opinion.failed

    async def _blame(self, failed: Sequence[tuple[Turn, Opinion]]) -> None:
        for turn, opinion in failed:
            self._failures[turn.id] += 1
            if self._failures[turn.id] < ATTEMPTS:
                continue
            log.error(
                "turn %s gets no %s: the judge answers others and failed on it %d times, "
                "last with: %s",
                *(turn.id, "verdict" if told_score(turn) is None else "hint"),
                *(ATTEMPTS, opinion.problem),
            )
            await keep_opinion(self._store, turn, None, None)
            self.counts["given_up"] += 1


async def open_worker(config: Config, home: Path, store: TurnStore) -> JudgeWorker:
    """The worker that a config asks for; loads the judge's model, if it has one."""
    judge = await asyncio.to_thread(
        make_judge, config, folder=lambda: _model(config, home), home=home
    )
    return JudgeWorker(
        store,
        judge,
        calibrator=Calibrator.of(store, judge.voter, home),
        steps=config.training.step_weight > 0,
    )


def _model(config: Config, home: Path) -> Path:
    """The model that the probe reads with; behind the fake engine it is the embedded one."""
    from instar.backends.embedded import embedded_model

    return model_folder(config, home, log.info) or embedded_model(home, say=log.info)


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait so long, or until `stop`."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
