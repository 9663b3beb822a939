"""`instar tasks` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from instar.cli import app
from instar.envs.terminal_tasks import shipped

run = CliRunner().invoke


def test_listing() -> None:
    found = run(app, ["tasks", "list", "terminal", "--split", "test", "--json"])
    assert found.exit_code == 0
    assert len(json.loads(found.stdout)) == len(shipped()) // 4
    chosen = run(app, ["tasks", "list", "terminal", "--option", "task_type=system"])
    assert "stop-process" in chosen.stdout.split()
    wrong = run(app, ["tasks", "list", "terminal", "--option", "colour=red"])
    assert wrong.exit_code == 2 and "colour" in wrong.stderr and "task_type" in wrong.stderr
    half = run(app, ["tasks", "list", "terminal", "--option", "task_type"])
    assert half.exit_code == 2 and "not of the form name=value" in half.stderr
    assert "there is no environment 'x'" in run(app, ["tasks", "list", "x"]).stderr


def test_writing_harbor_folders(tmp_path: Path) -> None:
    found = run(app, ["tasks", "export", str(tmp_path)])
    assert found.stdout.startswith(f"{len(shipped())} tasks")
    assert (tmp_path / "create-file-1" / "instruction.md").read_text() == (
        "Create an empty file named a.txt.\n"
    )
    parts = {path.name for path in (tmp_path / "create-file-1").iterdir()}
    assert parts == {"environment", "instruction.md", "solution", "task.toml", "tests"}


def test_packages_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "site" / "pytest").mkdir(parents=True)
    found = run(app, ["tasks", "make-swe", "no such thing", "--out", str(tmp_path)])
    assert found.exit_code == 2 and "neither a file nor a package name" in found.stderr
