"""Tasks at a bash prompt, in a sandbox, graded by checks of what is there in the end.

The shell stays open between commands. What a command did (exit code, output, errors) is what the
agent sees next. The reward is the share of a task's checks that hold; they run after every
process of the agent has been killed, with files that it has never seen.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from instar.envs import harbor
from instar.envs.actions import BASH, SUBMIT_TOOL, Call, Style, example, told
from instar.envs.options import EnvironmentOptions, of_split, read_options, split_list
from instar.envs.sandbox import Sandbox, Spec, limits_from, pack, pack_all
from instar.envs.sandboxed import SandboxEnvironment, Score
from instar.envs.terminal_tasks import shipped, worked_examples
from instar.errors import ConfigError, EnvironmentFailure
from instar.types import Message, Tool

SETUP_S = 120.0
SYSTEM = "You work at a bash shell in the folder {workdir}. Do what the person asks. {how}"
HOW = {
    "tools": "Run commands with the tool bash, one at a time, and look at what they print. When "
    "everything is done, call the tool submit.",
    "fenced": "Write one command or script in a ```bash block in each reply; you are shown what "
    "it prints. When everything is done, reply without a block.",
    "command": "Reply with one bash command and nothing else. When everything is done, reply "
    "with the word submit.",
}
GRADE = r"""
find /tests /logs -mindepth 1 -delete
tar -xf - -C / --no-same-owner || { printf '\036full\036'; exit; }
export HOME=/logs PYTHONNOUSERSITE=1 PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=core.fsmonitor
export GIT_CONFIG_VALUE_0=false GIT_CONFIG_KEY_1=core.hooksPath GIT_CONFIG_VALUE_1=/dev/null
bash /tests/test.sh </dev/null 2>&1
cd /logs/verifier
[ -f reward.json ] && reward=$(<reward.json) || reward=$(<reward.txt)
printf '\036%s\036' "$reward"
[ "$reward" ] || df --output=avail /logs
"""
"""Runs the tests. What the agent could have left to change them is turned off: start-up files of
Python, hooks of git, modules in the working folder that stand before the real ones."""


class TerminalOptions(EnvironmentOptions):
    """Options of `terminal`."""

    tasks: Path | None = None
    """A folder of Harbor tasks to play instead of those that come with instar."""
    task_type: Annotated[tuple[str, ...], BeforeValidator(split_list)] = ()
    """Kinds of tasks to play; by default all."""
    difficulty: Annotated[tuple[str, ...], BeforeValidator(split_list)] = ()
    max_steps: int | None = Field(default=None, ge=1)
    """Commands after which the attempt ends; by default what the task says, else 50."""
    style: Style = "tools"
    examples: int = Field(default=0, ge=0)
    """How many other tasks of the train split, with their solutions, a conversation begins with."""
    alike: int = Field(default=0, ge=0)
    """How many of them are variants of the task itself."""
    backend: str = "bwrap"
    root: Path | None = None
    image: str = Spec().image
    memory_mb: int = 512
    processes: int = 64
    cpus: float = 1.0
    disk_mb: int = 64
    seconds: float = 30.0
    """How long one command may take."""
    output_kb: int = 4


class TerminalEnvironment(SandboxEnvironment[harbor.Task]):
    """A sandbox with a shell, for one task at a time."""

    tools: Sequence[Tool] = (BASH, SUBMIT_TOOL)

    def __init__(self, options: TerminalOptions) -> None:
        super().__init__(style=options.style, backend=options.backend)
        self._options = options
        self._tasks = {task.id: task for task in _chosen(options)}
        self._printed = b""

    async def tasks(self, split: str) -> list[str]:
        return of_split(((task.id, task.split) for task in self._tasks.values()), split)

    async def reset(self, task: str) -> tuple[list[Message], list[Tool]]:
        if task not in self._tasks:
            raise ConfigError(f"there is no terminal task {task!r}")
        options, chosen, self._printed = self._options, self._tasks[task], b""
        spec = Spec(
            limits=limits_from(options.model_dump()),
            workdir=chosen.workdir,
            env=chosen.env,
            root=options.root,
            image=options.image,
        )
        await self._set_up(await self._begin(chosen, spec), chosen)
        system = SYSTEM.format(workdir=chosen.workdir, how=HOW[options.style])
        shown = worked_examples(chosen, self._tasks.values(), options.examples, alike=options.alike)
        before: list[Message] = []
        for number, one in enumerate(shown):
            before.append({"role": "user", "content": one.instruction})
            before += example(one.solution.strip(), options.style, f"call_{number}")
        return self._first(system, chosen.instruction, before)

    async def _set_up(self, sandbox: Sandbox, task: harbor.Task) -> None:
        ran = None
        if task.context is not None:
            unpack = f"mkdir -p {harbor.CONTEXT} && tar -xf - --no-same-owner -C {harbor.CONTEXT}"
            script = f"{unpack} && set -e\n{task.setup}\nrm -rf {harbor.CONTEXT}"
            ran = await sandbox.execute(script, stdin=pack(task.context), seconds=SETUP_S)
        elif task.setup.strip():
            # In the agent's shell: it is started anyway, and processes that belong to the task
            # are there for the agent to see.
            ran = await sandbox.run(f"( set -e\n{task.setup}\n)", SETUP_S)
        if ran is not None and ran.code:
            said = (ran.stderr or ran.stdout).strip()[-500:]
            raise EnvironmentFailure(f"the task {task.id} could not be set up: {said}")

    def _limit(self, task: harbor.Task) -> tuple[str, int]:
        return task.id, self._options.max_steps or task.max_steps or 50

    async def _act(self, sandbox: Sandbox, call: Call) -> str:
        ran = await sandbox.run(call.arguments["command"])
        self._printed = ran.out if ran.out.strip() else self._printed
        return told(ran)

    async def _graded(self, sandbox: Sandbox, task: harbor.Task) -> Score:
        about = {"stdout.txt": self._printed, "answer.txt": self._answer.encode("utf-8", "replace")}
        empty = {"logs/verifier/.keep": ""}
        files = pack_all({"tests": task.tests, "logs/agent": about, "": empty})
        script = f"cd {shlex.quote(task.workdir)} || cd /\n{GRADE}"
        ran = await sandbox.execute(script, stdin=files, seconds=task.verifier_s)
        if ran.timed_out:
            # A file that makes its reader wait is the agent's doing more often than not.
            return 0.0, {"why": f"the checks took over {task.verifier_s:g} s"}
        printed, _, rest = ran.stdout.partition("\x1e")
        written, _, room = rest.partition("\x1e")
        checks = dict(_checks(printed))
        reward = _reward(written)
        full = written == "full" or room.split()[-1:] == ["0"]
        if reward is None and full:
            return 0.0, {"why": "the agent filled the disk, so nothing can be checked"}
        if reward is None:
            raise EnvironmentFailure(
                f"the tests of {task.id} left no reward in /logs/verifier; they printed: "
                f"{printed.strip()[-500:] or 'nothing'}"
            )
        return reward, {"checks": checks} if checks else {}


def _checks(printed: str) -> list[tuple[str, bool]]:
    words = (line.partition(" ") for line in printed.splitlines())
    return [(rest, word == "PASS") for word, _, rest in words if word in ("PASS", "FAIL")]


def _reward(written: str) -> float | None:
    """The number in reward.txt, or `reward` or else the mean in reward.json; 0 to 1."""
    try:
        found = json.loads(written)
        if isinstance(found, dict):
            values = [float(value) for value in found.values()]
            found = found.get("reward", sum(values) / len(values) if values else None)
        return min(1.0, max(0.0, float(found)))
    except (ValueError, TypeError):
        return None


@cache
def _all(folder: Path | None) -> tuple[harbor.Task, ...]:
    return shipped() if folder is None else tuple(harbor.load_folder(folder.expanduser()))


def _chosen(options: TerminalOptions) -> list[harbor.Task]:
    tasks = _all(options.tasks)
    for option, name in ((options.task_type, "kind"), (options.difficulty, "difficulty")):
        known = list(dict.fromkeys(getattr(task, name) for task in _all(options.tasks)))
        if unknown := [one for one in option if one not in known]:
            raise ConfigError(f"there are no tasks of {name} {unknown[0]}; known: {known}")
        tasks = tuple(task for task in tasks if not option or getattr(task, name) in option)
    return list(tasks)


@asynccontextmanager
async def open_environment(options: dict[str, Any]) -> AsyncIterator[TerminalEnvironment]:
    """A terminal to play tasks at."""
    environment = TerminalEnvironment(read_options(TerminalOptions, "terminal", options))
    try:
        yield environment
    finally:
        await environment.close()
