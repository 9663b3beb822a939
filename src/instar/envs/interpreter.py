"""`interpreter`: reasoning tasks with a Python interpreter at hand, as ReTool has it.

Tasks and scorers are reasoning-gym's, in a worker under a Python of its own; the code runs in a
sandbox and keeps its variables during an attempt. An answer counts only between <answer> and
</answer> in a reply that calls nothing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from instar.envs.foreign import Foreign, ForeignWorker, share_worker
from instar.envs.interpreter_python import PythonRunner, open_python
from instar.envs.interpreter_tasks import EASY, EXACT, GENERATORS
from instar.envs.options import EnvironmentOptions, read_options, split_list
from instar.envs.toolcall_grade import Call, calls_of
from instar.envs.toolcall_tasks import call_message
from instar.errors import ConfigError, EnvironmentFailure
from instar.types import Message, Tool

SCRIPT = Path(__file__).with_name("gym_worker.py")
NAME = "code_interpreter"
TOOL: Tool = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Run Python and return what it prints. Variables are kept.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python code"}},
            "required": ["code"],
        },
    },
}
SYSTEM = (
    f"Solve the problem. You may run Python with the tool {NAME}. When you know the answer, "
    "write it between <answer> and </answer>."
)
EXAMPLES = (
    ("What is 31 + 58?", "print(31 + 58)", "89"),
    ("How many letters has the word harvest?", 'print(len("harvest"))', "7"),
    ("What is 9 * 12?", "print(9 * 12)", "108"),
)
WORKER_S = 120.0
"""How long a task may take to be made, or an answer to be scored; the first waits for imports."""
LONGEST = 4000
"""Characters of the longest answer that is scored."""


class InterpreterOptions(EnvironmentOptions):
    """Which tasks, and what the code may use."""

    python: str | None = None
    """A Python that has reasoning-gym; by default that of `make install-toolcall`."""
    level: Literal["easy", "all"] = "all"
    """`easy`: five generators at their easiest, for small models."""
    generators: Annotated[list[str], BeforeValidator(split_list)] = Field(default_factory=list)
    """Some of the level's generators; by default all."""
    seed: int = 0
    train: int = Field(default=200, ge=1, le=256)
    """Tasks a generator in the train split."""
    test: int = Field(default=20, ge=1, le=256)
    """Tasks a generator in the test split."""
    examples: int = Field(default=1, ge=0, le=len(EXAMPLES))
    """How many worked examples a conversation begins with."""
    max_turns: int = Field(default=16, ge=1)
    """Replies that an attempt may take."""
    observation: int = Field(default=1024, ge=16)
    """Characters of a run's output that the agent is shown."""
    timeout_s: float = Field(default=10, gt=0)
    """How long one run of code may take."""
    memory_mb: int = Field(default=256, ge=32)
    sandbox: str = "bwrap"


class InterpreterEnvironment:
    """One place to solve problems in, with a sandboxed Python."""

    def __init__(
        self, options: InterpreterOptions, worker: ForeignWorker, python: PythonRunner
    ) -> None:
        self._options = options
        self._worker = worker
        self._python = python
        self._generators = _chosen(options)
        self._task: dict[str, Any] = {}
        self._turns = 0
        self._runs = 0
        self._done = True
        self._score = 0.0
        self._answer: str | None = None

    async def tasks(self, split: str) -> list[str]:
        if split not in ("train", "test"):
            raise ConfigError(f"interpreter has the splits train, test, not {split!r}")
        numbers = range(self._options.test if split == "test" else self._options.train)
        return [f"{name}-{split}-{number}" for number in numbers for name in self._generators]

    async def reset(self, task: str) -> tuple[list[Message], list[Tool]]:
        name, split, number = [*task.split("-"), "", ""][:3]
        if split not in ("train", "test") or task not in await self.tasks(split):
            raise ConfigError(f"interpreter has no task {task!r}; tasks(split) lists those it has")
        await self._python.forget()
        self._task = {
            "name": name,
            "seed": self._options.seed,
            "config": EASY[name] if self._options.level == "easy" else {},
            "split": split,
            "number": int(number),
        }
        question = await self._worker.ask("question", **self._task)
        self._turns = self._runs = 0
        self._done, self._score, self._answer = False, 0.0, None
        return [
            {"role": "system", "content": SYSTEM},
            *_examples(self._options.examples),
            {"role": "user", "content": question},
        ], [TOOL]

    async def step(self, reply: Message) -> tuple[list[Message], bool]:
        if self._done:
            raise EnvironmentFailure("step after the end of an attempt; call reset first")
        self._turns += 1
        calls = list(calls_of(reply))
        self._done = not calls or self._turns >= self._options.max_turns
        if not calls:
            await self._grade(answer_in(str(reply.get("content") or "")))
        if self._done:
            return [], True
        return [
            {"role": "tool", "tool_call_id": made["id"], "content": await self._run(call)}
            for made, call in zip(reply["tool_calls"], calls, strict=True)
        ], False

    async def score(self) -> tuple[float, dict[str, Any]]:
        if not self._task:
            raise EnvironmentFailure("score before any attempt; call reset first")
        return self._score, {
            "generator": self._task["name"],
            "answered": self._answer is not None,
            "runs": self._runs,
            "turns": self._turns,
        }

    async def _grade(self, answer: str | None) -> None:
        self._answer = answer
        if answer is None:
            return
        found = await self._worker.ask(
            "score", text=answer, exact=self._task["name"] in EXACT, **self._task
        )
        self._score = float(found)

    async def _run(self, call: Call) -> str:
        code = call.arguments.get("code")
        if call.name != NAME:
            return f"There is no tool {call.name!r}; there is {NAME}."
        if not isinstance(code, str):
            return f"{NAME} takes its Python as the text `code`."
        self._runs += 1
        return await self._python.run(code) or "(no output)"


def answer_in(text: str) -> str | None:
    """The one answer of a reply, or None where it gives none, several or an endless one."""
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    if len(found) != 1 or text.count("<answer>") != 1:
        return None
    answer = str(found[0]).strip()
    return answer if 0 < len(answer) <= LONGEST else None


def _examples(count: int) -> list[Message]:
    shown: list[Message] = []
    for number, (question, code, answer) in enumerate(EXAMPLES[:count]):
        shown += [
            {"role": "user", "content": question},
            call_message(f"call_{number}", Call(NAME, {"code": code})),
            {"role": "tool", "tool_call_id": f"call_{number}", "content": answer},
            {"role": "assistant", "content": f"<answer>{answer}</answer>"},
        ]
    return shown


def _chosen(options: InterpreterOptions) -> tuple[str, ...]:
    known = tuple(EASY) if options.level == "easy" else GENERATORS
    unknown = [name for name in options.generators if name not in known]
    if unknown:
        raise ConfigError(
            f"interpreter has no generator {unknown[0]!r} at level {options.level}; "
            f"it has {', '.join(known)}"
        )
    return tuple(options.generators) or known


@asynccontextmanager
async def open_environment(options: dict[str, Any]) -> AsyncIterator[InterpreterEnvironment]:
    """A place with a sandbox of its own; all places of a process share the worker."""
    read = read_options(InterpreterOptions, "interpreter", options)
    _chosen(read)
    foreign = Foreign(
        script=SCRIPT, package="reasoning_gym", python=read.python, timeout_s=WORKER_S
    )
    async with (
        share_worker(foreign) as worker,
        open_python(
            backend=read.sandbox,
            seconds=read.timeout_s,
            limit=read.observation,
            memory_mb=read.memory_mb,
        ) as python,
    ):
        yield InterpreterEnvironment(read, worker, python)
