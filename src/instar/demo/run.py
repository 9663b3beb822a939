"""The demo from start to end: serve, talk, learn, and show before and after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from instar.batch.render import ChatRenderer
from instar.config import Config
from instar.demo.measure import Measured, Reader
from instar.demo.person import Person
from instar.demo.proof import Proof, likeliest, prove
from instar.demo.talk import Client, Said
from instar.demo.waiting import STILL_S, Background, Standstill
from instar.errors import ConfigError
from instar.gateway.auth import LOCAL_OWNER
from instar.launch import started
from instar.loop import model_folder, store_url
from instar.record.judged import JudgedTurns
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.train.step import TorchTrainer
from instar.types import Version

_ROUNDS = 3
"""How often somebody may talk in vain, however long that takes: answers may be slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the demo found."""

    persona: str
    seed: int
    looks: tuple[Measured, ...]
    versions: tuple[Version, ...]
    judge_agreement: float | None
    """How often the judge's verdict was the person's truth, where it gave one."""
    kept: tuple[str, ...]
    proof: Proof | None = None

    @property
    def praised(self) -> list[float]:
        """The share of good verdicts in the batch of each update, in order."""
        means = (version.metrics.get("reward_mean") for version in self.versions)
        return [(1 + mean) / 2 for mean in means if mean is not None]

    @property
    def retention(self) -> float | None:
        """Likelihood of reference answers under the last accepted version, against the base.

        Without one the base itself serves, which is 1. None where the gate did not measure it.
        """
        accepted = [v.gate for v in self.versions if v.gate and v.gate.get("accepted")]
        found = accepted[-1].get("retention") if accepted else 1.0
        return None if found is None else float(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long the demo goes on."""

    updates: int = 16
    look_after: tuple[int, ...] = (8, 16)
    samples: int = 2
    """Answers a kept prompt, at each look."""
    max_tokens: int = 128
    proof: bool = True
    """Show in the end that lies are stopped and that a rollback brings the old words back."""
    still_s: float = STILL_S
    """How long it waits while nothing is learned."""


async def demo(
    config: Config,
    home: Path,
    person: Person,
    *,
    seed: int,
    plan: Plan,
    sets: Sequence[str] = (),
    progress: Callable[[str, float], None],
) -> Report:
    """Let a person teach a model; `progress` is told what happens and how far it is, 0 to 1."""
    progress("starting", 0.0)
    folder = await asyncio.to_thread(model_folder, config, home, lambda text: progress(text, 0.0))
    if folder is None:
        raise ConfigError(
            f"engine.type is {config.engine.type}, which has no model that could learn; "
            "the demo needs one that has, such as torch_local"
        )
    reader = await asyncio.to_thread(_reader, config, folder)
    async with (
        started(home, sets) as address,
        open_store(store_url(config, home)) as store,
    ):
        client = Client(address, config.model.name, max_tokens=plan.max_tokens)
        try:
            waiting = Background(home, lambda: _signs(store), still_s=plan.still_s)
            show = _Show(config, person, client, store, reader, plan, progress, waiting)
            looks, said = await show.run()
            versions = await VersionBook(store).versions(LOCAL_OWNER)
            proof = await show.prove() if plan.proof else None
        finally:
            reader.stop()
            await client.close()
        return Report(
            persona=person.name,
            seed=seed,
            looks=tuple(looks),
            versions=tuple(versions),
            judge_agreement=await _agreement(store, person, said),
            kept=person.kept,
            proof=proof,
        )


