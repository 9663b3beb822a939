"""`bfcl`: the Berkeley Function Calling Leaderboard v4, with its own data and checkers.

Single and multi turn. Both come from the PyPI package bfcl-eval in a Python of its own (`python`).
A reward is what the leaderboard gives: 1 or 0. The categories that ask the web or a memory, and
the one on prompt formats, are left out.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from instar.envs.foreign import Foreign, ForeignWorker, open_worker
from instar.envs.options import EnvironmentOptions, read_options, split_list
from instar.envs.toolcall_grade import calls_of
from instar.errors import ConfigError, EnvironmentFailure
from instar.types import Message, Tool

SINGLE = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "simple_java",
    "simple_javascript",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
)
MULTI = (
    "multi_turn_base",
    "multi_turn_miss_func",
    "multi_turn_miss_param",
    "multi_turn_long_context",
)
GROUPS: dict[str, tuple[str, ...]] = {
    "single_turn": SINGLE,
    "multi_turn": MULTI,
    "live": tuple(name for name in SINGLE if name.startswith("live")),
    "non_live": tuple(name for name in SINGLE if not name.startswith("live")),
}
REWARD_SILENCE = ("irrelevance", "live_irrelevance")
"""Categories where a reply that calls nothing is right."""
BROKEN = frozenset(
    {
        "simple_java_36",
        "simple_java_64",
        "simple_java_65",
        "live_simple_106-63-0",
        "live_simple_112-68-0",
        "live_multiple_862-181-3",
        "live_multiple_964-207-0",
    }
)
"""Left out: their gold answer contradicts their own tool, so that no reply can pass the checker."""
TEST_EVERY = 5
"""Every fifth task is for testing. The benchmark itself knows no splits."""
SCRIPT = Path(__file__).with_name("bfcl_worker.py")
MORE_TOOLS = "I have updated some more functions you can choose from. What about now?"
"""What the leaderboard says when it hands a withheld tool over."""

_attempts = itertools.count()

Calls = list[dict[str, Any]]


class BfclOptions(EnvironmentOptions):
    """Which tasks, and where bfcl-eval is installed."""

    python: str | None = None
    """A Python that has bfcl-eval; by default that of `make install-toolcall`."""
    categories: Annotated[list[str], BeforeValidator(split_list)] = Field(default_factory=list)
    """Categories or the groups single_turn, multi_turn, live, non_live; by default all."""
    max_steps: int = Field(default=20, ge=1)
    """Replies with calls that one turn may take; the leaderboard's own limit."""
    timeout_s: float = Field(default=60, gt=0)
    """How long the worker may take over one request."""


