"""A process that runs foreign code for an environment and answers in JSON lines.

For code that blocks, or that needs packages of its own: it runs under whichever Python has them.
A question that is not answered in time ends the process; whoever still waits for it is told so,
and the next question starts a new one. It ends with its parent, since its input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from instar.errors import EnvironmentFailure

LOOP = Path(__file__).with_name("worker_loop.py")
_LIMIT = 1 << 28
"""Longest line, in bytes."""
_LAST_WORDS = 20


class Worker:
    """One process; questions may be asked at once, and are answered in order."""

    def __init__(self, argv: Sequence[str], *, timeout_s: float = 60.0, name: str = "") -> None:
        self._argv = list(argv)
        self._timeout_s = timeout_s
        self._name = name or self._argv[0]
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._numbers = itertools.count()
        self._starting = asyncio.Lock()
        self._said: deque[str] = deque(maxlen=_LAST_WORDS)
        self.generation = 0
        """How often it was started: what it held before is gone."""

    async def ask(self, do: str, **given: Any) -> Any:
        """The answer to a question. Raises EnvironmentFailure where there is none in time."""
        process = await self._running()
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        line = json.dumps({"id": number, "do": do, **given}).encode() + b"\n"
        try:
            assert process.stdin is not None
            process.stdin.write(line)
            async with asyncio.timeout(self._timeout_s):
                await process.stdin.drain()
                return await answer
        except TimeoutError:
            await self.close()
            raise EnvironmentFailure(
                f"{self._name} did not answer {do} within {self._timeout_s:g} s and was ended"
            ) from None
        except (BrokenPipeError, ConnectionResetError):
            raise EnvironmentFailure(f"{self._name} is gone: {self._last_words()}") from None
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        self._fail("it was ended")

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return self._process
            pipe = asyncio.subprocess.PIPE
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._argv, stdin=pipe, stdout=pipe, stderr=pipe, limit=_LIMIT
                )
            except OSError as error:
                raise EnvironmentFailure(f"{self._name} cannot be started: {error}") from error
            self.generation += 1
            self._said.clear()
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(self._read(self._process)),
                loop.create_task(self._listen(self._process)),
            ]
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            try:
                found = json.loads(line)
                answer = self._waiting.get(found["id"])
            except (ValueError, KeyError, TypeError):
                # Foreign code prints; that is no answer.
                self._said.append(line.decode("utf-8", "replace").rstrip())
                continue
            if answer is None or answer.done():
                continue
            if "error" in found:
                answer.set_exception(EnvironmentFailure(f"{self._name}: {found['error']}"))
            else:
                answer.set_result(found.get("ok"))
        await process.wait()
        self._fail(f"it ended with {process.returncode}: {self._last_words()}")

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self._said.append(line.decode("utf-8", "replace").rstrip())

    def _fail(self, why: str) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(EnvironmentFailure(f"{self._name} is gone: {why}"))

    def _last_words(self) -> str:
        return " | ".join(list(self._said)[-3:])[-500:] or "it said nothing"
