"""Repositories with failing tests: the agent mends the source, the tests decide.

Tasks have SWE-bench's record form. The agent works in a sandbox with bash and an editing tool.
Graded is its change alone, in a fresh copy, where it could alter nothing that decides how tests
run. The reward is 1 where every FAIL_TO_PASS and PASS_TO_PASS test passes, else 0.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from instar.envs.actions import (
    BASH,
    SUBMIT_TOOL,
    Call,
    Style,
    function,
    told,
)
from instar.envs.options import EnvironmentOptions, of_split, read_options
from instar.envs.sandbox import Limits, Sandbox, limits_from
from instar.envs.sandboxed import SandboxEnvironment, Score
from instar.envs.swe_grade import change_of, grade
from instar.envs.swe_records import DEFAULT, Record, load_records
from instar.envs.swe_repo import WORKDIR, image_of, spec_for
from instar.errors import ConfigError
from instar.types import Message, Tool

SYSTEM = (
    f"You mend software. The repository is in {WORKDIR}, where you have a bash shell; run its "
    "tests with python3 -m pytest. Change the source, not the tests: they are put back before "
    "grading. "
)
HOW = {
    "tools": "Use the tools bash and edit. When the bug is mended, call submit.",
    "fenced": "Write one command or script in a ```bash block in each reply; you are shown what "
    "it prints. When the bug is mended, reply without a block.",
    "command": "Reply with one bash command and nothing else. When the bug is mended, reply with "
    "the word submit.",
}
EDIT = function(
    "edit",
    "Replace a text that occurs exactly once in a file. With an empty old text, make a new file.",
    {
        "path": f"The file, from {WORKDIR} on.",
        "old": "The text to replace, with enough around it to be found once.",
        "new": "The text to put there.",
    },
    ["path", "old", "new"],
)
EDITOR = """
import json, os, sys
call = json.load(sys.stdin)
path, old, new = call["path"], call["old"], call["new"]
def fail(why):
    sys.exit(f"error: {why}; nothing was changed")
if not old:
    if os.path.exists(path):
        fail(f"{path} exists already: say which text to replace")
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    open(path, "w", encoding="utf-8", newline="").write(new)
else:
    if not os.path.isfile(path):
        fail(f"there is no file {path}")
    text = open(path, encoding="utf-8", newline="").read()
    count = text.count(old)
    if count != 1:
        fail(f"the old text occurs {count} times in {path}, expected once")
    open(path, "w", encoding="utf-8", newline="").write(text.replace(old, new))
print(f"changed {path}")
"""


class SweOptions(EnvironmentOptions):
    """Options of `swe`."""

    tasks: Path = DEFAULT
    """A file in SWE-bench's form: JSONL, JSON or (with pyarrow) Parquet."""
    site: Path | None = None
    """A folder with pytest and what the tests need; by default site/ beside the tasks."""
    max_steps: int = Field(default=50, ge=1)
    style: Style = "tools"
    backend: str = "bwrap"
    memory_mb: int = 1024
    processes: int = 128
    cpus: float = 1.0
    disk_mb: int = 256
    seconds: float = 60.0
    """How long one command may take."""
    tests_s: float = 300.0
    """How long the tests may take when the attempt is graded."""
    output_kb: int = 8


class SweEnvironment(SandboxEnvironment[Record]):
    """A sandbox over one repository at a time."""

    tools: Sequence[Tool] = (BASH, EDIT, SUBMIT_TOOL)

    def __init__(self, options: SweOptions) -> None:
        super().__init__(style=options.style, backend=options.backend)
        self._options = options
        self._records = {record.instance_id: record for record in _all(options.tasks)}
        self._limits: Limits = limits_from(options.model_dump())
        self._image = Path()

    async def tasks(self, split: str) -> list[str]:
        return of_split(
            ((record.instance_id, record.split) for record in self._records.values()), split
        )

    async def reset(self, task: str) -> tuple[list[Message], list[Tool]]:
        if task not in self._records:
            raise ConfigError(f"there is no SWE task {task!r}")
        record = self._records[task]
        # An attempt under way is graded with this image: it ends before the image is another.
        await self.close()
        self._image = await image_of(record)
        await self._begin(record, spec_for(self._image, self._site(record), self._limits))
        return self._first(SYSTEM + HOW[self._options.style], record.problem_statement)

    def _site(self, record: Record) -> Path | None:
        site = self._options.site or record.folder / "site"
        return site if site.is_dir() else None

    def _limit(self, task: Record) -> tuple[str, int]:
        return task.instance_id, self._options.max_steps

    async def _act(self, sandbox: Sandbox, call: Call) -> str:
        if call.name == "edit":
            line = f"exec python3 -I -c {shlex.quote(EDITOR)}"
            ran = await sandbox.execute(line, stdin=json.dumps(call.arguments).encode())
            return (ran.stdout or ran.stderr).strip() or told(ran)
        return told(await sandbox.run(call.arguments["command"]))

    async def _graded(self, sandbox: Sandbox, task: Record) -> Score:
        patch = await change_of(sandbox)
        tested = await grade(
            self._image,
            patch,
            task.test_patch,
            task.test_files,
            site=self._site(task),
            limits=self._limits,
            backend=self._options.backend,
            seconds=self._options.tests_s,
        )
        mended = [test for test in task.fail_to_pass if test in tested.passed]
        kept = [test for test in task.pass_to_pass if test in tested.passed]
        whole = len(mended) + len(kept) == len(task.fail_to_pass) + len(task.pass_to_pass)
        return float(whole and bool(patch)), {
            "fail_to_pass": f"{len(mended)}/{len(task.fail_to_pass)}",
            "pass_to_pass": f"{len(kept)}/{len(task.pass_to_pass)}",
            "model_patch": patch[:20_000].encode("utf-8", "replace").decode(),
        }


@cache
def _all(path: Path) -> tuple[Record, ...]:
    return tuple(load_records(path))


@asynccontextmanager
async def open_environment(options: dict[str, Any]) -> AsyncIterator[SweEnvironment]:
    """A place to mend repositories in."""
    environment = SweEnvironment(read_options(SweOptions, "swe", options))
    try:
        yield environment
    finally:
        await environment.close()
