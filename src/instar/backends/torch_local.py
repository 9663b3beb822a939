"""The local engine: PyTorch in a process of its own, behind the Engine protocol.

In come requests as token ids; out stream sampled tokens with their log-probs. The process is
watched: when it dies, the replies under way fail, and another is started with the same
versions while new requests wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import cast

from instar.backends import torch_wire as wire
from instar.backends.torch_child import Answer, Child
from instar.backends.torch_request import check, to_message
from instar.config import TorchLocalEngine
from instar.errors import EngineError, InstarError, ModelError, RequestError
from instar.protocols import Engine
from instar.types import BASE_VERSION, EngineInfo, Finish, Piece, Request

log = logging.getLogger(__name__)

BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before the first, second, ... attempt to start a dead worker again."""


class _Resident:
    """A version that can be asked for, and the replies that use it now."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.replies = 0
        self.leaving = False
        self.unused = asyncio.Event()
        self.unused.set()

    def enter(self) -> None:
        self.replies += 1
        self.unused.clear()

    def exit(self) -> None:
        self.replies -= 1
        if not self.replies:
            self.unused.set()


@asynccontextmanager
async def open_engine(config: TorchLocalEngine, *, model: Path, name: str) -> AsyncIterator[Engine]:
    """An engine over the model in this folder; its process ends with the context."""
    settings = _settings(config, model)
    child, ready = await Child.start(settings)
    engine = TorchEngine(config, settings, name=name, child=child, ready=ready)
    watcher = asyncio.create_task(engine._watch())
    try:
        yield engine
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
        await engine._close()


def _settings(config: TorchLocalEngine, model: Path) -> wire.Start:
    return wire.Start(
        model=str(model.resolve()),
        device=config.device,
        dtype=config.dtype,
        threads=config.threads or len(os.sched_getaffinity(0)),
        context=config.context,
        max_running=config.max_running,
        prefill_chunk=config.prefill_chunk,
        cache_bytes=int(config.cache_gb * 1e9),
    )


class TorchEngine:
    """The Engine protocol over a watched worker process."""

    def __init__(
        self,
        config: TorchLocalEngine,
        settings: wire.Start,
        *,
        name: str,
        child: Child,
        ready: wire.Ready,
    ) -> None:
        self._config, self._settings, self._name = config, settings, name
        self._ready = ready
        self._child = child
        self._up: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._up.set_result(child)
        self._versions = {BASE_VERSION: _Resident(None)}
        self._live = BASE_VERSION
        self._changes = asyncio.Lock()
        self._drawn_before = 0
        self._restarts = 0

    @property
    def info(self) -> EngineInfo:
        names = [name for name, one in self._versions.items() if not one.leaving]
        return EngineInfo(
            model=self._name,
            context=self._ready.context,
            live=self._live,
            versions=tuple(names),
            device=self._ready.device,
            # Dead some moments before it is replaced.
            ready=self._up.done() and self._child.dead is None,
        )

    @property
    def pid(self) -> int:
        """The worker process of now."""
        return self._child.pid

    @property
    def path(self) -> str:
        """`lean` or `transformers`: which code runs the model."""
        return self._ready.path

    def stats(self) -> dict[str, float]:
        """How busy the engine is as of its last step, and what it has done since it was opened."""
        latest = self._child.latest
        return {
            "running": latest.running,
            "waiting": latest.waiting,
            "tokens": self._drawn_before + self._child.drawn,
            "cache_bytes": latest.cache_bytes,
            "restarts": self._restarts,
        }

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        check(request, context=self._ready.context, vocab=self._ready.vocab)
        version = request.version or self._live
        resident = self._resident(version)
        resident.enter()
        try:
            child = await asyncio.shield(self._up)
            # Closed here and not by the garbage collector: a client that hangs up frees its slot.
            async with aclosing(_reply(child, request, version)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            resident.exit()

    async def load(self, version: str, folder: Path) -> None:
        folder = _absolute(folder)
        async with self._changes:
            known = self._versions.get(version)
            if known is not None and known.folder == folder:
                return
            if known is not None:
                raise RequestError(
                    f"Version {version!r} is already resident, from {known.folder or 'the model'}."
                    " A version never changes; load the other weights under another name.",
                    status=409,
                )
            self._check_room()
            child = await asyncio.shield(self._up)
            await child.call(wire.Load, version=version, folder=str(folder))
            self._versions[version] = _Resident(folder)

    async def activate(self, version: str) -> None:
        self._resident(version)
        self._live = version

    async def drop(self, version: str) -> None:
        resident = self._resident(version)
        if version in (self._live, BASE_VERSION):
            why = "live" if version == self._live else "what the adapters are merged into"
            raise RequestError(f"Version {version!r} is {why} and cannot be dropped.", status=409)
        resident.leaving = True
        try:
            await resident.unused.wait()
            async with self._changes:
                child = await asyncio.shield(self._up)
                await child.call(wire.Drop, version=version)
                self._versions.pop(version, None)
        except BaseException:
            resident.leaving = False
            raise

    def _resident(self, version: str) -> _Resident:
        resident = self._versions.get(version)
        if resident is None or resident.leaving:
            names = ", ".join(self.info.versions)
            raise RequestError(
                f"Version {version!r} is not resident. Resident now: {names}.",
                status=404,
                param="model",
                code="model_not_found",
            )
        return resident

    def _check_room(self) -> None:
        adapters = [name for name in self._versions if name != BASE_VERSION]
        if len(adapters) < self._config.max_versions:
            return
        spare = [name for name in adapters if name != self._live]
        what = f"drop one of {', '.join(spare)}" if spare else f"drop {self._live} once not live"
        raise RequestError(
            f"{len(adapters)} versions are resident, which is all that max_versions allows: "
            f"{what}, or raise max_versions.",
            status=409,
        )

    async def _watch(self) -> None:
        """Start the worker again whenever it has died."""
        while True:
            await self._child.gone()
            self._up = asyncio.get_running_loop().create_future()
            log.warning("%s Starting it again.", self._child.dead)
            await self._child.close()
            self._drawn_before += self._child.drawn
            self._child.drawn = 0
            await self._revive()

    async def _revive(self) -> None:
        for attempt in range(10**9):
            await asyncio.sleep(BACK_OFF_S[min(attempt, len(BACK_OFF_S) - 1)])
            try:
                child = await self._start_again()
            except InstarError as error:
                log.error("The engine's worker could not be started again: %s", error)
                failed = self._up
                self._up = asyncio.get_running_loop().create_future()
                failed.set_exception(
                    EngineError(f"The engine died and could not be started again: {error}")
                )
                failed.exception()  # it may be that nobody was waiting
                continue
            self._restarts += 1
            self._up.set_result(child)
            return

    async def _start_again(self) -> Child:
        child, self._ready = await Child.start(self._settings)
        for version, resident in list(self._versions.items()):
            if resident.folder is None:
                continue
            try:
                await child.call(wire.Load, version=version, folder=str(resident.folder))
            except ModelError as error:
                # Its files were damaged since; the other versions must not go with it.
                log.error("Version %s is not resident any more: %s", version, error)
                del self._versions[version]
                self._live = BASE_VERSION if version == self._live else self._live
        self._child = child
        return child

    async def _close(self) -> None:
        await self._child.close()
        if not self._up.done():
            self._up.set_exception(EngineError("The engine was closed."))
            self._up.exception()


async def _reply(child: Child, request: Request, version: str) -> AsyncGenerator[Piece, None]:
    number, box = child.open_reply()
    finish: str | None = None
    try:
        child.send(to_message(number, request, version))
        while finish is None:
            tokens = await (_some(box) if request.stream else _all(box))
            finish = tokens[-1].finish
            yield Piece(
                ids=tuple(token.token for token in tokens),
                logprobs=tuple(token.logprob for token in tokens),
                version=version,
                top=tuple(token.top for token in tokens) if tokens[0].top else (),
                finish=cast("Finish | None", finish),
                cached=tokens[0].cached,
            )
    finally:
        child.close_reply(number, finish)


async def _some(box: asyncio.Queue[Answer]) -> list[wire.Token]:
    """The tokens that are there, and at least one."""
    tokens = [_token(await box.get())]
    while not box.empty():
        tokens.append(_token(box.get_nowait()))
    return tokens


async def _all(box: asyncio.Queue[Answer]) -> list[wire.Token]:
    tokens = [_token(await box.get())]
    while tokens[-1].finish is None:
        tokens.append(_token(await box.get()))
    return tokens


def _token(answer: Answer) -> wire.Token:
    if isinstance(answer, EngineError):
        raise answer
    return answer


def _absolute(folder: Path) -> Path:
    """By name alone: the disk may be slow, and the worker reads it anyway."""
    return Path.cwd() / folder
