"""The background process: trains, and judges beside it, until it is told to stop."""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Callable
from pathlib import Path
from typing import IO

from instar.batch.render import ChatRenderer
from instar.config import Config
from instar.errors import InstarError
from instar.learn.judging import open_worker, pause
from instar.learn.learner import Learner, Outcome
from instar.loop import model_folder, store_url
from instar.publish.gate import retention_set
from instar.publish.versions import VersionFiles
from instar.record.attempts import AttemptBook
from instar.record.controls import is_paused
from instar.record.forget import finish_rebuild, pending_rebuilds
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.train.step import TorchTrainer

log = logging.getLogger("instar.learn")

_IDLE_S = 1.0
_FAILED_S = 10.0
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
    every = retention_set()
    wanted = training.gate_references
    step = max(1, len(every) // wanted) if wanted else 1
    return Learner(
        TorchTrainer(folder, training, dtype=training.dtype),
        training=training,
        renderer=ChatRenderer.from_folder(
            folder, tokenizer=config.model.tokenizer_path, tool_parser=config.gateway.tool_parser
        ),
        book=VersionBook(store),
        files=VersionFiles.of_home(home),
        turns=store.turns,
        attempts=AttemptBook(store),
        rollout=config.rollout,
        references=every[::step][:wanted],
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
    begun: set[str] = set()
    while not stop.is_set():
        busy = False
        try:
            for owner in await store.owners():
                if await is_paused(store, owner):
                    continue
                if owner not in begun:
                    found = await learner.finish(owner)
                    begun.add(owner)
                else:
                    found = await _next(learner, store, owner)
                busy = busy or bool(found)
                for outcome in found:
                    on_outcome(outcome)
        except InstarError as error:
            log.error("training has to wait: %s", error)
            await pause(stop, _FAILED_S)
        if not busy:
            await pause(stop, _IDLE_S)


async def _next(learner: Learner, store: TurnStore, owner: str) -> list[Outcome]:
    """What a person asked to forget comes first, then what there is to learn."""
    for rebuild in await pending_rebuilds(store, owner):
        found = [
            [turn for name in batch if (turn := await store.turn(owner, name)) is not None]
            for batch in rebuild.batches
        ]
        outcomes = await learner.relearn(owner, found)
        await finish_rebuild(store, rebuild, await VersionBook(store).live_name(owner))
        return outcomes
    outcome = await learner.learn(owner)
    return [] if outcome is None else [outcome]
