"""Plays many attempts at once, and goes on where it was stopped.

What is over is told to the gateway, which keeps it once; a run that is started again asks for that
first and plays the rest. An attempt that was open when the runner died is played again as another
session: its old turns belong to no attempt, so nothing is ever trained or counted twice.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from instar.envs import open_environment
from instar.envs.client import Draw, GatewayClient, Talk, plain_name
from instar.envs.play import Limits, Played, play
from instar.errors import ConfigError, EnvironmentFailure
from instar.protocols import Environment
from instar.types import Attempt

Opened = Callable[[], AbstractAsyncContextManager[Environment]]

_POLL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run plays."""

    environment: str
    run: str
    split: str = "train"
    tasks: int = 0
    """How many; 0 means each task of the split once. Where there are fewer they come again."""
    shuffle: bool = False
    """In an order drawn from the seed, another each time round: tasks that lie side by side are
    often alike, and an update should not see one kind only."""
    group: int = 1
    parallel: int = 16
    seed: int = 0
    no_train: bool = False
    retries: int = 2
    """How often an attempt that the environment spoiled is played again."""
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    draw: Draw = field(default_factory=Draw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One attempt to play."""

    task: str
    group: str
    number: int


@dataclass(slots=True, kw_only=True)
class Progress:
    """How a run goes, for whoever watches."""

    total: int = 0
    done: int = 0
    resumed: int = 0
    """Of those, over before this start."""
    playing: int = 0
    rewards: float = 0.0
    scored: int = 0
    tokens: int = 0
    turns: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why attempts did not complete."""
    started: float = field(default_factory=time.monotonic)
    acting_s: float = 0.0

    @property
    def reward(self) -> float | None:
        return self.rewards / self.scored if self.scored else None

    def per_second(self, count: int) -> float:
        return count / max(1e-9, time.monotonic() - self.started)

    def add(self, attempt: Attempt) -> None:
        self.done += 1
        self.statuses[attempt.status] += 1
        if attempt.reward is not None:
            self.rewards += attempt.reward
            self.scored += 1
        if why := attempt.details.get("why"):
            self.reasons[str(why)[:80]] += 1


def make_jobs(plan: Plan, tasks: Sequence[str]) -> list[Job]:
    """All attempts of a run, group by group: groups become complete one after the other."""
    if not tasks:
        raise ConfigError(f"{plan.environment} has no tasks in the split {plan.split!r}")
    wanted = plan.tasks or len(tasks)
    jobs = []
    for at in range(wanted):
        if at % len(tasks) == 0:
            order = _order(tasks, plan, at // len(tasks))
        task = order[at % len(tasks)]
        group = f"{plain_name(plan.run)}/{at // len(tasks)}/{plain_name(task)}"
        jobs += [Job(task=task, group=group, number=number) for number in range(plan.group)]
    return jobs


def _order(tasks: Sequence[str], plan: Plan, time_round: int) -> Sequence[str]:
    if not plan.shuffle:
        return tasks
    return random.Random(f"{plan.seed}/{time_round}").sample(tasks, len(tasks))


class Runner:
    """Plays one plan against one gateway."""

    def __init__(
        self,
        plan: Plan,
        client: GatewayClient,
        *,
        opened: Opened | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """`opened` replaces the table of environments, for tests."""
        self._plan = plan
        self._client = client
        self._open = opened or (lambda: open_environment(plan.environment, plan.options))
        self._tell = on_progress
        self.progress = Progress()
        self.attempts: list[Attempt] = []
        """All attempts of the run that are over."""
        self._jobs: deque[Job] = deque()
        self._one_call = False

    async def prepare(self) -> int:
        """Find the tasks and what is over already; gives how many attempts are left."""
        async with self._open() as environment:
            tasks = await environment.tasks(self._plan.split)
            self._one_call = bool(getattr(environment, "one_call", False))
        jobs = make_jobs(self._plan, tasks)
        self.attempts, _ = await self._client.attempts(self._plan.run)
        over = {(one.group, one.number) for one in self.attempts}
        self._jobs = deque(job for job in jobs if (job.group, job.number) not in over)
        self.progress = Progress(total=len(jobs))
        for one in self.attempts:
            self.progress.add(one)
        self.progress.resumed = self.progress.done
        return len(self._jobs)

    @property
    def left(self) -> int:
        return len(self._jobs)

    async def play(self, groups: int | None = None) -> None:
        """Play what is left, or so many groups of it."""
        some = self._take(groups)
        places = min(self._plan.parallel, len(some))
        watch = asyncio.ensure_future(self._watch())
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(places):
                    tasks.create_task(self._place(some))
        except* (ConfigError, EnvironmentFailure) as errors:
            raise errors.exceptions[0] from None
        finally:
            watch.cancel()
            self._tell(self.progress)

    async def waiting(self) -> int:
        """How many groups of this run wait for training."""
        return (await self._client.attempts(self._plan.run))[1]

    def _take(self, groups: int | None) -> deque[Job]:
        some: deque[Job] = deque()
        names: set[str] = set()
        while self._jobs and (groups is None or len(names | {self._jobs[0].group}) <= groups):
            some.append(self._jobs.popleft())
            names.add(some[-1].group)
        return some

    async def _watch(self) -> None:
        while True:
            self._tell(self.progress)
            await asyncio.sleep(_POLL_S)

    async def _place(self, jobs: deque[Job]) -> None:
        """One place to play in; it is made anew after the environment broke."""
        while jobs:
            async with self._place_opened() as environment:
                while jobs:
                    job = jobs.popleft()
                    if not await self._attempt(environment, job):
                        break

    @asynccontextmanager
    async def _place_opened(self) -> AsyncIterator[Environment]:
        async with self._open() as environment:
            yield environment

    async def _attempt(self, environment: Environment, job: Job) -> bool:
        """Play one attempt, again where the environment spoiled it; False once it is broken."""
        self.progress.playing += 1
        try:
            for tried in range(1 + self._plan.retries):
                if tried == 0:
                    played = await self._played(environment, job)
                else:
                    async with self._place_opened() as fresh:
                        played = await self._played(fresh, job)
                if played[1].status != "environment_error":
                    break
            await self._over(job, *played)
            return played[1].status != "environment_error" and tried == 0
        finally:
            self.progress.playing -= 1

    async def _played(self, environment: Environment, job: Job) -> tuple[str, Played]:
        session = f"{job.group}/{job.number}-{secrets.token_hex(3)}"
        draw = self._plan.draw
        draw = replace(draw, one_call=draw.one_call or self._one_call)
        played = await play(
            environment,
            job.task,
            client=self._client,
            talk=Talk(session=session, group=job.group, no_train=self._plan.no_train),
            draw=draw,
            limits=self._plan.limits,
            seed=self._plan.seed * 1_000_003 + job.number,
        )
        self.progress.tokens += played.tokens
        self.progress.turns += len(played.turns)
        self.progress.acting_s += played.acting_s
        return session, played

    async def _over(self, job: Job, session: str, played: Played) -> None:
        plan = self._plan
        attempt = Attempt(
            owner="",
            session=session,
            environment=plan.environment,
            run=plan.run,
            task=job.task,
            group=job.group,
            number=job.number,
            size=plan.group,
            status=played.status,
            reward=played.reward,
            turns=played.turns,
            details={
                **played.details,
                "tokens": played.tokens,
                "seconds": round(played.seconds, 3),
            },
            used="no_train" if plan.no_train else None,
        )
        if await self._client.tell(attempt):
            self.attempts.append(attempt)
            self.progress.add(attempt)
        self._tell(self.progress)
