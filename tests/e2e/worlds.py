"""Policies for the shop as scripts of the fake engine, and environments that go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gate import MODEL, Gate

from instar.envs.client import GatewayClient
from instar.envs.runner import Plan, Runner
from instar.envs.tau.shop import TASKS
from instar.envs.tau.world import TRANSFER
from instar.errors import EnvironmentFailure, ReplyError
from instar.types import Message, Tool


def perfect(task: str, session: str = "*") -> list[dict[str, Any]]:
    """The gold calls, one a turn, then a message that ends the conversation."""
    scenario = TASKS[task]
    pattern = f"*/{task}/{session}"
    lines: list[dict[str, Any]] = [
        {"session": pattern, "tool_calls": [{"name": one.name, "arguments": one.arguments}]}
        for one in scenario.gold
    ]
    if any(one.name == TRANSFER for one in scenario.gold):
        return lines
    words = "It is done." if len(scenario.gold) > 1 else "I cannot do that."
    if scenario.outputs:
        words = f"It costs {scenario.outputs[0]} a day."
    return [*lines, {"session": pattern, "text": words}]


def broken(task: str, session: str = "*") -> list[dict[str, Any]]:
    """Claims that it is done and touches nothing."""
    return [{"session": f"*/{task}/{session}", "text": "All is done."}]


def client_of(gate: Gate) -> GatewayClient:
    return GatewayClient("http://gate/v1", model=MODEL, transport=gate.http._transport)


class Steps:
    """An environment whose steps are given: it counts to three, or does what it is told to."""

    def __init__(self, on_step: Callable[[int], Any] = lambda _: None) -> None:
        self._on_step = on_step
        self._at = 0
        self.closed = False

    async def tasks(self, split: str) -> list[str]:
        return [f"{split}-{number}" for number in range(4)]

    async def reset(self, task: str) -> tuple[list[Message], list[Tool]]:
        self._at = 0
        await self._told()
        return [{"role": "user", "content": f"Count, {task}."}], []

    async def step(self, reply: Message) -> tuple[list[Message], bool]:
        self._at += 1
        await self._told()
        return [{"role": "user", "content": f"{self._at}"}], self._at >= 3

    async def score(self) -> tuple[float, dict[str, Any]]:
        return 1.0, {"counted": self._at}

    async def _told(self) -> None:
        found = self._on_step(self._at)
        if found == "hang":
            await asyncio.Event().wait()
        if found == "break":
            raise EnvironmentFailure("the world fell over")
        if found == "refuse":
            raise ReplyError("that is no move")
        if isinstance(found, Exception):
            raise found


def opened_with(make: Callable[[], Any]) -> Callable[[], Any]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        environment = make()
        try:
            yield environment
        finally:
            environment.closed = True

    return opened


async def run_plan(gate: Gate, plan: Plan, **more: Any) -> Runner:
    client = client_of(gate)
    runner = Runner(plan, client, **more)
    try:
        await runner.prepare()
        await runner.play()
    finally:
        await client.close()
    return runner