class BfclEnvironment:
    """One place to play BFCL tasks in, with a worker process of its own."""

    def __init__(self, options: BfclOptions, worker: ForeignWorker) -> None:
        self._options = options
        self._worker = worker
        self._categories = _chosen(options.categories)
        self._name = ""
        self._attempt = ""
        self._born = 0
        self._task: dict[str, Any] = {}
        self._names: set[str] = set()
        self._turns: list[list[Calls]] = []
        self._done = True
        self._cut = False
        self._result: dict[str, Any] | None = None

    async def tasks(self, split: str) -> list[str]:
        if split not in ("train", "test"):
            raise ConfigError(f"bfcl has the splits train, test, not {split!r}")
        kept = [
            [name for name in await self._ids(category) if _is_test(name) == (split == "test")]
            for category in self._categories
        ]
        return [name for row in itertools.zip_longest(*kept) for name in row if name is not None]

    async def reset(self, task: str) -> tuple[list[Message], list[Tool]]:
        category = task.rsplit("_", 1)[0]
        if category not in self._categories or task not in await self._ids(category):
            raise ConfigError(f"bfcl has no task {task!r}; tasks(split) lists those it has")
        self._name, self._attempt = task, f"attempt{next(_attempts)}"
        self._task = await self._ask("task", name=task)
        # As on the leaderboard, a tool that is withheld works for who guesses its name.
        later = itertools.chain.from_iterable(self._task["later"].values())
        self._names = {tool["function"]["name"] for tool in (*self._task["tools"], *later)}
        self._turns, self._result = [[]], None
        self._born = self._worker.generation
        self._done = self._cut = False
        return list(self._task["turns"][0]), self._task["tools"]

    async def step(self, reply: Message) -> tuple[list[Message], bool]:
        if self._done:
            raise EnvironmentFailure("step after the end of an attempt; call reset first")
        calls: Calls = [
            {"name": call.name, "arguments": call.arguments} for call in calls_of(reply)
        ]
        if not self._name.startswith("multi_turn"):
            self._turns[0].append(calls)
            self._done = True
            return [], True
        if calls:
            return await self._act(reply, calls)
        return self._next_turn()

    async def score(self) -> tuple[float, dict[str, Any]]:
        if not self._name:
            raise EnvironmentFailure("score before any attempt; call reset first")
        if not self._done:
            return 0.0, {"valid": False, "error": "unfinished"}
        if self._result is None:
            self._result = await self._check()
        return float(self._result["valid"]), self._result

    async def _act(self, reply: Message, calls: Calls) -> tuple[list[Message], bool]:
        """Do the calls of one reply; those of tools that there are not only get an error."""
        turn = self._turns[-1]
        if len(turn) >= self._options.max_steps:
            self._done = self._cut = True
            return [], True
        known = [call for call in calls if call["name"] in self._names]
        turn.append(known)
        done = await self._ask("execute", name=self._name, attempt=self._attempt, calls=known)
        if self._born != self._worker.generation:
            raise EnvironmentFailure("the worker that held this task's world is gone")
        results = iter(done)
        answers: list[Message] = []
        for made, call in zip(reply["tool_calls"], calls, strict=True):
            content = (
                next(results)
                if call["name"] in self._names
                else json.dumps({"error": f"there is no tool {call['name']}"})
            )
            answers.append({"role": "tool", "tool_call_id": made["id"], "content": content})
        return answers, False

    def _next_turn(self) -> tuple[list[Message], bool]:
        """A reply without calls ends a turn: the person goes on, or there is no more to say."""
        number = len(self._turns)
        if number >= len(self._task["turns"]):
            self._done = True
            return [], True
        self._turns.append([])
        messages = list(self._task["turns"][number])
        more = self._task["later"].get(str(number), [])
        if more:
            # Tools are fixed once an attempt has begun, so the new ones are told of in words.
            listed = "\n".join(json.dumps(tool) for tool in more)
            messages.append({"role": "user", "content": f"{listed}\n{MORE_TOOLS}"})
        return messages, False

    async def _check(self) -> dict[str, Any]:
        if not self._name.startswith("multi_turn"):
            calls = self._turns[0][0]
            found = await self._ask("check_calls", name=self._name, calls=calls)
        elif self._cut:
            found = {"valid": False, "error": "multi_turn:force_terminated"}
        else:
            found = await self._ask(
                "check_turns", name=self._name, attempt=self._attempt, turns=self._turns
            )
        checked: dict[str, Any] = {"category": self._name.rsplit("_", 1)[0], **found}
        return checked

    async def _ids(self, category: str) -> list[str]:
        found = await self._ask("ids", categories=[category])
        return [name for name in found if name not in BROKEN]

    async def _ask(self, do: str, **values: Any) -> Any:
        return await self._worker.ask(do, **values)


def _chosen(names: Sequence[str]) -> list[str]:
    known = (*SINGLE, *MULTI)
    chosen: list[str] = []
    for name in names or ["single_turn", "multi_turn"]:
        if name not in known and name not in GROUPS:
            raise ConfigError(
                f"bfcl has no category {name!r}; it has {', '.join(known)} "
                f"and the groups {', '.join(GROUPS)}"
            )
        chosen += [one for one in GROUPS.get(name, (name,)) if one not in chosen]
    return chosen


def _is_test(name: str) -> bool:
    """By the tool's number where several requests share a tool, else by the task's own.

    The four multi-turn categories tell the same stories under the same numbers, so those of one
    story stay together too.
    """
    found = re.search(r"_(\d+)(?:-(\d+)-\d+)?$", name)
    assert found is not None, name
    return int(found[2] or found[1]) % TEST_EVERY == TEST_EVERY - 1


@asynccontextmanager
async def open_environment(options: dict[str, Any]) -> AsyncIterator[BfclEnvironment]:
    """A place with its own worker, which ends with it."""
    read = read_options(BfclOptions, "bfcl", options)
    foreign = Foreign(
        script=SCRIPT, package="bfcl_eval", python=read.python, timeout_s=read.timeout_s
    )
    async with open_worker(foreign) as worker:
        yield BfclEnvironment(read, worker)
