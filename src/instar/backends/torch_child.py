"""The engine's side of its worker process: starting it, talking to it, noticing its death."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
from typing import IO

from instar.backends import torch_wire as wire
from instar.errors import EngineError, ModelError

CLOSE_S = 3.0
"""How long a worker may take to end by itself."""

_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
"""Keys and values come and go in blocks of many megabytes. Left to itself, glibc soon takes such
blocks from its heap, which it cannot give back while anything above is in use: a pool of 0.5 GB
stood at 0.9. Above the threshold a block is the system's and goes back when freed."""

Answer = wire.Token | EngineError


class Child:
    """One worker process. It is started once; a dead one is replaced by another Child."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stderr: IO[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process, self._stderr = process, stderr
        self._reader, self._writer = reader, writer
        self._ids = itertools.count()
        self._replies: dict[int, asyncio.Queue[Answer]] = {}
        self._calls: dict[int, asyncio.Future[str | None]] = {}
        self._listener: asyncio.Task[None] | None = None
        self.dead: EngineError | None = None
        self.latest = wire.Stepped(tokens=[], running=0, waiting=0, cache_bytes=0)
        self.drawn = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, settings: wire.Start) -> tuple[Child, wire.Ready]:
        """A worker with its model loaded; ModelError says why it could not be."""
        child = await cls._spawn(settings)
        try:
            child._write(settings)
            answer = await wire.read(child._reader)
            if isinstance(answer, wire.Ready):
                child._listener = asyncio.create_task(child._listen())
                return child, answer
            if isinstance(answer, wire.Refused):
                raise ModelError(answer.reason)
            await child._reap()
            raise EngineError(f"The worker ended while it loaded the model.{child._last_words()}")
        except BaseException:
            await child.close()
            raise

    @classmethod
    async def _spawn(cls, settings: wire.Start) -> Child:
        ours, theirs = socket.socketpair()
        # Closed by `close`; a file and not a pipe, so that nothing need read it meanwhile.
        stderr = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(settings.threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            **_MALLOC,
        }
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "instar.backends.torch_worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, stderr, reader, writer)

    async def call(self, make: type[wire.Load] | type[wire.Drop], **fields: str) -> None:
        """Ask for something and wait for it; ModelError says why it was refused."""
        if self.dead:
            raise self.dead
        call = next(self._ids)
        done = self._calls[call] = asyncio.get_running_loop().create_future()
        try:
            self._write(make(call=call, **fields))
            error = await done
        finally:
            del self._calls[call]
        if error is not None:
            raise ModelError(error)

    def open_reply(self) -> tuple[int, asyncio.Queue[Answer]]:
        """A number and a mailbox for a new reply."""
        if self.dead:
            raise self.dead
        reply = next(self._ids)
        box = self._replies[reply] = asyncio.Queue()
        return reply, box

    def close_reply(self, reply: int, finish: str | None) -> None:
        """Forget a reply; one that is not finished the worker stops drawing."""
        del self._replies[reply]
        if finish is None and not self.dead:
            self._write(wire.Cancel(id=reply))

    def send(self, message: wire.Generate) -> None:
        self._write(message)

    async def gone(self) -> None:
        """Return once the worker is dead and everyone who waits for it knows."""
        if self._listener is not None:
            await asyncio.shield(self._listener)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        await self._reap()
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
        self._fail("The engine was closed.")
        self._stderr.close()

    def _write(self, message: wire.ToWorker) -> None:
        self._writer.write(wire.pack(message))

    async def _listen(self) -> None:
        while (message := await wire.read(self._reader)) is not None:
            self._take(message)
        await self._reap()
        status = self._process.returncode
        self._fail(f"The worker process ended (status {status}).{self._last_words()}")

    def _take(self, message: wire.FromWorker) -> None:
        if isinstance(message, wire.Stepped):
            self.latest = message
            self.drawn += len(message.tokens)
            for token in message.tokens:
                self._deliver(token.id, token)
        elif isinstance(message, wire.Failed):
            self._deliver(message.id, EngineError(message.reason))
        elif isinstance(message, wire.Done):
            waiting = self._calls.get(message.call)
            if waiting is not None and not waiting.done():
                waiting.set_result(message.error)

    def _deliver(self, reply: int, answer: Answer) -> None:
        # A reply that was just cancelled has no mailbox any more.
        if (box := self._replies.get(reply)) is not None:
            box.put_nowait(answer)

    def _fail(self, reason: str) -> None:
        self.dead = self.dead or EngineError(reason)
        for box in self._replies.values():
            box.put_nowait(EngineError(reason))
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(EngineError(reason))

    async def _reap(self) -> None:
        """Wait for the process, in a thread since asyncio did not start it."""
        try:
            await asyncio.to_thread(self._process.wait, CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _last_words(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return " It last said: " + " / ".join(lines[-3:]) if lines else ""
