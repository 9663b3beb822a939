"""Keeps the learning process running beside the gateway, and out of its way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

log = logging.getLogger("instar.learn")

_AGAIN_S = (1.0, 5.0, 30.0, 120.0)
"""Pauses before it is started again, by how often it died in a row."""
_STOP_S = 10.0


def yield_to_others() -> None:
    """Only use a processor that nobody else wants: serving must not feel that this runs."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.nice(19)
    # Linux shares processors out among sessions first, and this process is one of its own: the
    # above then only counts within it.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


@asynccontextmanager
async def learning(home: Path, *, after: asyncio.Event) -> AsyncIterator[None]:
    """`instar train` as a child, from `after` on; it is started again if it dies."""
    keeper = asyncio.ensure_future(_keep(home, after))
    try:
        yield
    finally:
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper


async def _keep(home: Path, after: asyncio.Event) -> None:
    deaths = 0
    await after.wait()
    while True:
        started = asyncio.get_running_loop().time()
        child = await _start(home)
        try:
            code = await child.wait()
        except asyncio.CancelledError:
            await _end(child)
            raise
        lived = asyncio.get_running_loop().time() - started
        deaths = 0 if lived > 60 else min(deaths + 1, len(_AGAIN_S) - 1)
        log.error("the learning process ended with %d; see %s", code, home / "train.log")
        await asyncio.sleep(_AGAIN_S[deaths])


async def _start(home: Path) -> asyncio.subprocess.Process:
    with (home / "train.log").open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "instar", "train", "--background", "--home", str(home)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            # Its own session: a Ctrl-C in the terminal is for the parent, which passes it on.
            start_new_session=True,
        )


async def _end(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(_STOP_S):
            await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
