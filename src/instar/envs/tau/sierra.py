"""An environment object of Sierra's tau-bench, as instar's runner and agent want it.

Its methods block, since they load data and ask a model for the customer; they run in a thread, and
many of them at once hold nobody up. What they raise is the customer's or the machinery's fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from instar.envs.tau.replies import NOT_MADE, read_call, said_to_user, told
from instar.envs.tau.world import INSTRUCTION
from instar.errors import EnvironmentFailure
from instar.types import Message, Tool

T = TypeVar("T")

RESPOND = "respond"
"""What tau-bench calls the action of saying something to the customer."""


class SierraEnvironment:
    """Satisfies `Environment`, over an object with tau-bench's reset, step, wiki and tools_info."""

    one_call = True

    def __init__(self, env: Any, *, make_action: Callable[..., Any] | None = None) -> None:
        """`make_action(name=, kwargs=)` makes the package's Action; by default it is imported."""
        self._env = env
        self._make_action = make_action or _actions()
        # A thread of its own: one that hangs must not take a place in a shared pool.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="instar-tau")
        self._reward = 0.0
        self.info: dict[str, Any] = {}

    async def tasks(self, split: str) -> list[str]:
        """The split was chosen when the object was made."""
        return [str(number) for number in range(len(self._env.tasks))]

    async def reset(self, task: str) -> tuple[list[Message], list[Tool]]:
        self._reward = 0.0
        begun = await self._blocking(lambda: self._env.reset(task_index=int(task)))
        self.info = _plain(begun.info)
        messages: list[Message] = [
            {
                "role": "system",
                "content": f"{INSTRUCTION}\n\n<policy>\n{self._env.wiki}\n</policy>",
            },
            {"role": "user", "content": begun.observation},
        ]
        return messages, list(self._env.tools_info)

    async def step(self, reply: Message) -> tuple[list[Message], bool]:
        calls = reply.get("tool_calls") or []
        if calls:
            name, given, wrong = read_call(calls[0])
        else:
            name, given, wrong = RESPOND, {"content": said_to_user(reply)}, ""
        if wrong:
            return [told(calls[0], name, wrong)], False
        action = self._make_action(name=name, kwargs=given)
        found = await self._blocking(lambda: self._env.step(action))
        self.info |= _plain(found.info)
        self._reward = float(found.reward) if found.done else 0.0
        if not calls:
            return [{"role": "user", "content": found.observation}], bool(found.done)
        messages = [told(calls[0], name, found.observation)]
        messages += [told(call, read_call(call)[0], NOT_MADE) for call in calls[1:]]
        return messages, bool(found.done)

    async def score(self) -> tuple[float, dict[str, Any]]:
        return self._reward, {}

    async def _blocking(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work)
        except Exception as error:
            raise EnvironmentFailure(f"tau-bench: {type(error).__name__}: {error}") from error


def _actions() -> Callable[..., Any]:
    from tau_bench.types import Action

    made: Callable[..., Any] = Action
    return made


def _plain(info: Any) -> dict[str, Any]:
    return dict(info.model_dump()) if hasattr(info, "model_dump") else dict(info or {})
