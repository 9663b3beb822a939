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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from instar.batch.credit import Judged
from instar.batch.render import ChatRenderer
from instar.config import RolloutConfig, TrainingConfig
from instar.errors import ModelError
from instar.learn.batches import (
    Prepared,
    hinted_prompt,
    prepare,
    standing_hint,
    steps_for,
    teaches,
)
from instar.learn.examples import Example, Examples
from instar.learn.gatekeeper import Gatekeeper, Held, with_sessions
from instar.learn.groups import judged_groups, ready_groups, with_outcome
from instar.learn.memory import CPU_PASS_TOKENS, give_back
from instar.learn.states import TrainerStates
from instar.publish.gate import GateReport, Measured, Reference
from instar.publish.versions import VersionFiles, safe
from instar.record.attempts import AttemptBook
from instar.record.versions import VersionBook
from instar.train.step import TorchTrainer
from instar.types import BASE_VERSION, Attempt, Turn, Version

log = logging.getLogger("instar.learn")

_TOLD = 128
"""The newest turns of a line that say what a person wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one batch."""

    version: Version
    report: GateReport
    metrics: dict[str, float]
    seconds: float


class Learner:
    """Holds the one trainer of a machine; owners take turns."""

    def __init__(
        self,
        trainer: TorchTrainer,
        *,
        training: TrainingConfig,
        renderer: ChatRenderer,
        book: VersionBook,
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
        self._files = files
        self._turns = turns
        self._states = TrainerStates(folder)
        self._max_tokens = max_tokens
        self._attempts = attempts
        self._rollout = rollout or RolloutConfig()
        self._fresh = copy.deepcopy(trainer.state())
        self._holds: tuple[str, str] | None = None
        self._ready: dict[str, dict[str, float]] = {}
        """By owner: since when turns that teach something have been waiting."""
        self._examples = Examples(trainer, renderer=renderer, training=training)
        self._gate = Gatekeeper(
            trainer,
            training=training,
            renderer=renderer,
            book=book,
            turns=turns,
            references=references,
            max_tokens=max_tokens,
            attempts=attempts,
        )

    async def learn(self, owner: str) -> Outcome | None:
        """One update for this owner, if enough of their turns are ready or have waited long."""
        most = self._training.max_steps
        if most is not None and len(await self._book.versions(owner)) >= most:
            return None
        return await self._learn_talk(owner) or await self._learn_groups(owner)

    async def _learn_talk(self, owner: str) -> Outcome | None:
        age = await self._ages(owner)
        # Passed over in the store: enough of them would fill all that is looked at, for ever.
        stale = [name for name, passed in age.items() if passed > self._training.max_staleness]
        judged = await self._judged(owner, age, stale)
        if not judged:
            return None
        at_least = 1 if self._have_waited(owner, judged) else self._training.batch_size
        if len(judged) < at_least:
            return None
        live = await self._book.live_name(owner)
        judged = await asyncio.to_thread(self._estimated, owner, live, judged)
        prepared = self._prepare(judged, live, at_least=at_least)
        if prepared is None:
            return None
        counts = {**prepared.batch.counts, "stale": await self._book.count_stale(owner, stale)}
        prepared = replace(prepared, batch=replace(prepared.batch, counts=counts))
        return await self._update(owner, live, prepared)

    def _have_waited(self, owner: str, judged: Sequence[Judged]) -> bool:
        """Whether one that teaches something has been ready for long.

        Ready, not said: a person who answers after an hour has only now begun to correct.
        """
        teach = [one.turn.id for one in judged if teaches(one)]
        now = time.monotonic()
        before = self._ready.get(owner, {})
        since = self._ready[owner] = {name: before.get(name, now) for name in teach}
        return any(now - at >= self._training.max_wait_s for at in since.values())

    async def _learn_groups(self, owner: str) -> Outcome | None:
        """From attempts at tasks: whole groups, as many as make a round."""
        if self._attempts is None:
            return None
        ready = await ready_groups(
            self._attempts, owner, wanted=self._rollout.batch_size, training=self._training
        )
        if ready is None:
            return None
        live = await self._book.live_name(owner)
        names = [group[0].group for group in ready]
        judged = await self._judged_groups(owner, ready)
        judged = await asyncio.to_thread(self._estimated, owner, live, judged)
        prepared = self._prepare(judged, live, at_least=1, groups=True)
        if prepared is None:
            log.info("%d groups teach nothing: their attempts fared alike, or are old", len(ready))
            await self._attempts.set_used(owner, names, "nothing")
            return None
        outcome = await self._update(owner, live, prepared)
        await self._attempts.set_used(owner, names, outcome.version.name)
        return outcome

    async def _judged_groups(self, owner: str, groups: Sequence[Sequence[Attempt]]) -> list[Judged]:
        ages = await self._ages(owner)
        judged = await judged_groups(owner, groups, turns_of=self._turns, ages=ages)
        known = {one.turn.id: one.turn for one in judged}
        return [replace(one, hinted_ids=self._hinted(one.turn, known)) for one in judged]

    async def finish(self, owner: str) -> list[Outcome]:
        """Gate and publish what an earlier process trained and left half-way."""
        left = [
            one
            for one in await self._book.versions(owner)
            if one.state == "candidate" and not one.tainted
        ]
        done = []
        for version in left:
            live = await self._book.live_name(owner)
            if version.gate is not None:
                # Measured, but not live: it died in between, or a person rolled back meanwhile.
                if version.gate["accepted"] and version.parent == live:
                    await self._go_live(version, live)
            elif (outcome := await self._gate_again(version, live)) is not None:
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
        await self._publish(version, report, live)
        return Outcome(version=version, report=report, metrics={}, seconds=0.0)

    async def relearn(self, owner: str, batches: Sequence[Sequence[Turn]]) -> list[Outcome]:
        """Train a line again from these batches, for instance without what was forgotten.

        Turns that the live line has learned from already are left out, so that a rebuild which
        was cut short goes on where it was.
        """
        done = []
        for batch in batches:
            live = await self._book.live_name(owner)
            names = [turn.id for turn in batch]
            learned = await self._book.trained(owner, names, line=live)
            rest = [turn for turn in batch if turn.id not in learned]
            known = await with_sessions(owner, rest, self._turns)
            played = await self._outcomes(owner, rest)
            standing, examples = (None, []) if played else await self._told(owner, live, rest)
            judged = [
                replace(
                    with_outcome(turn, played[turn.session])
                    if turn.session in played
                    else Judged(turn=turn),
                    hinted_ids=self._hinted(turn, known, standing, examples),
                )
                for turn in rest
            ]
            judged = await asyncio.to_thread(self._estimated, owner, live, judged)
            if prepared := self._prepare(judged, live, at_least=1, groups=bool(played)):
                done.append(await self._update(owner, live, prepared))
        return done

    async def _outcomes(self, owner: str, turns: Sequence[Turn]) -> dict[str, Attempt]:
        """Attempts that these turns are part of, by session."""
        sessions = sorted({turn.session for turn in turns if turn.group is not None})
        if self._attempts is None or not sessions:
            return {}
        return {one.session: one for one in await self._attempts.of_sessions(owner, sessions)}

    def _prepare(
        self, judged: Sequence[Judged], live: str, *, at_least: int, groups: bool = False
    ) -> Prepared | None:
        return prepare(
            judged,
            training=self._training,
            renderer=self._renderer,
            version=live,
            at_least=at_least,
            max_tokens=self._max_tokens,
            pass_tokens=CPU_PASS_TOKENS if self._trainer.model.device.type == "cpu" else None,
            all_of_it=groups,
            merged=self._rollout.session_aware or not groups,
        )

    async def _update(self, owner: str, live: str, prepared: Prepared) -> Outcome:
        started = time.monotonic()
        held = await self._gate.held_out(owner)
        known = await with_sessions(owner, prepared.trained, self._turns)
        fits = await asyncio.to_thread(self._gate.fits, prepared.trained, known, held)
        await asyncio.to_thread(self._hold, owner, live)
        before = copy.deepcopy(self._trainer.state())
        old = await asyncio.to_thread(self._gate.measure, held, owner=owner, version=live)
        metrics = await asyncio.to_thread(self._steps, prepared)
        self._holds = None
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
        await asyncio.to_thread(self._states.save, owner, name, self._trainer.state())
        report = await asyncio.to_thread(
            self._gate.decide, name, live, old=old, new=new, answers=answers, held=held, batch=fits
        )
        if not await self._book.add(version):
            log.info("%s is given up: one of its turns was forgotten meanwhile", name)
            report = replace(report, accepted=False)
            await asyncio.to_thread(self._files.remove, owner, name)
        else:
            await self._publish(version, report, live)
        if not report.accepted:
            self._trainer.load_state(before)
        self._gate.remember(owner, *((name, new) if report.accepted else (live, old)))
        self._holds = (owner, name if report.accepted else live)
        await self._prune(owner)
        await asyncio.to_thread(give_back)
        seconds = time.monotonic() - started
        log.info("%s in %.1f s: %s", name, seconds, "; ".join(report.reasons))
        return Outcome(version=version, report=report, metrics=metrics, seconds=seconds)

    async def _publish(self, version: Version, report: GateReport, live: str) -> None:
        found = report.to_json()
        await self._book.note_gate(version.owner, version.name, found)
        gated = replace(version, gate=found, state="candidate" if report.accepted else "rejected")
        if report.accepted:
            await self._go_live(gated, live)
        else:
            await asyncio.to_thread(self._files.annotate, gated)

    async def _go_live(self, version: Version, live: str) -> None:
        await asyncio.to_thread(self._files.annotate, version)
        await self._book.promote(version.owner, version.name, instead_of=live)

    def _steps(self, prepared: Prepared) -> dict[str, float]:
        times = steps_for(prepared.trained, self._training)
        metrics = self._trainer.steps_on(prepared.batch, times) | {"steps": float(times)}
        return metrics | {name: float(n) for name, n in prepared.batch.counts.items()}

    async def _judged(
        self, owner: str, age: Mapping[str, int], stale: Collection[str]
    ) -> list[Judged]:
        """Turns with a verdict or hint that trained nothing yet, with what their teacher reads."""
        training = self._training
        turns = await self._book.trainable(
            owner, share=training.holdout_share, limit=8 * training.batch_size, stale=stale
        )
        known = await with_sessions(owner, turns, self._turns)
        live = await self._book.live_name(owner)
        standing, examples = await self._told(owner, live, turns[: training.batch_size])
        return [
            Judged(
                turn=turn,
                age=age.get(turn.version.rpartition("/")[2], 0),
                hinted_ids=self._hinted(turn, known, standing, examples),
            )
            for turn in turns
        ]

    def _estimated(self, owner: str, live: str, judged: Sequence[Judged]) -> list[Judged]:
        """With what only weights can tell: a teacher's log-probs, the value head's estimates."""
        training = self._training
        if not training.value_head and training.opd == "full":
            return list(judged)
        self._hold(owner, live)
        out = []
        for one in judged:
            theirs = value = None
            if training.opd == "sampled" and one.hinted_ids is not None:
                theirs = self._trainer.logprobs(
                    one.hinted_ids,
                    one.turn.sampled_ids,
                    temperature=one.turn.settings.temperature or 1.0,
                    weights="base",
                )
            if training.value_head:
                value = self._trainer.value(one.turn.prompt_ids)
            out.append(replace(one, teacher_logprobs=theirs, value=value))
        return out

    def _hinted(
        self,
        turn: Turn,
        known: dict[str, Turn],
        standing: str | None = None,
        examples: Sequence[Example] = (),
    ) -> tuple[int, ...] | None:
        return hinted_prompt(
            turn,
            self._renderer,
            known,
            training=self._training,
            standing=standing,
            examples=examples,
        )

    async def _told(
        self, owner: str, live: str, batch: Sequence[Turn]
    ) -> tuple[str | None, list[Example]]:
        """What a person keeps asking for, and what a teacher of this batch may be shown.

        Only from turns that trained the live line or are part of the batch: so each is one that the
        new version or an ancestor of it names, and is forgotten with; and none is held out.
        """
        training = self._training
        if training.method == "binary":
            return None, []
        told = [*await self._book.told(owner, line=live, limit=_TOLD), *batch]
        standing = standing_hint(told) if training.standing_hints else None
        if not training.examples:
            return standing, []
        return standing, await asyncio.to_thread(self._examples.among, told)

    async def _ages(self, owner: str) -> dict[str, int]:
        """How many versions of the live line came after each."""
        line = await self._book.line(owner, await self._book.live_name(owner))
        ages = {version.name: at for at, version in enumerate(line)}
        return ages | {BASE_VERSION: len(line)}

    def _hold(self, owner: str, name: str) -> None:
        """Bring the trainer to a version, with its optimiser's state where there is one."""
        if self._holds == (owner, name):
            return
        state = self._states.load(owner, name)
        self._trainer.load_state(copy.deepcopy(state or self._fresh))
        if state is None and name != BASE_VERSION:
            self._files.read(owner, name)
            self._trainer.load_adapter(self._files.folder(owner, name))
        self._holds = (owner, name)

    def _measure(self, owner: str, name: str, held: Held) -> Measured:
        self._hold(owner, name)
        return self._gate.measure(held)

    async def _prune(self, owner: str) -> None:
        for version in await self._book.prune(owner, keep=self._training.keep_versions):
            await asyncio.to_thread(self._files.remove, owner, version.name)
        # That of the version before, too: a rollback goes on with it.
        line = await self._book.line(owner, await self._book.live_name(owner))
        await asyncio.to_thread(self._states.keep, owner, [one.name for one in line[:2]])


def _refused(live: str, name: str, error: ModelError) -> dict[str, Any]:
    return GateReport(
        accepted=False, reasons=(str(error),), live=live, candidate=name, turns=0, references=0
    ).to_json()
