"""The terminal tasks that come with instar: one YAML file a kind, in data/terminal/.

A task is an instruction, files or a script that make the starting state, checks (a name and a
bash condition each), and a solution that passes them. `vary` makes several tasks of one: each of
its entries fills the {{names}} in all texts. `instar tasks export` writes them as Harbor folders.
"""

from __future__ import annotations

import logging
import posixpath
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from instar.envs.harbor import WORKDIR, Task
from instar.envs.options import of_split
from instar.errors import ConfigError

log = logging.getLogger(__name__)
DATA = Path(__file__).parent / "data" / "terminal"
KEYS = {
    *("id", "difficulty", "instruction", "files", "setup", "checks", "solution"),
    *("vary", "max_steps", "needs"),
}
_HOLE = re.compile(r"\{\{(\w+)\}\}")

_TEST = """\
#!/bin/bash
# Every check that holds is worth the same. `output` is the last thing the agent's commands printed.
output=$(cat /logs/agent/stdout.txt 2>/dev/null)
passed=0
check() {{
  if ( eval "$2" ) >/dev/null 2>&1 </dev/null; then
    echo "PASS $1"; passed=$((passed + 1))
  else
    echo "FAIL $1"
  fi
}}
{checks}
mkdir -p /logs/verifier
[ $passed = {count} ] && reward=1 || reward=$(printf '0.%04d' $((passed * 10000 / {count})))
echo $reward > /logs/verifier/reward.txt
"""


@cache
def shipped() -> tuple[Task, ...]:
    """All tasks that come with instar and can be played on this machine, always in one order."""
    tasks, lacking = list[Task](), dict[str, set[str]]()
    for task in (task for path in sorted(DATA.glob("*.yaml")) for task in read_file(path)):
        missing = {program for program in task.needs if shutil.which(program) is None}
        if missing:
            lacking[task.id] = missing
        else:
            tasks.append(task)
    if lacking:
        names = ", ".join(sorted(set().union(*lacking.values())))
        log.warning("%d terminal tasks are left out: they need %s", len(lacking), names)
    return tuple(tasks)


def read_file(path: Path) -> Iterator[Task]:
    """The tasks of one file, whose name is their kind."""
    for record in yaml.safe_load(path.read_text(encoding="utf-8")):
        if unknown := set(record) - KEYS:
            raise ConfigError(f"{path.name}: {record.get('id')} has unknown keys {unknown}")
        variants = record.pop("vary", None)
        for number, values in enumerate(variants or [{}], 1):
            task = _task(_filled(record, values), path.stem)
            yield replace(task, id=f"{task.id}-{number}") if variants else task


def worked_examples(task: Task, tasks: Iterable[Task], count: int, *, alike: int = 0) -> list[Task]:
    """Train tasks to show with their solutions before this one: always the same for a task.

    `alike` of them are variants of the task itself, where there are any; the others are not, and
    are variants of a task each.
    """
    everyone = list(tasks)
    train = set(of_split(((one.id, one.split) for one in everyone), "train"))
    fit = [one for one in everyone if one.id in train and len(one.solution.split("\n")) == 2]
    rng = Random(task.id)
    rng.shuffle(fit)
    same = [one for one in fit if kind_of(one) == kind_of(task) and one.id != task.id]
    others = {kind_of(one): one for one in fit if kind_of(one) != kind_of(task)}
    shown = [*same[: min(alike, count)], *others.values()][:count]
    rng.shuffle(shown)
    return shown


def kind_of(task: Task) -> str:
    """What the variants of one task have in common: the id without its number."""
    name, _, number = task.id.rpartition("-")
    return name if number.isdigit() else task.id


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """The same with every {{name}} replaced."""
    if isinstance(value, dict):
        return {_filled(key, values): _filled(one, values) for key, one in value.items()}
    if isinstance(value, str):
        return _HOLE.sub(lambda found: str(values[found[1]]), value)
    return value


def _task(record: Mapping[str, Any], kind: str) -> Task:
    checks = record["checks"]
    lines = (f"check {shlex.quote(name)} {shlex.quote(text)}" for name, text in checks.items())
    return Task(
        id=record["id"],
        instruction=record["instruction"].strip(),
        kind=kind,
        difficulty=record["difficulty"],
        workdir=WORKDIR,
        setup=_setup(record.get("files", {}), record.get("setup", "")),
        tests={"test.sh": _TEST.format(checks="\n".join(lines), count=len(checks))},
        solution=record["solution"].strip() + "\n",
        max_steps=record.get("max_steps"),
        needs=tuple(record.get("needs", ())),
    )


def _setup(files: Mapping[str, str], script: str) -> str:
    folders = sorted({folder for path in files if (folder := posixpath.dirname(path))})
    lines = [f"mkdir -p {shlex.join(folders)}"] if folders else []
    for path, text in files.items():
        lines.append(f"printf %s {shlex.quote(text)} > {shlex.quote(path)}")
    return "\n".join([*lines, script.strip()]).strip() + "\n"
