"""Turns with all that credit wants to know of them: hints, estimates, their place in sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from instar.batch.credit import Judged, Lines
from instar.batch.merge import temperature_of
from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.learn.batches import hint_for, hinted_prompt, standing_hint
from instar.learn.examples import Example, Examples
from instar.learn.gatekeeper import with_sessions
from instar.learn.groups import TurnsOf, judged_groups, own_version, with_outcome
from instar.learn.holding import Holder
from instar.learn.setbacks import Setbacks
from instar.learn.wording import Wordings
from instar.record.attempts import AttemptBook
from instar.record.judged import JudgedTurns
from instar.record.versions import VersionBook
from instar.train.step import TorchTrainer
from instar.types import Attempt, Turn

_TOLD = 128
"""The newest turns of a line that say what a person wants."""

GiveUp = Callable[[str], object]
"""What becomes of a turn that failed too often."""


class Gatherer:
    """Asks the store and the trainer."""

    def __init__(
        self,
        trainer: TorchTrainer,
        *,
        training: TrainingConfig,
        renderer: ChatRenderer,
        holder: Holder,
        book: VersionBook,
        judged: JudgedTurns,
        turns: TurnsOf,
        setbacks: Setbacks,
        longest: int,
        attempts: AttemptBook | None = None,
    ) -> None:
        self._trainer = trainer
        self._training = training
        self._renderer = renderer
        self._holder = holder
        self._book = book
        self._judged = judged
        self._turns = turns
        self._setbacks = setbacks
        self._longest = longest
        self._attempts = attempts
        self._wordings = Wordings(trainer, renderer=renderer, training=training, longest=longest)
        self._examples = Examples(trainer, renderer=renderer, training=training, longest=longest)

    async def talk(
        self, owner: str, live: str, turns: Sequence[Turn], give_up: GiveUp
    ) -> list[Judged]:
        """Turns of talk, with what their teacher reads."""
        known = await with_sessions(owner, turns, self._turns)
        turns = await self._said_best(turns, known)
        standing, examples = await self.told(owner, live, turns[: self._training.batch_size])
        age = await self.ages(owner)
        out = []
        for turn in turns:
            with self._setbacks.blaming([turn.id], partial(give_up, turn.id)):
                one = Judged(turn=turn, age=age.get(own_version(turn), 0))
                out.append(self._hinted(one, known, standing, examples))
        return await asyncio.to_thread(self._estimated, owner, live, out, give_up)

    async def groups(
        self, owner: str, live: str, groups: Sequence[Sequence[Attempt]]
    ) -> list[Judged]:
        """The turns of groups of attempts."""
        ages = await self.ages(owner)
        judged = await judged_groups(owner, groups, turns_of=self._turns, ages=ages)
        known = {one.turn.id: one.turn for one in judged}
        hinted = [self._hinted(one, known) for one in judged]
        return await asyncio.to_thread(self._estimated, owner, live, hinted)

    async def again(
        self, owner: str, live: str, turns: Sequence[Turn]
    ) -> tuple[list[Judged], bool]:
        """Turns of a version that is trained again, and whether they are of attempts at tasks."""
        turns = [turn for turn in turns if len(turn.ids) <= self._longest]
        known = await with_sessions(owner, turns, self._turns)
        played = await self._outcomes(owner, turns)
        standing, examples = (None, None) if played else await self.told(owner, live, turns)
        judged = []
        for turn in turns:
            attempt = played.get(turn.session)
            one = Judged(turn=turn) if attempt is None else with_outcome(turn, attempt)
            judged.append(self._hinted(one, known, standing, examples))
        return await asyncio.to_thread(self._estimated, owner, live, judged), bool(played)

    async def lines(self, owner: str, judged: Sequence[Judged]) -> Lines:
        """How the sessions of these turns went on; only GAE looks there."""
        if self._training.advantage != "gae":
            return Lines()
        sessions = {one.turn.session for one in judged}
        share = self._training.holdout_share
        places = await self._judged.places(owner, sessions, share=share)
        return Lines(
            parents={name: place.parent for name, place in places.items()},
            scores={n: float(at.score) for n, at in places.items() if at.score is not None},
        )

    async def _said_best(self, turns: Sequence[Turn], known: dict[str, Turn]) -> list[Turn]:
        """Those of the next batch with their hints in the wording that is followed best."""
        count = self._training.batch_size
        chosen = await asyncio.to_thread(self._wordings.choose, turns[:count], known)
        new = {
            one.id: one.hint
            for one, before in zip(chosen, turns, strict=False)
            if one.hint is not None and one.hint != before.hint
        }
        if new:
            await self._judged.note_hints(new)
        return [*chosen, *turns[count:]]

    async def told(
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

    async def praise_is_hinted(self, owner: str, live: str) -> bool:
        """Whether praise may have a hint; it is only looked for where nothing else could teach."""
        training = self._training
        if not training.standing_hints or training.method == "binary" or training.opd == "sampled":
            return False
        if training.method == "combine" and training.binary_weight:
            return True
        told = await self._book.told(owner, line=live, limit=_TOLD)
        return standing_hint(told) is not None

    async def ages(self, owner: str) -> dict[str, int]:
        """How many versions of the live line came after each."""
        return await self._book.ages(owner)

    def _hinted(
        self,
        one: Judged,
        known: dict[str, Turn],
        standing: str | None = None,
        examples: Sequence[Example] | None = None,
    ) -> Judged:
        ids = hinted_prompt(
            one.turn,
            self._renderer,
            known,
            training=self._training,
            longest=self._longest,
            standing=standing,
            examples=examples,
        )
        unread = ids is None and hint_for(one.turn, standing) is not None
        return replace(one, hinted_ids=ids, unread=unread)

    def _estimated(
        self,
        owner: str,
        live: str,
        judged: Sequence[Judged],
        give_up: GiveUp = lambda _: None,
    ) -> list[Judged]:
        """With what only weights can tell: a teacher's log-probs, the value head's estimates."""
        training = self._training
        if not training.value_head and training.opd == "full":
            return list(judged)
        self._holder.hold(owner, live)
        out = []
        for one in judged:
            with self._setbacks.blaming([one.turn.id], partial(give_up, one.turn.id)):
                out.append(self._estimate(one))
        return out

    def _estimate(self, one: Judged) -> Judged:
        theirs = value = None
        if self._training.opd == "sampled" and one.hinted_ids is not None:
            theirs = self._trainer.logprobs(
                one.hinted_ids,
                one.turn.sampled_ids,
                # Compared with the recorded ones, so at theirs.
                temperature=temperature_of(one.turn),
                weights="base",
            )
        if self._training.value_head and len(one.turn.prompt_ids) <= self._longest:
            value = self._trainer.value(one.turn.prompt_ids)
        return replace(one, teacher_logprobs=theirs, value=value)

    async def _outcomes(self, owner: str, turns: Sequence[Turn]) -> dict[str, Attempt]:
        """Attempts that these turns are part of, by session."""
        sessions = sorted({turn.session for turn in turns if turn.group is not None})
        if self._attempts is None or not sessions:
            return {}
        return {one.session: one for one in await self._attempts.of_sessions(owner, sessions)}
