"""What takes too long for every run: all variants of all tasks, real packages, real Harbor folders.

make test-envs
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from test_swe import CHEATS, mend, rewards, tasks
from test_swe import play as play_swe
from test_terminal import gold_and_nothing

from instar.envs import harbor
from instar.envs.swe_make import Wanted, make_tasks
from instar.envs.swe_records import load_records
from instar.envs.terminal_tasks import shipped
from instar.errors import ConfigError

__all__ = ["tasks"]  # a fixture
PACKAGES = ("inflection==0.5.1", "toolz==1.0.0")


async def test_every_variant_of_every_terminal_task() -> None:
    assert await gold_and_nothing(list(shipped())) == {}


async def test_every_task_as_a_harbor_folder(tmp_path: Path) -> None:
    """But those with processes: what a Dockerfile starts is gone when the agent comes."""
    for task in shipped():
        harbor.write(task, tmp_path)
    loaded = [task for task in harbor.load_folder(tmp_path) if task.id != "stop-process"]
    assert len(loaded) == len(shipped()) - 1
    assert await gold_and_nothing(loaded, tasks=str(tmp_path)) == {}


@pytest.mark.parametrize("package", PACKAGES)
async def test_tasks_of_real_packages(package: str, tmp_path: Path) -> None:
    """Needs PyPI."""
    try:
        made = await make_tasks([package], tmp_path, Wanted(count=3), extras=(), say=print)
    except ConfigError as error:
        pytest.skip(str(error))
    tasks = tmp_path / "tasks.jsonl"
    records = load_records(tasks)
    assert [record.instance_id for record in records] == [one.instance_id for one in made]
    assert len(records) == 3
    for record in records:
        solved, nothing = await asyncio.gather(
            play_swe(tasks, record, mend(record)), play_swe(tasks, record)
        )
        assert (solved[0], nothing[0]) == (1.0, 0.0)
    rows = [json.loads(line) for line in tasks.read_text().splitlines()]
    assert all({"instance_id", "FAIL_TO_PASS", "patch"} <= set(row) for row in rows)


async def test_no_trick_passes_alone(tasks: Path) -> None:
    found = await rewards(tasks, list(CHEATS.values()))
    assert [name for name, reward in zip(CHEATS, found, strict=True) if reward] == []
