"""What README.md and docs/ show can be run, opened and found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from instar.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PARTS = ("", "src/instar", "tests", "tests/gpu", "docs", "src/instar/envs")
"""Where the paths that pages name begin."""


def name_of(page: Path) -> str:
    return page.name


def anchors(page: Path) -> set[str]:
    """Headings as links name them."""
    found = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in found}


def shown(text: str) -> Iterator[tuple[Any, list[str]]]:
    """Each `instar ...` of a text: the command, and the words after its name."""
    for line in re.findall(r"(?:^|[`\s])instar ([a-z][^\n`|]*)", text):
        command: Any = typer.main.get_command(app)
        # What follows stands beside a command, or is another one.
        words = re.split(r"\s{2,}| && | #", line)[0].split()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if not hasattr(command, "commands"):
            yield command, words


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_option_that_is_shown_exists(page: Path) -> None:
    for command, words in shown(page.read_text("utf-8")):
        given = {word.rstrip(".,;:)") for word in words if word.startswith("--")}
        if command.name == "bench" and words and words[0].isidentifier():
            script = (ROOT / "benchmarks" / f"{words[0]}.py").read_text("utf-8")
            known = set(re.findall(r'"(--[a-z-]+)"', script))
        else:
            known = {name for param in command.params for name in param.opts}
            known |= {name for param in command.params for name in param.secondary_opts}
        assert given <= known | {"--help"}, f"instar {command.name} {' '.join(words)}"


def test_the_rule_itself() -> None:
    found = [(one.name, words) for one, words in shown("`instar up --prot 1` and instar judge run")]
    assert found == [("up", ["--prot", "1"]), ("run", [])]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_source_that_is_named_exists(page: Path) -> None:
    named = re.findall(
        r"`((?:[a-z_]+/)+[\w.]+\.(?:py|sh|yaml|json|jsonl))`", page.read_text("utf-8")
    )
    outside = {"tests/test.sh", "solution/solve.sh"}  # of a Harbor task
    for path in set(named) - outside:
        assert any((ROOT / part / path).exists() for part in PARTS), path


def test_every_part_has_its_row_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    parts = {path.name for path in (ROOT / "src/instar").iterdir() if path.suffix == ".py"}
    parts |= {f"{path.parent.name}/" for path in (ROOT / "src/instar").glob("*/__init__.py")}
    missing = [one for one in parts if f"`{one}`" not in rows and not one.startswith("__")]
    assert missing == []
