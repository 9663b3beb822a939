"""A vLLM server of our own: started, watched, started again when it dies, ended with us."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import instar
from instar.backends import vllm_plugin, wire
from instar.backends.vllm_wire import (
    REFUSED,
    Abort,
    Ask,
    Done,
    Drop,
    Load,
    Part,
    Ready,
    Step,
)
from instar.config import VllmEngine
from instar.errors import EngineError, ModelError, RequestError

BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before a restart, by how many starts failed or died young in a row."""

STEADY_S = 60.0
"""A server that lived this long died of something new: the pauses start over."""

SOCKET_FOLDER = 64
"""A longer folder does not fit, with the name vLLM adds, into a Unix socket's address."""

log = logging.getLogger("instar.vllm")

_decode = msgspec.msgpack.Decoder(Ready | Step | Done).decode


@dataclass(slots=True)
class _Stream:
    """The parts of one reply that nobody has read yet."""

    parts: list[Part] = field(default_factory=list)
    waiter: asyncio.Future[None] | None = None
    lost: bool = False

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self) -> list[Part]:
        """All parts that are there, at least one; an empty list if the server died."""
        while not self.parts and not self.lost:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        parts, self.parts = self.parts, []
        return parts


class Process:
    """The link to a started server. Use `open` and, in the end, `close`."""

    def __init__(self, config: VllmEngine, *, model: Path, folder: Path) -> None:
        self._config = config
        self._model = model
        self._folder = folder
        self._numbers = itertools.count(1)
        self._streams: dict[int, _Stream] = {}
        self._calls: dict[int, asyncio.Future[str | None]] = {}
        self._adapters: dict[int, Load] = {}
        self._child: wire.Child | None = None
        self._serving = _future()
        """Gives the channel while the server is up, or why it could not be started."""
        self._watcher: asyncio.Task[None] | None = None
        self._failure = ""
        self.ready = Ready(context=0, device="", release="")
        self.on_lost: Callable[[int], None] = lambda number: None
        """Told of an adapter that a restarted server could not load again."""
        self.restarts = 0

    @classmethod
    async def open(cls, config: VllmEngine, *, model: Path) -> Process:
        folder = Path(tempfile.mkdtemp(prefix="instar-vllm-"))
        link = cls(config, model=model, folder=folder)
        try:
            write_site(folder / "site")
            listening = await link._start()
            link._watcher = asyncio.create_task(link._watch(listening))
        except BaseException:
            await link.close()
            raise
        return link

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._child is not None:
            await self._child.stop()
            self._child = None
        self._lose("instar is stopping")
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def up(self) -> bool:
        """Whether it serves now; a request waits for one that is being started again."""
        return self._serving.done() and self._serving.exception() is None

    @property
    def pid(self) -> int:
        return self._child.process.pid if self._child is not None else 0

    async def ask(self, ask: Ask) -> AsyncGenerator[Part]:
        """Parts of a reply; closing the iterator aborts it."""
        channel = await asyncio.shield(self._serving)
        number = next(self._numbers)
        stream = self._streams[number] = _Stream()
        channel.send(msgspec.structs.replace(ask, id=number))
        finished = False
        try:
            while not finished:
                parts = await stream.take()
                if not parts:
                    raise EngineError(f"The vLLM server died during a reply. {self._failure}")
                for part in parts:
                    if part.error is not None and part.finish == REFUSED:
                        raise RequestError(f"vLLM refused the request: {part.error}")
                    if part.error is not None:
                        raise EngineError(f"vLLM failed: {part.error}")
                    finished = part.finish is not None
                    yield part
        finally:
            del self._streams[number]
            if not finished and not stream.lost:
                channel.send(Abort(number))

    async def load(self, lora: int, *, name: str, folder: Path) -> None:
        """Make an adapter resident; `folder` is absolute."""
        call = Load(call=next(self._numbers), lora=lora, name=name, folder=str(folder))
        if error := await self._call(await asyncio.shield(self._serving), call):
            raise ModelError(f"vLLM cannot load the adapter in {folder}: {error}")
        self._adapters[lora] = call

    async def drop(self, lora: int, *, name: str) -> None:
        # Forgotten first: were the server to die now, a restart would not load it again.
        del self._adapters[lora]
        call = Drop(call=next(self._numbers), lora=lora)
        if error := await self._call(await asyncio.shield(self._serving), call):
            raise EngineError(f"vLLM cannot drop the adapter {name}: {error}")

    async def _call(self, channel: wire.Channel, call: Load | Drop) -> str | None:
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._calls[call.call] = answer
        try:
            channel.send(call)
            return await answer
        finally:
            del self._calls[call.call]

    async def _start(self) -> asyncio.Task[None]:
        """Start the server and wait until it serves; returns the task that reads from it."""
        config = self._config
        argv = [config.python or sys.executable, "-m", "instar.backends.vllm_server"]
        argv += _arguments(config, self._model)
        child = await wire.spawn(
            argv, env=_environment(config, self._folder), log=self._folder / "vllm.log"
        )
        self._child = child
        started: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        listening = asyncio.create_task(self._listen(child, started))
        try:
            async with asyncio.timeout(config.start_timeout_s):
                await _first(started, listening)
        except TimeoutError:
            what = f"was not ready after {config.start_timeout_s:g} s"
        else:
            what = "ended before it was ready"
        if not started.done():
            status = await child.stop()
            await listening
            raise EngineError(
                f"The vLLM server {what} (exit status {status}). Its command was\n  "
                f"{' '.join(argv)}\nand its last words were\n{child.tail()}"
            )
        self.ready = started.result()
        await self._load_again(child.channel)
        self._serving.set_result(child.channel)
        return listening

    async def _load_again(self, channel: wire.Channel) -> None:
        """Give a restarted server its adapters; one that was damaged meanwhile is left out."""
        for number, load in list(self._adapters.items()):
            if error := await self._call(channel, load):
                log.error("vLLM cannot load %s again, from %s: %s", load.name, load.folder, error)
                del self._adapters[number]
                self.on_lost(number)

    async def _listen(self, child: wire.Child, started: asyncio.Future[Ready]) -> None:
        """Hand out what the server says until it is gone."""
        reading = asyncio.create_task(self._read(child, started))
        # vLLM forks, and a fork keeps the channel open after the server's death.
        dying = asyncio.create_task(child.process.wait())
        try:
            await _first(reading, dying)
        finally:
            reading.cancel()
            dying.cancel()
            await asyncio.gather(reading, dying, return_exceptions=True)
            for answer in self._calls.values():
                if not answer.done():
                    answer.set_exception(EngineError("The vLLM server died."))

    async def _read(self, child: wire.Child, started: asyncio.Future[Ready]) -> None:
        async for body in child.channel:
            match _decode(body):
                case Step(parts=parts):
                    for part in parts:
                        if (stream := self._streams.get(part.id)) is not None:
                            stream.parts.append(part)
                            stream.wake()
                case Done(call=number, error=error):
                    if (answer := self._calls.get(number)) is not None and not answer.done():
                        answer.set_result(error)
                case Ready() as ready:
                    started.set_result(ready)

    async def _watch(self, listening: asyncio.Task[None]) -> None:
        """Restart the server whenever it dies, with growing pauses while that does not help."""
        failures = 0
        while True:
            born = time.monotonic()
            await listening
            if self._child is not None:
                status = await self._child.stop()
                self._lose(f"Exit status {status}; its last words:\n{self._child.tail()}")
            failures = 1 if time.monotonic() - born > STEADY_S else failures + 1
            while True:
                await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1])
                self.restarts += 1
                try:
                    listening = await self._start()
                    break
                except (EngineError, OSError) as error:
                    failures += 1
                    self._fail(str(error))
                    if self._child is not None:
                        await self._child.stop()

    def _fail(self, why: str) -> None:
        """Tell those who wait for the server, and let the next ones wait for the next start."""
        if not self._serving.done():
            self._serving.set_exception(EngineError(f"The vLLM server is down. {why}"))
            self._serving.exception()  # Nobody may be waiting: that is no error of ours.
        self._serving = _future()
        self._failure = why

    def _lose(self, why: str) -> None:
        """The server is gone: end what waits for it."""
        self._fail(why)
        for stream in self._streams.values():
            stream.lost = True
            stream.wake()


