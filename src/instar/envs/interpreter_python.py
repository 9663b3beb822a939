"""A Python in a sandbox that keeps its variables from one run to the next.

It is a co-process of the sandbox's shell: a run is one line written and one line read.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from instar.envs.sandbox import Limits, Sandbox, Spec, open_sandbox
from instar.errors import EnvironmentFailure

HOME = "/opt/python"
"""Where the sandbox sees the Python that instar itself runs under, without its packages."""
REPL = Path(__file__).with_name("interpreter_repl.py").read_text("utf-8")
LOST = "The interpreter was started again; its variables are lost."


class PythonRunner:
    """Runs code in one sandbox. What the code does wrong is told in words, never raised."""

    def __init__(self, sandbox: Sandbox, *, seconds: float, limit: int) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        self._limit = limit
        self._started = False

    async def run(self, code: str) -> str:
        """What the code printed, at most `limit` characters of it."""
        if not self._started:
            await self._start()
        line = shlex.quote(json.dumps({"code": code, "limit": self._limit}))
        ran = await self._sandbox.run(
            f"printf '%s\\n' {line} >&${{PY[1]}} && IFS= read -r answer <&${{PY[0]}} && "
            "printf '%s' \"$answer\"",
            self._seconds,
        )
        try:
            if ran.timed_out or ran.code != 0:
                raise ValueError(ran.note)
            out: str = json.loads(ran.stdout)["out"]
        except (ValueError, KeyError, TypeError):
            await self.forget()
            why = f"Stopped after {self._seconds:g} s." if ran.timed_out else "Killed."
            return f"{why} {LOST}"
        return out

    async def forget(self) -> None:
        """End the interpreter; the next run starts a new one."""
        self._started = False
        await self._sandbox.stop()

    async def _start(self) -> None:
        ran = await self._sandbox.run(
            f"coproc PY {{ exec {HOME}/bin/python3 -I -u -c {shlex.quote(REPL)} 2>/dev/null; }}"
        )
        if ran.code != 0:
            raise EnvironmentFailure(f"the interpreter did not start: {ran.stderr or ran.note}")
        self._started = True


@asynccontextmanager
async def open_python(
    *, backend: str, seconds: float, limit: int, memory_mb: int
) -> AsyncIterator[PythonRunner]:
    """A sandboxed Python, gone when left."""
    limits = Limits(memory_mb=memory_mb, processes=32, disk_mb=16)
    spec = Spec(limits=limits, binds=((Path(sys.base_prefix), HOME),))
    async with open_sandbox(spec, backend) as sandbox:
        yield PythonRunner(sandbox, seconds=seconds, limit=limit)
