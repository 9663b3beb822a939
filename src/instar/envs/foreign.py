"""Workers for benchmarks that `make install-toolcall` puts into a Python of their own.

Their packages pin versions that clash with ours, and their checkers may hang or crash. In a
process of its own none of that reaches the runner.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from instar.envs.worker import LOOP, Worker
from instar.errors import ConfigError, EnvironmentFailure

VENV = Path(".venv-toolcall/bin/python")
"""Where `make install-toolcall` puts the Python that has the packages."""
GRACE_S = 2.0
"""How much longer than the worker's own alarm we wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """Which script, for which package, under which Python."""

    script: Path
    package: str
    """As it is imported."""
    python: str | None
    timeout_s: float


class ForeignWorker:
    """A worker that says which package is missing, where one is."""

    def __init__(self, foreign: Foreign) -> None:
        self._foreign = foreign
        self._python = find_python(foreign)
        self._folder = tempfile.TemporaryDirectory(prefix="instar-worker-")
        # Keys and tokens of ours are none of a benchmark's business, nor (-I) are our packages.
        start = ("env", "-i", f"HOME={self._folder.name}", self._python, "-I")
        self._worker = Worker(
            [*start, str(LOOP), str(foreign.script), str(foreign.timeout_s), self._folder.name],
            timeout_s=foreign.timeout_s + GRACE_S,
            name=f"the worker with {foreign.package}",
        )

    async def ask(self, do: str, **given: Any) -> Any:
        """What the worker answers; EnvironmentFailure where it fails, dies or takes too long."""
        try:
            return await self._worker.ask(do, **given)
        except EnvironmentFailure as error:
            if "ModuleNotFoundError" not in str(error):
                raise
            raise ConfigError(f"{self._python} cannot run it ({error}); {_how()}") from None

    @property
    def generation(self) -> int:
        """How often it was started: what it held before is gone."""
        return self._worker.generation

    async def close(self) -> None:
        await self._worker.close()
        self._folder.cleanup()


def find_python(foreign: Foreign) -> str:
    """The Python that was named, or this one if it will do, or that of `make install-toolcall`."""
    if foreign.python:
        return str(Path(foreign.python).expanduser())
    if importlib.util.find_spec(foreign.package) is not None:
        return sys.executable
    if VENV.exists():
        return str(VENV.absolute())
    raise ConfigError(f"the package {foreign.package} is not installed here; {_how()}")


def _how() -> str:
    return "run `make install-toolcall`, or name a Python that has it with the option `python`"


_shared: dict[tuple[int, Foreign], tuple[ForeignWorker, list[None]]] = {}


@asynccontextmanager
async def open_worker(foreign: Foreign) -> AsyncIterator[ForeignWorker]:
    """A worker for who opens it alone."""
    worker = ForeignWorker(foreign)
    try:
        yield worker
    finally:
        await worker.close()


@asynccontextmanager
async def share_worker(foreign: Foreign) -> AsyncIterator[ForeignWorker]:
    """One worker for all who share it on this event loop; it ends when the last one leaves.

    For workers that remember nothing from one question to the next but cost much to start.
    """
    key = (id(asyncio.get_running_loop()), foreign)
    if key not in _shared:
        _shared[key] = (ForeignWorker(foreign), [])
    worker, users = _shared[key]
    users.append(None)
    try:
        yield worker
    finally:
        users.pop()
        if not users:
            del _shared[key]
            await worker.close()