def _future() -> asyncio.Future[wire.Channel]:
    return asyncio.get_running_loop().create_future()


async def _first(*things: asyncio.Future[Any]) -> None:
    await asyncio.wait(things, return_when=asyncio.FIRST_COMPLETED)


def write_site(site: Path) -> None:
    """A folder for PYTHONPATH with instar and its vLLM plugin, and nothing else of ours.

    The server's Python may be another one: it must find this very instar, installed there or
    not, but none of the packages that ours was installed with.
    """
    site.mkdir()
    (site / "instar").symlink_to(Path(instar.__file__).parent, target_is_directory=True)
    info = site / "instar_vllm_plugin-0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: instar-vllm-plugin\nVersion: 0\n"
    )
    info.joinpath("entry_points.txt").write_text(
        f"[vllm.general_plugins]\ninstar = {vllm_plugin.__name__}:register\n"
    )


def _environment(config: VllmEngine, folder: Path) -> dict[str, str]:
    env = {
        # FlashInfer's sampler is compiled on first use, by tools that few machines have.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        **os.environ,
        **config.env,
        vllm_plugin.SWITCH: vllm_plugin.TOGETHER,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if len(str(folder)) < SOCKET_FOLDER:
        # Sockets of a killed server go with our folder.
        env["VLLM_RPC_BASE_PATH"] = str(folder)
    paths = [str(folder / "site"), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if "VLLM_PLUGINS" in env:  # A list of all that may be loaded.
        env["VLLM_PLUGINS"] += ",instar"
    return env


def _arguments(config: VllmEngine, model: Path) -> Sequence[str]:
    context = [] if config.context is None else ["--max-model-len", str(config.context)]
    return [
        *("--model", str(model)),
        *("--dtype", config.dtype),
        *context,
        *("--gpu-memory-utilization", str(config.gpu_memory)),
        *("--max-num-seqs", str(config.max_running)),
        "--enable-lora",
        *("--max-loras", str(config.max_versions)),
        *("--max-cpu-loras", str(config.max_versions)),
        *("--max-lora-rank", str(config.max_lora_rank)),
        "--enable-prefix-caching",
        "--disable-log-stats",
        *config.args,
    ]
