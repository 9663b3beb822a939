"""A child process that does an environment's blocking work, under a Python of its own.

Benchmarks pin versions that clash with ours, and their checkers may hang or crash. In a process
of its own none of that reaches the runner: it becomes an EnvironmentFailure.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from instar.errors import ConfigError, EnvironmentFailure

LONGEST = 64 * 2**20
"""Bytes of the longest answer that is read."""
GRACE_S = 2.0
"""How much longer than the worker's own alarm we wait for it."""


class Worker:
    """One child; it is started by the first request, and again after it died."""

    def __init__(self, python: str, script: Path, *, needs: str) -> None:
        self._command = [python, "-P", str(script)]
        self._needs = needs
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def ask(self, do: str, *, seconds: float = 30, **values: Any) -> Any:
        """What the worker answers; EnvironmentFailure where it fails, dies or takes too long."""
        async with self._turn:
            process = self._process or await self._start()
            request = json.dumps({"do": do, "seconds": seconds, **values})
            try:
                answer = await asyncio.wait_for(_exchange(process, request), seconds + GRACE_S)
            except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError) as error:
                said = await self._end()
                raise EnvironmentFailure(
                    f"the worker {self._command[-1]} did not answer {do} within {seconds:g} s or "
                    f"died ({type(error).__name__}); it said: {said or 'nothing'}"
                ) from None
            except asyncio.CancelledError:
                # An answer that nobody waited for must not be taken for the next one's.
                await self._end()
                raise
        if "error" in answer:
            if answer["error"].startswith("ModuleNotFoundError"):
                raise ConfigError(
                    f"{self._command[0]} lacks {self._needs} ({answer['error']}); make a virtual "
                    "environment that has it with `make envs`, and give its Python as the "
                    "environment's option `python`"
                )
            raise EnvironmentFailure(f"the worker could not {do}: {answer['error']}")
        return answer["ok"]

    async def close(self) -> None:
        await self._end()
        if self._folder is not None:
            self._folder.cleanup()

    async def _start(self) -> asyncio.subprocess.Process:
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="instar-worker-")
        folder = self._folder.name
        with (Path(folder) / "stderr").open("wb") as errors:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    env=_environment(folder),
                    cwd=folder,
                    limit=LONGEST,
                    start_new_session=True,
                )
            except OSError as error:
                raise EnvironmentFailure(
                    f"the worker could not be started with {self._command[0]}: {error}"
                ) from None
        return self._process

    async def _end(self) -> str:
        """Kill the child, and give the end of what it wrote to standard error."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            # The pipe is closed by the loop a moment later; it must not outlive the place.
            process._transport.close()  # type: ignore[attr-defined]
        if self._folder is None:
            return ""
        errors = Path(self._folder.name) / "stderr"
        return errors.read_text("utf-8", "replace")[-800:].strip()


_shared: dict[tuple[int, str, Path], tuple[Worker, list[None]]] = {}


@asynccontextmanager
async def share_worker(python: str, script: Path, *, needs: str) -> AsyncIterator[Worker]:
    """One worker for all who share it on this event loop; it ends when the last one leaves.

    For workers that remember nothing from one request to the next but cost much to start.
    """
    key = (id(asyncio.get_running_loop()), python, script)
    worker, users = _shared.setdefault(key, (Worker(python, script, needs=needs), []))
    users.append(None)
    try:
        yield worker
    finally:
        users.pop()
        if not users:
            del _shared[key]
            await worker.close()


async def _exchange(process: asyncio.subprocess.Process, request: str) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request.encode() + b"\n")
    await process.stdin.drain()
    answer: dict[str, Any] = json.loads(await process.stdout.readuntil(b"\n"))
    return answer


def _environment(folder: str) -> dict[str, str]:
    """Nothing of ours but the path: keys and tokens are none of a benchmark's business."""
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
    return {**env, "HOME": folder, "BFCL_PROJECT_ROOT": folder, "OMP_NUM_THREADS": "1"}
