"""What environments with a sandbox share: one attempt at a time, command by command, then a grade.

An attempt ends when the agent submits or has no steps left. Its grade is taken once, and taken
anew only if the agent did something since.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

from instar.envs.actions import SUBMIT, Call, Style, answer, read_reply
from instar.envs.sandbox import Sandbox, Spec, open_sandbox
from instar.errors import EnvironmentFailure
from instar.types import Message, Tool

Score = tuple[float, dict[str, Any]]
Task = TypeVar("Task")


class SandboxEnvironment(ABC, Generic[Task]):
    """One sandbox at a time, for one task at a time."""

    tools: Sequence[Tool]

    def __init__(self, *, style: Style, backend: str) -> None:
        self._style: Style = style
        self._backend = backend
        self._stack = AsyncExitStack()
        self._played: tuple[Sandbox, Task] | None = None
        self._steps, self._submitted, self._answer, self._over = 0, False, "", False
        self._scored: Score | None = None

    @abstractmethod
    def _limit(self, task: Task) -> tuple[str, int]:
        """The task's name, and how many steps it may take."""

    @abstractmethod
    async def _act(self, sandbox: Sandbox, call: Call) -> str:
        """Do what the agent calls for; what it is told then."""

    @abstractmethod
    async def _graded(self, sandbox: Sandbox, task: Task) -> Score:
        """What the attempt has come to. No process of the agent is left then."""

    async def _begin(self, task: Task, spec: Spec) -> Sandbox:
        """A new attempt in a sandbox of its own."""
        await self.close()
        self._steps, self._submitted, self._answer, self._over = 0, False, "", False
        self._scored = None
        sandbox = await self._stack.enter_async_context(open_sandbox(spec, self._backend))
        self._played = sandbox, task
        return sandbox

    def _first(
        self, system: str, person: str, before: Sequence[Message] = ()
    ) -> tuple[list[Message], list[Tool]]:
        """What an attempt begins with; `before` the task may come worked examples."""
        said = [{"role": "system", "content": system}, *before, {"role": "user", "content": person}]
        return said, list(self.tools) if self._style == "tools" else []

    async def step(self, reply: Message) -> tuple[list[Message], bool]:
        sandbox, task = self._playing()
        name, limit = self._limit(task)
        if self._over:
            raise EnvironmentFailure(f"the attempt at {name} is over; reset starts another")
        self._scored = None
        said = list[Message]()
        for call in read_reply(reply, self._style, self.tools):
            self._steps += 1
            said.append(answer(call, await self._do(sandbox, call)))
            if self._submitted:
                break
        self._over = self._submitted or self._steps >= limit
        return said, self._over

    async def _do(self, sandbox: Sandbox, call: Call) -> str:
        if call.error:
            return f"error: {call.error}"
        if call.name == SUBMIT:
            self._submitted, self._answer = True, str(call.arguments.get("answer", ""))
            return "submitted"
        return await self._act(sandbox, call)

    async def score(self) -> Score:
        sandbox, task = self._playing()
        if self._scored is None:
            await sandbox.stop()
            reward, details = await self._graded(sandbox, task)
            about = {"steps": self._steps, "submitted": self._submitted}
            self._scored = reward, {**about, **details}
        return self._scored

    def _playing(self) -> tuple[Sandbox, Task]:
        if self._played is None:
            raise EnvironmentFailure("no task is being played; reset starts one")
        return self._played

    async def close(self) -> None:
        """Leave the sandbox, if one is open."""
        self._played = None
        await self._stack.aclose()
