"""How many CPU threads a step may use, by what the machine has to spare right now.

The threads of a product wait for each other dozens of times a token. Where one of them does not
get its core, all of them stand still: beside a busy trainer, two threads on two cores were 30
times slower than one. So engine and trainer take as many threads as there are cores for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WINDOW_S = 0.3
"""How long usage is watched before it is acted upon; the kernel counts in steps of 0.01 s."""

SLACK = 0.2
"""Part of a core that may be missing, since nothing ever uses a whole one."""

STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Seconds so far, all from the same moment."""

    wall: float
    own: float
    """That this process computed, over all its threads."""
    idle: float
    """That the cores it may use had nothing to do."""


class Pace:
    """Follows the usage of the cores and says how many threads fit."""

    def __init__(self, limit: int, *, read: Callable[[], Usage | None]) -> None:
        self._limit, self._read = limit, read
        self._last = read()
        self.threads = limit

    def check(self) -> int:
        """The number of threads for the next step."""
        if self._limit == 1 or self._last is None:
            return self.threads
        now, before = self._read(), self._last
        if now is not None and (passed := now.wall - before.wall) >= WINDOW_S:
            spare = (now.own - before.own + now.idle - before.idle) / passed
            self.threads = max(1, min(self._limit, int(spare + SLACK)))
            self._last = now
        return self.threads


def read_usage() -> Usage | None:
    """The usage of now; None where the system does not tell (anything but Linux)."""
    try:
        lines = STAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [line.split() for line in lines if line.startswith("cpu")]
    # Columns: name, user, nice, system, idle, iowait, ...
    idle = sum(int(columns[4]) + int(columns[5]) for columns in fields if columns[0] in cores)
    return Usage(wall=time.perf_counter(), own=time.process_time(), idle=idle / ticks)


@cache
def most_threads() -> int:
    """What PyTorch takes by itself, asked before anybody makes it fewer."""
    import torch

    return torch.get_num_threads()


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """PyTorch with so many threads meanwhile, for products that are too small to share.

    It has one number for a process: other threads that compute set theirs at each step.
    """
    import torch

    before = most_threads()
    torch.set_num_threads(min(threads, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
