"""`instar bench`: the measurements in benchmarks/, by name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from instar.commands.common import Json, print_json
from instar.errors import ConfigError


def bench(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Which one; without it they are listed.", metavar="NAME")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a benchmark from a checkout; what follows its name goes to it."""
    scripts = _scripts(_folder())
    if name is None:
        if as_json:
            print_json({key: _summary(path) for key, path in scripts.items()})
        for key, path in {} if as_json else scripts.items():
            typer.echo(f"{key:<12} {_summary(path)}")
        return
    if name not in scripts:
        raise ConfigError(f"found no benchmark {name}; there are {', '.join(scripts) or 'none'}")
    more = ["--json"] if as_json else []
    raise typer.Exit(
        subprocess.run([sys.executable, str(scripts[name]), *context.args, *more]).returncode
    )


def _folder() -> Path:
    """The benchmarks of the checkout that instar runs from, else of the current folder."""
    for root in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (root / "benchmarks").is_dir() and (root / "pyproject.toml").is_file():
            return root / "benchmarks"
    raise ConfigError(
        "found no folder benchmarks/; benchmarks are part of a checkout of instar, "
        "so clone the repository and run this in it"
    )


def _scripts(folder: Path) -> dict[str, Path]:
    files = (path for path in sorted(folder.glob("*.py")) if not path.name.startswith("_"))
    return {path.stem.removeprefix("bench_"): path for path in files}


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
