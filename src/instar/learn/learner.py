"""Trains one owner's next version from their judged turns, gates it and makes it live.

The order of writes makes a crash harmless at any point: files of a version and the optimiser's
state first, then the store learns of it together with the turns that trained it, then its gate
report, then it goes live. What was left half-way is finished at the next start: a candidate
without a report is measured, one that was accepted goes live.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from instar.batch.credit import Credited, credit
from instar.batch.render import ChatRenderer
from instar.config import RolloutConfig, TrainingConfig
from instar.errors import ModelError
from instar.learn.batches import Prepared, prepare, settings_of, steps_for
from instar.learn.gatekeeper import Gatekeeper, Held, with_sessions
from instar.learn.gather import Gatherer
from instar.learn.groups import ready_groups
from instar.learn.holding import Holder
from instar.learn.memory import CPU_PASS_TOKENS, give_back
from instar.learn.setbacks import Setbacks
from instar.learn.waiting import Waiting
from instar.publish.gate import GateReport, Measured, Reference
from instar.publish.versions import VersionFiles, safe
from instar.record.attempts import AttemptBook
from instar.record.judged import JudgedTurns, Mark
from instar.record.versions import VersionBook
from instar.train.limits import Limit, shorter
from instar.train.step import TorchTrainer
from instar.types import Attempt, Turn, Version

log = logging.getLogger("instar.learn")

_LOOKS = 8
"""How many windows full of turns that turn out to teach nothing are passed over in one go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one batch."""

    version: Version
    report: GateReport
    metrics: dict[str, float]
    seconds: float
    held_back: bool = False
    """Accepted, but not live: learning was paused meanwhile."""
    given_up: bool = False
    """One of its turns was forgotten meanwhile: there is no such version, the others wait."""


class Learner:
    """Holds the one trainer of a machine; owners take turns."""

    def __init__(
        self,
        trainer: TorchTrainer,
        *,
        training: TrainingConfig,
        renderer: ChatRenderer,
        book: VersionBook,
        judged: JudgedTurns,
        files: VersionFiles,
        turns: Callable[[str, str], Any],
        references: Sequence[Reference],
        folder: Path,
        max_tokens: int,
        attempts: AttemptBook | None = None,
        rollout: RolloutConfig | None = None,
    ) -> None:
        """Without `attempts`, nothing is learned from environments."""
        self._trainer = trainer
        self._training = training
        self._renderer = renderer
        self._book = book
        self._judged = judged
        self._files = files
        self._turns = turns
        self._max_tokens = max_tokens
        self._limit = shorter(
            Limit(tokens=max_tokens, why="training.max_tokens"), trainer.model.limit
        )
        self._attempts = attempts
        self._rollout = rollout or RolloutConfig()
        self._ready: dict[str, dict[str, float]] = {}
        """By owner: since when turns that teach something have been waiting."""
        self._aside: set[str] = set()
        """Groups, versions and parts of rebuilds that are left alone from now on."""
        self._setbacks = Setbacks()
        self._holder = Holder(trainer, training=training, files=files, folder=folder)
        self._waiting = Waiting(judged, training=training, limit=self._limit)
        self._gatherer = Gatherer(
            trainer,
            training=training,
            renderer=renderer,
            holder=self._holder,
            book=book,
            judged=judged,
            turns=turns,
            setbacks=self._setbacks,
            longest=self._limit.tokens,
            attempts=attempts,
        )
        self._gate = Gatekeeper(
            trainer,
            training=training,
            renderer=renderer,
            book=book,
            turns=turns,
            references=references,
            longest=self._limit.tokens,
            attempts=attempts,
        )

    async def learn(self, owner: str) -> Outcome | None:
        """One update for this owner, if enough of their turns are ready or have waited long."""
        most = self._training.max_steps
        if most is not None and len(await self._book.versions(owner)) >= most:
            return None
        return await self._learn_talk(owner) or await self._learn_groups(owner)

    async def _learn_talk(self, owner: str) -> Outcome | None:
        live = await self._book.live_name(owner)
        for _ in range(_LOOKS):
            marks = await self._look(owner, live)
            at_least = 1 if self._have_waited(owner, marks) else self._training.batch_size
            if not marks or len(marks) < at_least:
                return None
            found = {turn.id: turn for turn in await self._judged.turns([m.seq for m in marks])}
            turns = [found[mark.id] for mark in marks if mark.id in found]
            credited = await self._credited(owner, live, turns)
            if len(credited.turns) >= at_least:
                return await self._learn_from(owner, live, credited)
            if not self._waiting.pass_over(owner, live, credited.silent):
                return None
        return None

    async def _look(self, owner: str, live: str) -> list[Mark]:
        """Marks of turns that may teach something."""
        age = await self._gatherer.ages(owner)
        stale = {name for name, passed in age.items() if passed > self._training.max_staleness}
        standing = await self._gatherer.praise_is_hinted(owner, live)
        return await self._waiting.look(owner, live, stale=stale, standing=standing)

    async def _credited(self, owner: str, live: str, turns: Sequence[Turn]) -> Credited:
        judged = await self._gatherer.talk(
            owner, live, turns, give_up=lambda name: self._set_aside(owner, live, [name])
        )
        names = [turn.id for turn in turns[: self._training.batch_size]]
        with self._setbacks.blaming(names, partial(self._set_aside, owner, live, names)):
            lines = await self._gatherer.lines(owner, judged)
            return credit(judged, self._training.method, settings_of(self._training), lines)

    async def _learn_from(self, owner: str, live: str, credited: Credited) -> Outcome | None:
        names = [one.turn.id for one, _ in credited.turns[: self._training.batch_size]]
        # No batch is to blame where the live version cannot be read.
        await asyncio.to_thread(self._holder.hold, owner, live)
        with self._setbacks.blaming(names, partial(self._set_aside, owner, live, names)):
            prepared = self._prepare(credited, live)
            if prepared is None:
                return None
            counts = Counter(prepared.batch.counts) + self._waiting.counts(owner)
            batch = replace(prepared.batch, counts=dict(counts))
            return await self._update(owner, live, replace(prepared, batch=batch))

    def _set_aside(self, owner: str, live: str, names: Sequence[str]) -> None:
        self._waiting.pass_over(owner, live, dict.fromkeys(names, "failed"))

    def _have_waited(self, owner: str, marks: Sequence[Mark]) -> bool:
        """Whether one that teaches something has been ready for long.

        Ready, not said: a person who answers after an hour has only now begun to correct.
        """
        teach = [mark.id for mark in marks if mark.score or mark.hint is not None]
        now = time.monotonic()
        before = self._ready.get(owner, {})
        since = self._ready[owner] = {name: before.get(name, now) for name in teach}
        return any(now - at >= self._training.max_wait_s for at in since.values())

    async def _learn_groups(self, owner: str) -> Outcome | None:
        """From attempts at tasks: whole groups, as many as make a round."""
        if self._attempts is None:
            return None
        ready = await ready_groups(
            self._attempts,
            owner,
            wanted=self._rollout.batch_size,
            training=self._training,
            passed=self._aside,
        )
        if ready is None:
            return None
        names = [group[0].group for group in ready]
        await asyncio.to_thread(self._holder.hold, owner, await self._book.live_name(owner))
        with self._setbacks.blaming(names, partial(self._aside.update, names)):
            outcome = await self._learn_from_groups(owner, ready, names)
        if outcome is not None and not outcome.given_up:
            await self._attempts.set_used(owner, names, outcome.version.name)
        return outcome

    async def _learn_from_groups(
        self, owner: str, ready: Sequence[Sequence[Attempt]], names: Sequence[str]
    ) -> Outcome | None:
        assert self._attempts is not None
        live = await self._book.live_name(owner)
        judged = await self._gatherer.groups(owner, live, ready)
        credited = credit(judged, self._training.method, settings_of(self._training))
        prepared = self._prepare(credited, live, groups=True)
        if prepared is not None:
            return await self._update(owner, live, prepared)
        if credited.turns:
            log.warning("%d groups wait: their turns are longer than %s", len(ready), self._limit)
            self._aside.update(names)
        else:
            log.info("%d groups teach nothing: their attempts fared alike, or are old", len(ready))
            await self._attempts.set_used(owner, names, "nothing")
        return None

    async def finish(self, owner: str) -> list[Outcome]:
        """Gate and publish what an earlier process trained and left half-way."""
        left = [
            one
            for one in await self._book.versions(owner)
            if _may_go_live(one) and _key(one) not in self._aside
        ]
        done = []
        for version in left:
            live = await self._book.live_name(owner)
            if version.gate is not None:
                # Measured, but not live: it died in between, learning was paused, or a person
                # rolled back meanwhile.
                if version.gate["accepted"] and version.parent == live:
                    await self._go_live(version, live)
                continue
            key = _key(version)
            with self._setbacks.blaming([key], partial(self._aside.add, key)):
                if (outcome := await self._gate_again(version, live)) is not None:
                    done.append(outcome)
        await self._prune(owner)
        return done

    async def _gate_again(self, version: Version, live: str) -> Outcome | None:
        """Measure a candidate from its files; None where that cannot be, and it is rejected."""
        owner = version.owner
        held = await self._gate.held_out(owner)
        try:
            if version.parent != live:
                raise ModelError(
                    f"it was trained from {version.parent}, which is not live any more"
                )
            old = await asyncio.to_thread(self._measure, owner, live, held)
            new = await asyncio.to_thread(self._measure, owner, version.name, held)
            answers = await asyncio.to_thread(self._gate.answers)
        except ModelError as error:
            await self._book.note_gate(owner, version.name, _refused(live, version.name, error))
            return None
        turns = await self._book.turns_in(owner, version.name)
        known = await with_sessions(owner, turns, self._turns)
        report = await asyncio.to_thread(
            self._gate.decide,
            version.name,
            live,
            old=old,
            new=new,
            answers=answers,
            held=held,
            batch=await asyncio.to_thread(self._gate.fits, turns, known, held),
        )
        live_now = await self._publish(version, report, live)
        held_back = report.accepted and not live_now
        return Outcome(version=version, report=report, metrics={}, seconds=0.0, held_back=held_back)

    async def relearn(self, owner: str, batches: Sequence[Sequence[Turn]]) -> list[Outcome]:
        """Train a line again from these batches, for instance without what was forgotten.

        Turns that the live line has learned from already are left out, so that a rebuild which
        was cut short goes on where it was. It ends with a version that a pause holds back.
        """
        done: list[Outcome] = []
        for batch in _cut(batches, self._training.batch_size):
            names = [turn.id for turn in batch]
            key = "\n".join(names)
            if key in self._aside or (done and done[-1].held_back):
                continue
            await asyncio.to_thread(self._holder.hold, owner, await self._book.live_name(owner))
            with self._setbacks.blaming(names, partial(self._aside.add, key)):
                if outcome := await self._relearn(owner, batch):
                    done.append(outcome)
        return done

    async def _relearn(self, owner: str, batch: Sequence[Turn]) -> Outcome | None:
        live = await self._book.live_name(owner)
        learned = await self._book.trained(owner, [turn.id for turn in batch], line=live)
        rest = [turn for turn in batch if turn.id not in learned]
        judged, played = await self._gatherer.again(owner, live, rest)
        lines = await self._gatherer.lines(owner, judged)
        credited = credit(judged, self._training.method, settings_of(self._training), lines)
        prepared = self._prepare(credited, live, groups=played)
        return None if prepared is None else await self._update(owner, live, prepared)

    def _prepare(self, credited: Credited, live: str, *, groups: bool = False) -> Prepared | None:
        return prepare(
            credited,
            training=self._training,
            renderer=self._renderer,
            version=live,
            max_tokens=self._max_tokens,
            longest=self._limit.tokens,
            pass_tokens=CPU_PASS_TOKENS if self._trainer.model.device.type == "cpu" else None,
            all_of_it=groups,
            merged=self._rollout.session_aware or not groups,
        )

    async def _update(self, owner: str, live: str, prepared: Prepared) -> Outcome:
        started = time.monotonic()
        held = await self._gate.held_out(owner)
        known = await with_sessions(owner, prepared.trained, self._turns)
        fits = await asyncio.to_thread(self._gate.fits, prepared.trained, known, held)
        await asyncio.to_thread(self._holder.hold, owner, live)
        before = copy.deepcopy(self._trainer.state())
        old = await asyncio.to_thread(self._gate.measure, held, owner=owner, version=live)
        self._holder.let_go()
        metrics = await asyncio.to_thread(self._steps, prepared)
        new = await asyncio.to_thread(self._gate.measure, held)
        answers = await asyncio.to_thread(self._gate.answers)
        name = await self._book.reserve(owner)
        version = Version(
            name=name,
            owner=owner,
            parent=live,
            state="candidate",
            folder=f"{safe(owner)}/{name}",
            turns=prepared.turns,
            metrics=metrics,
            config=self._training.model_dump(mode="json"),
            created=time.time(),
        )
        await asyncio.to_thread(self._files.write, version, self._trainer.save_adapter)
        try:
            await asyncio.to_thread(self._holder.save, owner, name)
        except OSError:
            # Or else each try would leave a folder on a disk that is full.
            await asyncio.to_thread(self._files.remove, owner, name)
            raise
        report = await asyncio.to_thread(
            self._gate.decide, name, live, old=old, new=new, answers=answers, held=held, batch=fits
        )
        live_now = False
        if given_up := not await self._book.add(version):
            log.info("%s is given up: one of its turns was forgotten meanwhile", name)
            report = replace(report, accepted=False)
            await asyncio.to_thread(self._files.remove, owner, name)
        else:
            live_now = await self._publish(version, report, live)
        if not report.accepted:
            self._trainer.load_state(before)
        self._gate.remember(owner, *((name, new) if report.accepted else (live, old)), held)
        self._holder.holds_now(owner, name if report.accepted else live)
        await self._prune(owner)
        await asyncio.to_thread(give_back)
        seconds = time.monotonic() - started
        log.info("%s in %.1f s: %s", name, seconds, "; ".join(report.reasons))
        held_back = report.accepted and not live_now
        return Outcome(
            version=version,
            report=report,
            metrics=metrics,
            seconds=seconds,
            held_back=held_back,
            given_up=given_up,
        )

    async def _publish(self, version: Version, report: GateReport, live: str) -> bool:
        """Keep the report, and make an accepted version live; whether it is."""
        found = report.to_json()
        await self._book.note_gate(version.owner, version.name, found)
        gated = replace(version, gate=found, state="candidate" if report.accepted else "rejected")
        if report.accepted:
            return await self._go_live(gated, live)
        await asyncio.to_thread(self._files.annotate, gated)
        return False

    async def _go_live(self, version: Version, live: str) -> bool:
        await asyncio.to_thread(self._files.annotate, version)
        if await self._book.go_live(version.owner, version.name, instead_of=live):
            return True
        log.info("%s is ready and waits: learning is paused for %s", version.name, version.owner)
        return False

    def _steps(self, prepared: Prepared) -> dict[str, float]:
        times = steps_for(prepared.trained, self._training)
        metrics = self._trainer.steps_on(prepared.batch, times) | {"steps": times}
        return metrics | {name: float(n) for name, n in prepared.batch.counts.items()}

    def _measure(self, owner: str, name: str, held: Held) -> Measured:
        self._holder.hold(owner, name)
        return self._gate.measure(held)

    async def _prune(self, owner: str) -> None:
        for version in await self._book.prune(owner, keep=self._training.keep_versions):
            await asyncio.to_thread(self._files.remove, owner, version.name)
        # That of the version before, too: a rollback goes on with it. And what waits to go live.
        line = await self._book.line(owner, await self._book.live_name(owner))
        kept = {one.name for one in line[:2]}
        kept |= {one.name for one in await self._book.versions(owner) if _may_go_live(one)}
        await asyncio.to_thread(self._holder.keep, owner, kept)


def _cut(batches: Sequence[Sequence[Turn]], size: int) -> Iterator[Sequence[Turn]]:
    """Batches of today's size: those of a version may have been larger. Attempts stay together."""
    for batch in batches:
        played = any(turn.group is not None for turn in batch)
        step = len(batch) if played else size
        yield from (batch[at : at + step] for at in range(0, len(batch), max(1, step)))


def _may_go_live(version: Version) -> bool:
    return version.state == "candidate" and not (version.tainted or version.pruned)


def _key(version: Version) -> str:
    return f"{version.name} of {version.owner}"


def _refused(live: str, name: str, error: ModelError) -> dict[str, Any]:
    return GateReport(
        accepted=False, reasons=(str(error),), live=live, candidate=name, turns=0, references=0
    ).to_json()
