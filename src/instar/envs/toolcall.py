"""`toolcall`: function calling on tasks of our own, with nothing to install.

A request is to be answered with one call of one of the tools offered; in the family `answer` the
tool's result comes back, and a second reply must state what it found.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from instar.envs.options import EnvironmentOptions, read_options, split_list
from instar.envs.toolcall_config import load_tools_config
from instar.envs.toolcall_grade import OPEN, Call, Grade, calls_of, grade, says
from instar.envs.toolcall_skills import SKILLS, Skill
from instar.envs.toolcall_tasks import (
    CONFIGURED,
    FAMILIES,
    SPLITS,
    Family,
    Task,
    make_task,
    task_ids,
)
from instar.errors import ConfigError, EnvironmentFailure
from instar.types import Message, Tool

CALL_SHARE = 0.6
"""Of a two-turn task's reward: the call. The rest is the answer."""


class ToolcallOptions(EnvironmentOptions):
    """Which tasks there are."""

    families: Annotated[list[str], BeforeValidator(split_list)] = Field(default_factory=list)
    """Some of FAMILIES; by default all, or with `tools_config` those of its own tools."""
    seed: int = 0
    train: int = Field(default=512, ge=1)
    """Tasks a family in the train split."""
    test: int = Field(default=64, ge=1)
    """Tasks a family in the test split."""
    examples: int | None = Field(default=None, ge=0)
    """How many worked examples a conversation begins with; by default as the family says."""
    tools_config: Path | None = None
    """A file of tools; tasks are then made for these."""


class ToolcallEnvironment:
    """One place to play tool-call tasks in."""

    def __init__(self, options: ToolcallOptions) -> None:
        self._options = options
        self._skills: Sequence[Skill] = SKILLS
        self._families: dict[str, Family] = _chosen(options.families)
        if options.tools_config is not None:
            if options.families:
                raise ConfigError("toolcall takes families or tools_config, not both")
            self._skills = load_tools_config(options.tools_config)
            self._families = {"config": CONFIGURED}
        self._task: Task | None = None
        self._done = True
        self._grade = Grade()
        self._answered = False
        self._called = False

    async def tasks(self, split: str) -> list[str]:
        return task_ids(list(self._families), split, self._count(split))

    async def reset(self, task: str) -> tuple[list[Message], list[Tool]]:
        family, split, number = _parts(task)
        if family not in self._families or not 0 <= number < self._count(split):
            raise ConfigError(f"toolcall has no task {task!r}; tasks(split) lists those it has")
        self._task = make_task(
            self._families[family],
            self._skills,
            split=split,
            seed=f"{self._options.seed}:{task}",
            examples=self._options.examples,
        )
        self._done = self._answered = self._called = False
        self._grade = Grade()
        return self._task.messages, self._task.tools

    async def step(self, reply: Message) -> tuple[list[Message], bool]:
        if self._task is None or self._done:
            raise EnvironmentFailure("step after the end of an attempt; call reset first")
        if self._called:
            self._answered = not reply.get("tool_calls") and says(
                str(reply.get("content") or ""), self._task.fact
            )
            self._done = True
            return [], True
        self._called = True
        self._grade = _grade(reply, self._task)
        if not self._task.result or not reply.get("tool_calls"):
            self._done = True
            return [], True
        return self._results(reply, self._task), False

    async def score(self) -> tuple[float, dict[str, Any]]:
        if self._task is None:
            raise EnvironmentFailure("score before any attempt; call reset first")
        reward = self._grade.total
        details: dict[str, Any] = dict(self._grade.parts)
        if self._task.result:
            details["answer"] = float(self._answered)
            reward = CALL_SHARE * reward + (1 - CALL_SHARE) * details["answer"]
        details["right"] = reward > 1 - 1e-9
        return min(reward, 1.0), details

    def _count(self, split: str) -> int:
        if split not in SPLITS:
            raise ConfigError(f"toolcall has the splits {', '.join(SPLITS)}, not {split!r}")
        return self._options.test if split == "test" else self._options.train

    def _results(self, reply: Message, task: Task) -> list[Message]:
        """What the tools answer: the result to the right call, an error to any other."""
        answers = []
        for call, made in zip(reply["tool_calls"], calls_of(reply), strict=True):
            right = task.wanted is not None and _is_right(made, task.wanted)
            content = task.result if right else json.dumps({"error": "not found"})
            answers.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return answers


def _grade(reply: Message, task: Task) -> Grade:
    if task.wanted is not None:
        return grade(reply, task.wanted)
    text = str(reply.get("content") or "")
    declined = bool(text.strip()) and not reply.get("tool_calls") and OPEN not in text
    return Grade(1.0, 1.0, 1.0, 1.0) if declined else Grade()


def _is_right(call: Call, wanted: Call) -> bool:
    message = {"tool_calls": [{"function": {"name": call.name, "arguments": call.arguments}}]}
    return grade(message, wanted).total > 1 - 1e-9


def _chosen(names: Sequence[str]) -> dict[str, Family]:
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise ConfigError(
            f"toolcall has no family {unknown[0]!r}; its families are {', '.join(FAMILIES)}"
        )
    return {name: FAMILIES[name] for name in names or FAMILIES}


def _parts(task: str) -> tuple[str, str, int]:
    family, split, number = [*task.split("-"), "", ""][:3]
    return family, split if split in SPLITS else "train", int(number) if number.isdigit() else -1


@asynccontextmanager
async def open_environment(options: dict[str, Any]) -> AsyncIterator[ToolcallEnvironment]:
    """A place for one attempt at a time; it holds nothing that must be closed."""
    yield ToolcallEnvironment(read_options(ToolcallOptions, "toolcall", options))
