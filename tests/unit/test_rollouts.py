"""What was collected, read back: from a home, a database, an export; and the trial run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from store_turns import follow, make_turn, user
from typer.testing import CliRunner

import instar
from instar import test_rollout
from instar.errors import ConfigError, StoreError
from instar.record.export import export_sessions
from instar.record.store import open_store
from instar.types import Hint, NextState, Verdict


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with a session, and an export of it beside."""
    exports = tmp_path / "rollouts"
    exports.mkdir()
    (exports / "anna.jsonl").write_bytes(b"".join(asyncio.run(fill(tmp_path))))
    return tmp_path


async def fill(tmp_path: Path) -> list[bytes]:
    async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
        said = NextState(messages=(user("Shorter."),), turn="t2")
        verdict = Verdict(score=-1, votes=(-1, -1, 0))
        first = make_turn("t1", next_state=said, verdict=verdict, hint=Hint(text="Be brief."))
        for turn in (first, follow(first, "t2"), follow(first, "t3", kind="side", no_train=True)):
            await store.record(turn)
        return [line async for line in export_sessions(store)]


@pytest.mark.parametrize("place", ["", "instar.db", "rollouts", "rollouts/anna.jsonl"])
def test_sessions_are_the_same_wherever_they_are_read_from(home: Path, place: str) -> None:
    sessions = instar.inspect_sessions(str(home / place))
    assert list(sessions) == ["s1"]
    data = sessions["s1"]
    # As the lines of OpenClaw-RL's guide use it.
    assert len(data) == 3
    assert sum(1 for i in data if i["type"] == "main") == 2
    assert sum(1 for i in data if i["type"] == "side") == 1
    assert [i for i in data if i["role"] in ["user", "assistant"]] == data
    assert [i["reward"] for i in data] == [-1, None, None]
    first = data[0]
    assert (first["content"], first["hint"]) == ("Hi.", "Be brief.")
    assert first["messages"] == [{"role": "user", "content": "Hello"}]
    assert first["next_state"] == [{"role": "user", "content": "Shorter."}]
    assert first["logprobs"] == [-0.5, -1.0, -1.5]
    assert data[1]["parent"] == "t1"
    assert [i["no_train"] for i in data] == [False, False, True]
    assert [i["extends"] for i in data] == [False, True, True]


def test_an_export_of_an_older_instar_leaves_open_what_it_does_not_say(home: Path) -> None:
    file = home / "rollouts" / "anna.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        del line["no_train"], line["extends"]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    data = instar.inspect_sessions(file)["s1"]
    assert [(i["no_train"], i["extends"]) for i in data] == [(None, None)] * 3


async def test_one_owner_or_all(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/instar.db"
    async with open_store(url) as store:
        await store.record(make_turn("t1", owner="anna"))
        await store.record(make_turn("t2", owner="ben"))
        await store.record(make_turn("t3", owner="ben", session="s2"))
    assert list(instar.inspect_sessions(url)) == ["anna/s1", "ben/s1", "s2"]
    assert list(instar.inspect_sessions(tmp_path, owner="ben")) == ["s1", "s2"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: None, "found no"),
        (lambda p: p.mkdir(), "neither instar.db nor"),
        (lambda p: p.write_text("no"), "line 1 is no turn"),
        (lambda p: p.write_text("{}\n"), "line 1 is no turn"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, make: Any, why: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(StoreError, match=why):
        instar.inspect_sessions(tmp_path / "x")


def test_a_trial_run_writes_rollouts(tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ["--num-samples", "4", "--output-dir", str(output), "--home", str(tmp_path)]
    result = CliRunner().invoke(test_rollout.app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["sessions"] == found["side"] == 4
    assert 4 <= found["main"] <= 12
    sessions = instar.inspect_sessions(output)
    assert list(sessions) == [f"sample-00{number}" for number in range(4)]
    for turns in sessions.values():
        assert all(len(turn["sampled_ids"]) == len(turn["logprobs"]) > 0 for turn in turns)
        main = [turn for turn in turns if turn["type"] == "main"]
        assert [turn["parent"] for turn in main[1:]] == [turn["turn"] for turn in main[:-1]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert "4 sessions" in CliRunner().invoke(test_rollout.app, arguments).output


def test_a_trial_run_says_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "instar.test_rollout", "--output-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, "--set", "engine.type=warp"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error:") and "engine.type" in done.stderr


def test_a_trial_run_is_not_written_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    result = CliRunner().invoke(test_rollout.app, ["--output-dir", str(tmp_path / "x")])
    assert isinstance(result.exception, ConfigError) and "--output-dir" in str(result.exception)
