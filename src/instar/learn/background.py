"""Keeps the learning process running beside the gateway, and out of its way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

log = logging.getLogger("instar.learn")

_AGAIN_S = (1.0, 5.0, 30.0, 120.0)
"""Pauses before it is started again, by how often it died in a row."""
_STEADY_S = 60.0
"""Who lived longer than this did not die of how it was started."""
_STOP_S = 3.0
"""An update takes longer than anyone wants to wait, and what is cut short is only that update."""


def yield_to_others() -> None:
    """Only use a processor that nobody else wants: serving must not feel that this runs."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.nice(19)
    # Linux shares the processor out between sessions first (autogroup), and only within one by
    # what was set above: a session of our own would weigh as much as the engine's.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text("19")


def end_with_parent(*, in_order: bool = False) -> None:
    """End this process when the one that holds its standard input is gone, however it went.

    A process that was killed cannot end its children; without this they would go on beside
    those of the next one. A trainer may end at once: what is half-way is finished at the next
    start. A gateway ends in good order (SIGTERM), for the replies under way.
    """

    def wait() -> None:
        # The parent never writes here; the end of the file is its own end.
        while os.read(0, 1024):
            pass
        if in_order:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            os._exit(1)

    threading.Thread(target=wait, name="with-parent", daemon=True).start()


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
        deaths = 0 if lived > _STEADY_S else deaths
        log.error("the learning process ended with %d; see %s", code, home / "train.log")
        await asyncio.sleep(_AGAIN_S[min(deaths, len(_AGAIN_S) - 1)])
        deaths += 1


async def _start(home: Path) -> asyncio.subprocess.Process:
    with (home / "train.log").open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "instar", "train", "--background", "--home", str(home)),
            "--with-parent",
            stdin=asyncio.subprocess.PIPE,
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
