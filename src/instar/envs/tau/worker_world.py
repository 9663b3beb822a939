"""Domains of the benchmarks, in workers that have their packages.

`airline`, `retail` and `telecom` are tau2-bench's as inspect-evals ships them; `tau2/NAME` and
`tau_bench/NAME` are Sierra's own packages. Worlds share a few workers; a worker that dies takes
its worlds along, and each says so.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from instar.envs.tau.world import Action, Domain, Scenario
from instar.envs.worker import LOOP, Worker
from instar.errors import ConfigError, EnvironmentFailure
from instar.ids import new_id

_SOURCES = {"": "inspect_evals", "tau2": "tau2", "tau_bench": "tau_bench"}
"""Which package a domain comes from, by what stands before the slash of its name."""
_FILES = {
    "inspect_evals": "inspect_worker.py",
    "tau2": "tau2_worker.py",
    "tau_bench": "tau_bench_worker.py",
}
DOMAINS = (
    *("airline", "retail", "telecom"),
    *("tau2/airline", "tau2/retail", "tau2/telecom"),
    *("tau_bench/airline", "tau_bench/retail"),
)
VENV = Path(".venv-envs/bin/python")
"""Where `make install-envs` puts the Python that has inspect-evals."""
_TIMEOUT_S = 60.0
_ALARM_S = _TIMEOUT_S + 5
"""When a worker ends itself, which nobody but an orphan comes to."""


@dataclass(slots=True)
class _Pool:
    workers: list[Worker]
    users: int = 0
    next: int = 0
    domains: dict[str, Domain] = field(default_factory=dict)


_pools: dict[tuple[asyncio.AbstractEventLoop, str, str, int], _Pool] = {}


@asynccontextmanager
async def open_world(domain: str, options: dict[str, Any]) -> AsyncIterator[WorkerWorld]:
    """A world in one of the shared workers, which are ended with the last world."""
    head, _, name = domain.rpartition("/")
    package = _SOURCES[head]
    python = find_python(options.get("python"), package)
    count = int(options.get("workers") or 1)
    key = (asyncio.get_running_loop(), python, package, count)
    if key not in _pools:
        script = str(Path(__file__).with_name(_FILES[package]))
        argv = [python, str(LOOP), script, str(_ALARM_S)]
        who = f"the worker with {package}"
        made = [Worker(argv, timeout_s=_TIMEOUT_S, name=who) for _ in range(count)]
        _pools[key] = _Pool(made)
    pool = _pools[key]
    pool.users += 1
    world = WorkerWorld(name, pool, pool.workers[pool.next % count])
    pool.next += 1
    try:
        yield world
    finally:
        pool.users -= 1
        if pool.users:
            await world.close()
        else:
            del _pools[key]
            await asyncio.gather(*(worker.close() for worker in pool.workers))


def find_python(given: object, package: str) -> str:
    """The Python that was named, or the one of `make install-envs`, or this one if it will do."""
    if given:
        return str(Path(str(given)).expanduser())
    if importlib.util.find_spec(package) is not None:
        return sys.executable
    if package == "inspect_evals" and VENV.exists():
        return str(VENV)
    how = "run `make install-envs`" if package == "inspect_evals" else "install Sierra's repository"
    raise ConfigError(
        f"this domain comes from the package {package}, which is not installed here; {how}, or "
        "name a Python that has it with --option python=PATH"
    )


class WorkerWorld:
    """Satisfies `World`."""

    def __init__(self, domain: str, pool: _Pool, worker: Worker) -> None:
        self._domain = domain
        self._pool = pool
        self._worker = worker
        self._name = new_id("w")
        self._born = 0

    async def describe(self) -> Domain:
        if self._domain not in self._pool.domains:
            found = await self._worker.ask("describe", domain=self._domain)
            self._pool.domains[self._domain] = Domain(
                policy=found["policy"],
                tools=tuple(found["tools"]),
                user_tools=tuple(found["user_tools"]),
                splits=found["splits"],
                guidelines=found["guidelines"],
            )
        return self._pool.domains[self._domain]

    async def start(self, task: str) -> Scenario:
        found = await self._worker.ask("start", domain=self._domain, world=self._name, task=task)
        self._born = self._worker.generation
        return Scenario(
            task=task,
            instruction=found["instruction"],
            gold=tuple(Action(**one) for one in found["gold"]),
            outputs=tuple(found["outputs"]),
            idle=found["idle"],
            needs_judge=found["needs_judge"],
        )

    async def call(self, action: Action) -> str:
        self._alive()
        return str(
            await self._worker.ask(
                "call",
                world=self._name,
                who=action.who,
                name=action.name,
                arguments=action.arguments,
            )
        )

    async def score(self, said: Sequence[str]) -> tuple[float, dict[str, Any]]:
        self._alive()
        reward, details = await self._worker.ask("score", world=self._name, said=list(said))
        return float(reward), details

    async def close(self) -> None:
        if self._born and self._born == self._worker.generation:
            await self._worker.ask("close", world=self._name)

    def _alive(self) -> None:
        if self._born != self._worker.generation:
            raise EnvironmentFailure("the worker that held this task is gone")
