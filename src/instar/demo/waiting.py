"""Waiting for other processes, which end or stand still without a word: not for ever.

The learning process is started again whenever it dies, after longer and longer pauses. One that
is away for `GONE_S` has died several times in a row, so waiting for it would be in vain.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from instar.errors import InstarError

STILL_S = 900.0
"""How long nothing may change before it is given up."""
GONE_S = 20.0
"""How long no process may train; the pauses after a first and second death are shorter."""
_POLL_S = 0.5
_LOOK_S = 5.0
"""How often it is looked for the process and for signs that something changed."""
_TAIL = 15


class Standstill:
    """How long, and for how many looks, something has stayed the same."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sign: object = None
        self._since = clock()
        self.looks = 0

    def lasts(self, sign: object) -> float:
        """For how many seconds `sign` has been what it is."""
        if sign != self._sign:
            self._sign, self._since, self.looks = sign, self._clock(), 0
        self.looks += 1
        return self._clock() - self._since


class Background:
    """The process that judges and trains in a home, as one who waits for it sees it."""

    def __init__(
        self,
        home: Path,
        signs: Callable[[], Awaitable[object]],
        *,
        still_s: float = STILL_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        trains: Callable[[Path], bool | None] | None = None,
    ) -> None:
        """`signs` changes with whatever that process does: turns it judged, versions it made."""
        self.clock, self.still_s = clock, still_s
        self._home, self._signs, self._sleep = home, signs, sleep
        self._trains = trains or trains_in

    async def until(self, true: Callable[[], Awaitable[bool]], what: str) -> None:
        """Look again and again; raises InstarError where nobody is left to make it true."""
        still, alive = Standstill(self.clock), Standstill(self.clock)
        looked = self.clock() - _LOOK_S
        while not await true():
            if self.clock() - looked >= _LOOK_S:
                looked = self.clock()
                here = await asyncio.to_thread(self._trains, self._home)
                if alive.lasts(here) > GONE_S and here is False:
                    raise InstarError(self._gone(what))
                if still.lasts(await self._signs()) > self.still_s:
                    raise InstarError(self._stands(what))
            await self._sleep(_POLL_S)

    def _gone(self, what: str) -> str:
        return (
            f"Waited for {what}, but the process that judges and trains is gone and does not "
            f"come back. {self._log()}\nMend what is named there and start the demo again."
        )

    def _stands(self, what: str) -> str:
        return (
            f"Waited for {what}: for {self.still_s / 60:.0f} minutes no turn was judged and no "
            f"version made, where a few minutes are enough. {self._log()}\nIf nothing is wrong "
            "there, give the demo more of the machine, or less to do (--set training.batch_size)."
        )

    def _log(self) -> str:
        file = self._home / "train.log"
        try:
            lines = file.read_text("utf-8", "replace").splitlines()[-_TAIL:]
        except OSError as error:
            return f"Its log cannot be read: {error}."
        return "\n".join([f"The end of {file}:", *(f"  {line}" for line in lines or ["(empty)"])])


def trains_in(home: Path) -> bool | None:
    """Whether an `instar train` of this home runs; None where the system does not tell."""
    wanted = {b"train", b"--home", os.fsencode(home)}
    processes = list(Path("/proc").glob("[0-9]*/cmdline"))
    if not processes:
        return None
    return any(wanted <= set(_words(one)) for one in processes)


def _words(cmdline: Path) -> list[bytes]:
    try:
        return cmdline.read_bytes().split(b"\0")
    except OSError:  # it has ended meanwhile
        return []
