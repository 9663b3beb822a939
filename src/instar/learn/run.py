"""The background process: trains, and judges beside it, until it is told to stop."""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from instar.batch.render import ChatRenderer
from instar.config import Config
from instar.errors import InstarError, StoreError
from instar.learn.judging import open_worker, pause
from instar.learn.learner import Learner, Outcome
from instar.learn.measure import anchor, measured_and_others
from instar.learn.troubles import Troubles
from instar.loop import model_folder, store_url
from instar.publish.gate import retention_set
from instar.publish.versions import VersionFiles
from instar.record.attempts import AttemptBook
from instar.record.controls import is_paused
from instar.record.forget import finish_rebuild, pending_rebuilds
from instar.record.judged import JudgedTurns
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.train.step import TorchTrainer

log = logging.getLogger("instar.learn")

_IDLE_S = 1.0
_LOCKED_S = 1.0


async def learn(
    config: Config,
    home: Path,
    *,
    stop: asyncio.Event,
    judging: bool = True,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> None:
    """Train, and judge beside it, until `stop`."""
    async with open_store(store_url(config, home)) as store:
        folder = await asyncio.to_thread(model_folder, config, home, log.info)
        if folder is None:
            raise InstarError("the fake engine has no model to learn; serve a real one")
        jobs = [_train_alone(config, home, folder, store, stop, on_outcome)]
        if judging:
            worker = await open_worker(config, home, store)
            jobs.append(worker.run(stop))
        await asyncio.gather(*jobs)


async def _train_alone(
    config: Config,
    home: Path,
    folder: Path,
    store: TurnStore,
    stop: asyncio.Event,
    on_outcome: Callable[[Outcome], None],
) -> None:
    """Train once no other process does: one writes the versions of a home."""
    lock = home / "training" / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock.open("ab") as file:
        while not _taken(file):
            if stop.is_set():
                return
            log.warning("another process trains in %s; this one waits until it ends", home)
            await pause(stop, _LOCKED_S)
        await _clean_up(home, store)
        learner = await asyncio.to_thread(make_learner, config, home, folder, store)
        await _train(learner, store, stop, on_outcome)


def _taken(file: IO[bytes]) -> bool:
    """Whether the lock is ours now; the system frees it when we end, however we do."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_learner(config: Config, home: Path, folder: Path, store: TurnStore) -> Learner:
    """Load the model to train; takes seconds."""
    training = config.training
    measured, others = measured_and_others(retention_set(), training.gate_references)
    renderer = ChatRenderer.from_folder(
        folder, tokenizer=config.model.tokenizer_path, tool_parser=config.gateway.tool_parser
    )
    anchors = [anchor(one, renderer) for one in others]
    return Learner(
        TorchTrainer(folder, training, dtype=training.dtype, anchors=anchors),
        training=training,
        renderer=renderer,
        book=VersionBook(store),
        judged=JudgedTurns(store),
        files=VersionFiles.of_home(home),
        turns=store.turns,
        attempts=AttemptBook(store),
        rollout=config.rollout,
        references=measured,
        folder=home / "training",
        max_tokens=training.max_tokens,
    )


async def _clean_up(home: Path, store: TurnStore) -> None:
    """Remove what an earlier process left unfinished."""
    kept = [(one.owner, one.name) for one in await VersionBook(store).versions() if not one.pruned]
    await asyncio.to_thread(VersionFiles.of_home(home).sweep, kept)


async def _train(
    learner: Learner,
    store: TurnStore,
    stop: asyncio.Event,
    on_outcome: Callable[[Outcome], None],
) -> None:
    """Owners take turns; what fails for one of them keeps no other waiting."""
    begun: set[str] = set()
    troubles = Troubles()
    while not stop.is_set():
        busy = False
        for owner in await _owners(store, troubles):
            if stop.is_set() or troubles.waits(owner):
                continue
            try:
                found = await _step(learner, store, owner, begun)
            except Exception as error:
                troubles.note(owner, error)
                continue
            troubles.is_over(owner)
            busy = busy or bool(found)
            for outcome in found:
                on_outcome(outcome)
        if not busy:
            await pause(stop, _IDLE_S)


async def _owners(store: TurnStore, troubles: Troubles) -> list[str]:
    try:
        return await store.owners()
    except StoreError as error:
        troubles.note("", error)
        return []


async def _step(learner: Learner, store: TurnStore, owner: str, begun: set[str]) -> list[Outcome]:
    if await is_paused(store, owner):
        # What was trained until then is finished first, once learning goes on.
        begun.discard(owner)
        return []
    first = owner not in begun
    found = await (learner.finish(owner) if first else _next(learner, store, owner))
    begun.add(owner)
    if _held_back(found):
        begun.discard(owner)
    return found


def _held_back(outcomes: Sequence[Outcome]) -> bool:
    return any(one.held_back for one in outcomes)


async def _next(learner: Learner, store: TurnStore, owner: str) -> list[Outcome]:
    """What a person asked to forget comes first, then what there is to learn."""
    for rebuild in await pending_rebuilds(store, owner):
        outcomes: list[Outcome] = []
        for names in rebuild.batches:
            batch = [turn for name in names if (turn := await store.turn(owner, name)) is not None]
            outcomes += await learner.relearn(owner, [batch])
            if _held_back(outcomes) or await is_paused(store, owner):
                return outcomes  # it goes on where it was
        await finish_rebuild(store, rebuild, await VersionBook(store).live_name(owner))
        return outcomes
    outcome = await learner.learn(owner)
    return [] if outcome is None else [outcome]
