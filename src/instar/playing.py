"""A rollout from start to end: serve, play, train round by round, measure before and after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from instar.config import Config, secret
from instar.envs import open_environment
from instar.envs.client import GatewayClient, model_name
from instar.envs.passes import Summary, compare, rewards_by_task, summarise
from instar.envs.runner import Plan, Progress, Runner
from instar.launch import started

_SWAP_S = 1.5
"""The gateway looks for a new live version twice a second."""
_POLL_S = 0.5
_TRAIN_S = 1800.0
"""How long a round waits for the trainer before it goes on without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be done, and where."""

    config: Config
    home: Path
    plan: Plan
    url: str | None
    sets: tuple[str, ...]
    file: Path | None
    train: bool
    tell: Callable[[Progress], None]


async def rollout(job: Job, *, version: str | None, measure: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with _gateway(job) as address, _client(address, version) as client:
        if measure:
            found["before"] = (await _held_out(job, client, "before")).to_json()
        runner = await _played(job, client)
        found["summary"] = summarise(runner.attempts).to_json()
        spent = runner.progress
        found["turns_per_s"] = round(spent.per_second(spent.turns), 2)
        found["tokens_per_s"] = round(spent.per_second(spent.tokens), 2)
        if measure:
            found["after"] = (await _held_out(job, client, "after")).to_json()
    return found


async def evaluate(job: Job, versions: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"versions": {}, "differences": []}
    rewards = {}
    async with _gateway(job) as address:
        for version in versions:
            async with _client(address, version) as client:
                plan = replace(job.plan, run=f"{job.plan.run}.{version}")
                runner = await _played(replace(job, plan=plan), client)
            found["versions"][version] = summarise(runner.attempts).to_json()
            rewards[version] = rewards_by_task(runner.attempts)
    for other in versions[1:]:
        difference = compare(rewards[versions[0]], rewards[other])
        if difference is not None:
            named = {"from": versions[0], "to": other, **difference.to_json()}
            found["differences"].append(named)
    return found


async def _held_out(job: Job, client: GatewayClient, when: str) -> Summary:
    """The test split, played only to be measured."""
    run = f"{job.plan.run}.{when}"
    plan = replace(job.plan, run=run, split="test", tasks=0, group=1, no_train=True)
    runner = await _played(replace(job, plan=plan, train=False), client)
    return summarise(runner.attempts)


async def _played(job: Job, client: GatewayClient) -> Runner:
    runner = Runner(job.plan, client, on_progress=job.tell)
    await runner.prepare()
    if job.train and job.config.rollout_config.collection_mode == "sync":
        groups = max(1, job.config.rollout.batch_size // job.plan.group)
        while runner.left:
            await runner.play(groups)
            await until_trained(runner)
    else:
        await runner.play()
    return runner


async def until_trained(runner: Runner) -> None:
    """Until no group waits; the next round is then played by what was learned from this one."""
    for _ in range(round(_TRAIN_S / _POLL_S)):
        if not await runner.waiting():
            break
        await asyncio.sleep(_POLL_S)
    await asyncio.sleep(_SWAP_S)


@asynccontextmanager
async def _gateway(job: Job) -> AsyncIterator[str]:
    """The address of the gateway that was named, or of one that is started for this."""
    if job.url is not None:
        yield job.url.rstrip("/")
        return
    # Whoever asks for what is not there should not wait for a model.
    async with open_environment(job.plan.environment, job.plan.options) as environment:
        await environment.tasks(job.plan.split)
    command: Literal["up", "serve"] = "up" if job.train else "serve"
    async with started(job.home, job.sets, command=command, file=job.file) as address:
        yield address


@asynccontextmanager
async def _client(address: str, version: str | None) -> AsyncIterator[GatewayClient]:
    """A client that asks for this version, or for the live one."""
    key = secret("INSTAR_API_KEY")
    model = await model_name(address, key)
    client = GatewayClient(address, model=f"{model}:{version}" if version else model, key=key)
    try:
        yield client
    finally:
        await client.close()
