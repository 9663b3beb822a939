"""The demo from start to end: serve, talk, learn, and show before and after."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from instar.batch.render import ChatRenderer
from instar.config import Config
from instar.demo.measure import Measured, Reader
from instar.demo.person import Person
from instar.demo.talk import Client, Said
from instar.errors import EngineError
from instar.gateway.auth import LOCAL_OWNER
from instar.loop import model_folder, store_url
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.train.step import TorchTrainer
from instar.types import Version

_POLL_S = 0.5
_SWAP_S = 1.5
"""The gateway looks for a new live version twice a second."""


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

    @property
    def retention(self) -> float | None:
        """Likelihood of reference answers under the last accepted version, against the base."""
        accepted = [v.gate for v in self.versions if v.gate and v.gate.get("accepted")]
        found = accepted[-1].get("retention") if accepted else None
        return None if found is None else float(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long the demo goes on."""

    updates: int = 16
    look_after: tuple[int, ...] = (8, 16)
    samples: int = 2
    """Answers a kept prompt, at each look."""
    max_tokens: int = 128


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
    assert folder is not None
    reader = await asyncio.to_thread(_reader, config, folder)
    async with (
        _up(home, sets) as address,
        open_store(store_url(config, home)) as store,
    ):
        client = Client(address, config.model.name, max_tokens=plan.max_tokens)
        try:
            show = _Show(config, person, client, store, reader, plan, progress)
            looks, said = await show.run()
        finally:
            reader.stop()
            await client.close()
        versions = await VersionBook(store).versions(LOCAL_OWNER)
        return Report(
            persona=person.name,
            seed=seed,
            looks=tuple(looks),
            versions=tuple(versions),
            judge_agreement=await _agreement(store, person, said),
            kept=person.kept,
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
    ) -> None:
        self._config, self._person, self._client = config, person, client
        self._store, self._book = store, VersionBook(store)
        self._reader, self._plan = reader, plan
        self._progress = progress
        self._next = 0

    async def run(self) -> tuple[list[Measured], list[Said]]:
        looks = [await self._look(0)]
        said: list[Said] = []
        for update in range(1, self._plan.updates + 1):
            said += await self._update(update)
            if update in self._plan.look_after or update == self._plan.updates:
                looks.append(await self._look(update))
        return looks, said

    async def _update(self, update: int) -> list[Said]:
        """Talk until there is enough to learn from, then wait for what the gate says of it."""
        share = (update - 1) / self._plan.updates
        before = len(await self._book.versions(LOCAL_OWNER))
        said: list[Said] = []
        while (missing := await self._missing()) > 0 and not await self._gated(before):
            self._progress(f"update {update}: talking", share)
            said += await asyncio.gather(*(self._converse() for _ in range(missing)))
        self._progress(f"update {update}: training", share + 0.5 / self._plan.updates)
        await _until(lambda: self._gated(before))
        await asyncio.sleep(_SWAP_S)
        return said

    async def _missing(self) -> int:
        """How many more turns with something to learn from a batch needs, once all are judged."""
        await _until(self._all_judged)
        training = self._config.training
        waiting = await self._book.trainable(
            LOCAL_OWNER, share=training.holdout_share, limit=8 * training.batch_size
        )
        telling = [x for x in waiting if x.hint or (x.verdict is not None and x.verdict.score)]
        return training.batch_size - len(telling)

    async def _all_judged(self) -> bool:
        return not await self._store.ready(LOCAL_OWNER, limit=1)

    async def _gated(self, before: int) -> bool:
        versions = await self._book.versions(LOCAL_OWNER)
        return len(versions) > before and versions[-1].gate is not None

    async def _converse(self) -> Said:
        prompt = self._person.asked[self._next % len(self._person.asked)]
        self._next += 1
        return await self._client.converse(prompt, self._person.respond)

    async def _look(self, updates: int) -> Measured:
        self._progress(f"measuring after {updates} updates", updates / self._plan.updates)
        prompts = list(self._person.kept) * self._plan.samples
        answers = await asyncio.gather(*(self._client.answer(prompt) for prompt in prompts))
        pairs = list(zip(prompts, answers, strict=True))
        return await asyncio.to_thread(self._reader.measure, self._person, pairs, updates)


async def _until(true: Callable[[], Awaitable[bool]]) -> None:
    """Other processes write what is waited for, so there is nothing but to look again."""
    while True:
        if await true():
            return
        await asyncio.sleep(_POLL_S)


async def _agreement(store: TurnStore, person: Person, said: Sequence[Said]) -> float | None:
    """The judge's verdicts against what the person really thought."""
    truth = {(one.prompt, one.answer): person.score(one.prompt, one.answer) >= 1.0 for one in said}
    same = total = 0
    for owner, session in await store.session_keys(LOCAL_OWNER, limit=100_000):
        for turn in await store.turns(owner, session):
            if turn.verdict is None or not turn.verdict.score or turn.kind != "main":
                continue
            asked = (str(turn.messages[-1].get("content")), str(turn.reply.get("content") or ""))
            if asked in truth:
                total += 1
                same += (turn.verdict.score > 0) == truth[asked]
    return same / total if total else None


def _reader(config: Config, folder: Path) -> Reader:
    return Reader(TorchTrainer(folder, config.training), ChatRenderer.from_folder(folder))


@asynccontextmanager
async def _up(home: Path, sets: Sequence[str]) -> AsyncIterator[str]:
    """`instar up` in processes of its own; gives its address once it serves."""
    command = [sys.executable, "-m", "instar", "up", "--json", "--home", str(home), "--port", "0"]
    for one in sets:
        command += ["--set", one]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    drain: asyncio.Future[bytes] | None = None
    try:
        async for line in child.stdout:
            status = json.loads(line)
            if status.get("state") == "serving":
                # Lines that nobody reads would stop the child once the pipe is full.
                drain = asyncio.ensure_future(child.stdout.read())
                yield str(status["address"])
                break
        else:
            raise EngineError(f"instar up ended with {await child.wait()} before it served")
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGINT)
        await child.wait()
        if drain is not None:
            await drain
