"""Control groups: limits for all processes of a sandbox together, where this machine lets us.

Version 1 (one tree a controller) and version 2 (one tree) are used as root; elsewhere there are
none, and each process is bounded by its own ulimits. A group that the kill -9 of its owner left
behind is empty, and the next start removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from functools import cache
from pathlib import Path

from instar.envs.sandbox import Limits

log = logging.getLogger(__name__)
ROOT = Path("/sys/fs/cgroup")
OURS = "instar"
PERIOD_US = 100_000
NEEDED = ("memory", "pids", "cpu")


def settings(version: int, limits: Limits) -> dict[str, dict[str, str]]:
    """What to write into each controller's files."""
    memory, quota = limits.memory_mb << 20, int(limits.cpus * PERIOD_US)
    processes = str(limits.processes)
    if version == 1:
        return {
            "memory": {"memory.limit_in_bytes": str(memory)},
            "pids": {"pids.max": processes},
            "cpu": {"cpu.cfs_quota_us": str(quota)},
        }
    return {
        "memory": {"memory.max": str(memory), "memory.swap.max": "0"},
        "pids": {"pids.max": processes},
        "cpu": {"cpu.max": f"{quota} {PERIOD_US}"},
    }


@cache
def trees(root: Path = ROOT) -> tuple[int, dict[str, Path]]:
    """The version in use, and the folder for our groups by controller; version 0: none usable."""
    try:
        if (root / "cgroup.controllers").is_file():
            return 2, _unified(root)
        found = {name: root / name / OURS for name in NEEDED if (root / name).is_dir()}
        if set(found) != set(NEEDED):
            return 0, {}
        for folder in found.values():
            folder.mkdir(exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(f"{folder} belongs to another user")
    except OSError as error:
        log.info("no control groups: %s; sandboxes are bounded by ulimits", error)
        return 0, {}
    _sweep(found)
    return 1, found


def _unified(root: Path) -> dict[str, Path]:
    ours, enable = root / OURS, " ".join(f"+{name}" for name in NEEDED)
    ours.mkdir(exist_ok=True)
    for folder in (root, ours):
        (folder / "cgroup.subtree_control").write_text(enable, encoding="ascii")
    found = dict.fromkeys(NEEDED, ours)
    _sweep(found)
    return found


def _sweep(found: dict[str, Path]) -> None:
    """Remove groups whose owner is gone; one that holds processes cannot be removed."""
    for folder in set(found.values()):
        for group in folder.iterdir():
            owner = group.name.partition("-")[0]
            if group.is_dir() and owner.isdecimal() and not Path("/proc", owner).exists():
                with contextlib.suppress(OSError):
                    group.rmdir()


class Group:
    """The control groups of one sandbox."""

    def __init__(self, name: str, limits: Limits, root: Path = ROOT) -> None:
        version, found = trees(root)
        self._folders = {folder / f"{os.getpid()}-{name}" for folder in found.values()}
        for folder in self._folders:
            folder.mkdir()
        for controller, files in settings(version, limits).items() if version else ():
            for file, value in files.items():
                path = found[controller] / f"{os.getpid()}-{name}" / file
                if path.exists() or root != ROOT:  # no swap file where the kernel has no swap
                    path.write_text(value, encoding="ascii")

    @property
    def entries(self) -> list[str]:
        """Files that a process writes its number into to join."""
        return sorted(str(folder / "cgroup.procs") for folder in self._folders)

    async def close(self) -> None:
        """Remove the groups. The kernel needs a moment after the last process has gone."""
        until = time.monotonic() + 2.0
        for folder in self._folders:
            while time.monotonic() < until:
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    await asyncio.sleep(0.001)