class _Show:
    def __init__(
        self,
        config: Config,
        person: Person,
        client: Client,
        store: TurnStore,
        reader: Reader,
        plan: Plan,
        progress: Callable[[str, float], None],
        background: Background,
    ) -> None:
        self._config, self._person, self._client = config, person, client
        self._store, self._book = store, VersionBook(store)
        self._reader, self._plan = reader, plan
        self._progress = progress
        self._background = background
        self._next = 0
        self._likeliest: dict[str, tuple[str, ...]] = {}

    async def run(self) -> tuple[list[Measured], list[Said]]:
        looks = [await self._look(0)]
        said: list[Said] = []
        for update in range(1, self._plan.updates + 1):
            said += await self._update(update)
            if self._plan.proof and update >= self._plan.updates - 1:
                live = await self._book.live_name(LOCAL_OWNER)
                if live not in self._likeliest:
                    self._likeliest[live] = await likeliest(self._client, self._person)
            if update in self._plan.look_after or update == self._plan.updates:
                looks.append(await self._look(update))
        return looks, said

    async def prove(self) -> Proof:
        """One batch with its verdicts turned round, then a rollback."""
        before = len(await self._book.versions(LOCAL_OWNER))
        self._progress("lying to it, and going back", self._share(self._plan.updates))
        return await prove(
            self._store,
            self._client,
            self._person,
            talk=lambda: self._talk("lying to it", self._share(self._plan.updates)),
            learned=lambda: self._learned(before),
            swapped=self._swapped,
            kept=self._likeliest,
        )

    async def _update(self, update: int) -> list[Said]:
        """Talk until there is enough to learn from, then wait for what the gate says of it."""
        share = self._share(update - 1)
        before = len(await self._book.versions(LOCAL_OWNER))
        said = await self._talk(f"update {update}: talking", share)
        self._progress(f"update {update}: training", self._share(update - 0.5))
        await self._learned(before)
        await self._swapped()
        return said

    def _share(self, updates: float) -> float:
        """How much is done after so many updates; the proof at the end takes as long as one, the
        last look as half of one. A bar that is full stops its clock.
        """
        return updates / (self._plan.updates + (1 if self._plan.proof else 0.5))

    async def _talk(self, what: str, share: float) -> list[Said]:
        """Until there are enough turns with something to learn from."""
        self._progress(what, share)
        said: list[Said] = []
        still = Standstill(self._background.clock)
        while (missing := await self._missing()) > 0:
            if still.lasts(missing) > self._background.still_s and still.looks > _ROUNDS:
                raise ConfigError(self._unheard(said))
            said += await asyncio.gather(*(self._converse() for _ in range(missing)))
        return said

    async def _missing(self) -> int:
        """How many more turns with something to learn from a batch needs, once all are judged."""
        await self._background.until(self._all_judged, "the judge's verdicts")
        training = self._config.training
        waiting = await JudgedTurns(self._store).waiting(LOCAL_OWNER, share=training.holdout_share)
        return training.batch_size - sum(bool(one.hint or one.score) for one in waiting)

    async def _all_judged(self) -> bool:
        return not await self._store.ready(LOCAL_OWNER, limit=1)

    def _unheard(self, said: Sequence[Said]) -> str:
        """Why it goes on no further with somebody whose words tell the judge nothing."""
        return (
            f"{self._person.name} has talked for {self._background.still_s / 60:.0f} minutes and "
            f"more without a verdict to learn from, {len(said)} conversations for this update; "
            f"the last words were {said[-1].reply[:200]!r}. A persona must say in respond() "
            "whether an answer was good, or what was wrong with it; `instar judge score` shows "
            "what the judge makes of words."
        )

    async def _learned(self, before: int) -> None:
        await self._background.until(lambda: self._gated(before), "the next version")

    async def _swapped(self) -> None:
        await self._background.until(self._serves_live, "the gateway to serve the live version")

    async def _gated(self, before: int) -> bool:
        """Whether a version more is there, with its report, and live or rejected for good."""
        versions = await self._book.versions(LOCAL_OWNER)
        return len(versions) > before and versions[-1].state != "candidate"

    async def _serves_live(self) -> bool:
        """The gateway follows the store; on a busy machine that may take a while."""
        return await self._client.version() == await self._book.live_name(LOCAL_OWNER)

    async def _converse(self) -> Said:
        prompt = self._person.asked[self._next % len(self._person.asked)]
        self._next += 1
        return await self._client.converse(prompt, self._person.respond)

    async def _look(self, updates: int) -> Measured:
        self._progress(f"measuring after {updates} updates", self._share(updates))
        prompts = list(self._person.kept) * self._plan.samples
        answers = await asyncio.gather(*(self._client.answer(prompt) for prompt in prompts))
        pairs = list(zip(prompts, answers, strict=True))
        return await asyncio.to_thread(self._reader.measure, self._person, pairs, updates)


async def _signs(store: TurnStore) -> tuple[object, ...]:
    """What changes with whatever the background does."""
    waiting = await store.ready(LOCAL_OWNER, limit=100)
    versions = await VersionBook(store).versions(LOCAL_OWNER)
    last = [(one.name, one.state, one.gate is None) for one in versions[-1:]]
    return ([one.id for one in waiting], last)


async def _agreement(store: TurnStore, person: Person, said: Sequence[Said]) -> float | None:
    """The judge's verdicts against what the person really thought."""
    truth = {(one.prompt, one.answer): person.likes(one.prompt, one.answer) for one in said}
    same = total = 0
    for owner, session in await store.session_keys(LOCAL_OWNER, limit=100_000):
        for turn in await store.turns(owner, session):
            if turn.verdict is None or not turn.verdict.score or turn.kind != "main":
                continue
            if turn.verdict.source == "person":  # the lies, which no judge told
                continue
            asked = (str(turn.messages[-1].get("content")), str(turn.reply.get("content") or ""))
            if asked in truth:
                total += 1
                same += (turn.verdict.score > 0) == truth[asked]
    return same / total if total else None


def _reader(config: Config, folder: Path) -> Reader:
    return Reader(TorchTrainer(folder, config.training), ChatRenderer.from_folder(folder))
