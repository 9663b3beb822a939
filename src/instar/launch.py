"""Starts instar in processes of its own, for what talks to it as a client."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from instar.errors import EngineError

_MAIN = """
from instar.learn.background import end_with_parent
end_with_parent(in_order=True)
from instar.cli import main
main()
"""


@asynccontextmanager
async def started(
    home: Path,
    sets: Sequence[str],
    *,
    command: Literal["up", "serve"] = "up",
    file: Path | None = None,
) -> AsyncIterator[str]:
    """`instar up`, or without learning `instar serve`; gives its address once it serves."""
    argv = [sys.executable, "-c", _MAIN, command, "--json", "--home", str(home), "--port", "0"]
    argv += ["--log-level", "warning"]
    argv += ["--config", str(file)] if file is not None else []
    for one in sets:
        argv += ["--set", one]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
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
            raise EngineError(f"instar {command} ended with {await child.wait()} before it served")
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGINT)
        await child.wait()
        if drain is not None:
            await drain
