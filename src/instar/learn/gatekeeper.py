"""Measures the weights that a trainer holds on what is never trained on, for the gate to decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from instar.batch.credit import Judged
from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.learn import measure
from instar.learn.batches import standing_hint
from instar.learn.groups import HELD_OUT, TurnsOf, judged_groups, tried
from instar.publish.agreement import Fit
from instar.publish.gate import Correction, GateReport, Measured, Reference, Tried, decide
from instar.record.attempts import AttemptBook
from instar.record.versions import VersionBook
from instar.train.reading import Weights
from instar.train.step import TorchTrainer
from instar.types import Turn

Measures = dict[tuple[str, str | None], Correction]
"""Of held-out turns, by turn and hint."""

_FITS = 12
"""Turns of a batch whose verdicts are compared with held-out ones: more would only cost time."""
_GATE_GROUPS = 8
"""The newest groups at held-out tasks that the gate looks at."""
_SURE = 8
"""Corrected turns from which on it is known what the base thinks of such replies."""
_LATEST = 128
"""The newest turns of a line among which corrected ones are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the gate looks at; new weights are measured only on what is never trained on."""

    turns: list[Turn]
    """Corrected ones."""
    known: Mapping[str, Turn]
    """All turns of their sessions."""
    praised: list[Turn]
    tried: list[Judged]
    taught: list[Turn] = field(default_factory=list)
    """Corrected ones that were trained on, where few are held out: only what the base thinks of
    them counts, and that no training changes."""


class Gatekeeper:
    """Asked before and after an update; what the base says is measured once."""

    def __init__(
        self,
        trainer: TorchTrainer,
        *,
        training: TrainingConfig,
        renderer: ChatRenderer,
        book: VersionBook,
        turns: TurnsOf,
        references: Sequence[Reference],
        longest: int,
        attempts: AttemptBook | None = None,
    ) -> None:
        """Nothing of more than `longest` tokens is looked at: it cannot be read."""
        self._trainer = trainer
        self._training = training
        self._renderer = renderer
        self._book = book
        self._turns = turns
        self._references = [
            one
            for one in references
            if sum(map(len, measure.reference_ids(one, renderer))) <= longest
        ]
        self._longest = longest
        self._attempts = attempts
        self._seen: tuple[str, str, Measured, Measures] = ("", "", Measured(), {})
        """The owner, the version and what was measured of it last."""
        self._teachers: measure.Teachers = {}
        self._base_answers: list[float] | None = None
        self._base_held: Measures = {}
        self._base_praised: dict[str, Tried] = {}
        self._fits: dict[tuple[str, bool, str | None], Fit] = {}

    async def held_out(self, owner: str) -> Held:
        share, limit = self._training.holdout_share, self._training.gate_turns
        found = [
            await self._book.held_out(
                owner, share=share, limit=most, praised=praised, longest=self._longest
            )
            for praised, most in ((False, limit), (True, limit // 2))
        ]
        hinted, praised = ([one for one in turns if not one.has_images] for turns in found)
        turns = [one for one in hinted if _corrected(one)]
        attempted: list[Judged] = []
        if self._attempts is not None:
            newest = await self._attempts.latest(owner, HELD_OUT, limit=_GATE_GROUPS)
            attempted = await judged_groups(owner, newest, turns_of=self._turns, ages={})
        taught = await self._taught(owner, _SURE - len(turns)) if len(turns) < _SURE else []
        known = await with_sessions(owner, [*turns, *praised, *taught], self._turns)
        return Held(turns=turns, known=known, praised=praised, tried=attempted, taught=taught)

    async def _taught(self, owner: str, limit: int) -> list[Turn]:
        """The newest corrected turns that trained the live line."""
        live = await self._book.live_name(owner)
        told = await self._book.told(owner, line=live, limit=_LATEST)
        fit = [one for one in told if not one.has_images and len(one.ids) <= self._longest]
        return [one for one in fit if one.hint is not None and _corrected(one)][-limit:]

    def remember(self, owner: str, version: str, found: Measured, held: Held) -> None:
        """A version that is live now: measured again, only turns that are new will be read."""
        told = {turn.id: _hinted(turn) for turn in held.turns}
        self._seen = (owner, version, found, {told[one.turn]: one for one in found.corrections})

    def measure(self, held: Held, *, owner: str = "", version: str = "") -> Measured:
        """Of the weights that the trainer holds, which are this version's where it is named."""
        is_known = version and self._seen[:2] == (owner, version)
        known, corrected = self._seen[2:] if is_known else (Measured(), {})
        praised = {one.turn: one for one in known.praised}
        new = [turn for turn in held.praised if turn.id not in praised]
        praised |= {one.turn: one for one in measure.praised(self._trainer, new)}
        return Measured(
            corrections=self._corrections(held, corrected, "policy"),
            praised=[praised[turn.id] for turn in held.praised if turn.id in praised],
            tried=tried(self._trainer, held.tried, longest=self._longest),
        )

    def answers(self) -> list[float]:
        """How likely the reference answers are now."""
        if self._base_answers is None:
            self._base_answers = measure.answers(
                self._trainer, self._references, renderer=self._renderer, weights="base"
            )
        return measure.answers(
            self._trainer, self._references, renderer=self._renderer, weights="policy"
        )

    def fits(self, turns: Sequence[Turn], known: Mapping[str, Turn], held: Held) -> list[Fit]:
        """How some replies of a batch fit what was asked for; the base says, at any time."""
        count = min(_FITS, len(turns))
        some = [turns[at * len(turns) // count] for at in range(count)]
        return self._fitted(some, known, standing_hint(held.turns))

    def decide(
        self,
        candidate: str,
        live: str,
        *,
        old: Measured,
        new: Measured,
        answers: Sequence[float],
        held: Held,
        batch: Sequence[Fit] = (),
    ) -> GateReport:
        return decide(
            candidate=candidate,
            live=live,
            old=old,
            new=new,
            base=self._of_base(held),
            references=self._references,
            base_answers=self._base_answers or (),
            new_answers=answers,
            tolerance=self._training.gate_tolerance,
            min_retention=self._training.min_retention,
            batch=batch,
        )

    def _of_base(self, held: Held) -> Measured:
        return Measured(
            corrections=self._of_base_held(held),
            praised=self._praised_of_base(held),
            fits=self._fits_of(held),
        )

    def _praised_of_base(self, held: Held) -> list[Tried]:
        new = [turn for turn in held.praised if turn.id not in self._base_praised]
        found = measure.praised(self._trainer, new, weights="base")
        self._base_praised |= {one.turn: one for one in found}
        names = [turn.id for turn in held.praised if turn.id in self._base_praised]
        self._base_praised = {name: self._base_praised[name] for name in names}
        return list(self._base_praised.values())

    def _fits_of(self, held: Held) -> list[Fit]:
        """A person may change a verdict at any time, and a hint with it: both are in the key."""
        turns = {_told(turn): turn for turn in (*held.turns, *held.taught, *held.praised)}
        standing = standing_hint(held.turns)
        self._fits = {key: one for key, one in self._fits.items() if key in turns}
        for key in turns.keys() - self._fits.keys():
            for found in self._fitted([turns[key]], held.known, standing):
                self._fits[key] = found
        return list(self._fits.values())

    def _fitted(
        self, turns: Sequence[Turn], known: Mapping[str, Turn], standing: str | None
    ) -> list[Fit]:
        return measure.fits(
            self._trainer,
            turns,
            renderer=self._renderer,
            known=known,
            training=self._training,
            longest=self._longest,
            standing=standing,
        )

    def _of_base_held(self, held: Held) -> list[Correction]:
        found = self._corrections(held, self._base_held, "base")
        told = {turn.id: _hinted(turn) for turn in held.turns}
        self._base_held = {told[one.turn]: one for one in found}
        self._teachers = {key: one for key, one in self._teachers.items() if key[0] in told}
        return found

    def _corrections(self, held: Held, known: Measures, weights: Weights) -> list[Correction]:
        """Held-out corrections under these weights; those that are known are not read again."""
        new = measure.corrections(
            self._trainer,
            [turn for turn in held.turns if _hinted(turn) not in known],
            renderer=self._renderer,
            known=held.known,
            training=self._training,
            longest=self._longest,
            teachers=self._teachers,
            weights=weights,
        )
        found = {one.turn: one for one in new}
        every = ((turn, known.get(_hinted(turn))) for turn in held.turns)
        each = (one or found.get(turn.id) for turn, one in every)
        return [one for one in each if one is not None]


def _corrected(turn: Turn) -> bool:
    """What a person praised after all is no correction, whatever hint it has."""
    return turn.verdict is None or turn.verdict.score <= 0


def _hinted(turn: Turn) -> tuple[str, str | None]:
    """What a correction is measured by: with another hint its teacher is another one."""
    return turn.id, None if turn.hint is None else turn.hint.told


def _told(turn: Turn) -> tuple[str, bool, str | None]:
    good = turn.verdict is not None and turn.verdict.score > 0
    return turn.id, good, None if turn.hint is None else turn.hint.text


async def with_sessions(owner: str, turns: Sequence[Turn], turns_of: TurnsOf) -> dict[str, Turn]:
    """All turns of the sessions of these, by id: hinted prompts reuse their sampled ids."""
    found: dict[str, Turn] = {}
    for session in {turn.session for turn in turns if turn.replies}:
        found |= {turn.id: turn for turn in await turns_of(owner, session)}
    return found
