"""`instar config`: what is set, by whom, and whether a file is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from instar.commands.common import (
    DEFAULT_HOME,
    File,
    Home,
    Json,
    Sets,
    console,
    print_json,
    resolve,
)

app = typer.Typer(no_args_is_help=True, help="See and check the settings.")


@app.command(
    epilog="Example: instar config show --config configs/vllm.yaml --set training.method=opd"
)
def show(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that are not at their default.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print every setting, its value and where the value came from.

    Secrets are read from environment variables; only whether they are set is shown.
    """
    from instar.config import SECRETS, secret

    resolved = resolve(home=home, file=file, sets=sets)
    rows = [
        (path, shown(value), source)
        for path, value, source in resolved.rows()
        if not changed or source != "default"
    ]
    secrets = {name: secret(name) is not None for name in SECRETS}
    if as_json:
        settings = {path: {"value": value, "source": source} for path, value, source in rows}
        print_json({"settings": settings, "secrets": secrets})
        return
    _print_rows(rows)
    names = [name for name, there in secrets.items() if there]
    typer.echo(f"\nsecrets in the environment: {', '.join(names) or 'none'}")


@app.command(epilog="Example: instar config check configs/training_config.yaml")
def check(
    file: Annotated[Path, typer.Argument(help="A YAML or JSON file.", metavar="FILE")],
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Load a file and list every mistake in it; exit code 2 where there is one."""
    from instar.config_load import load_config
    from instar.errors import ConfigError

    try:
        resolved = load_config(file, sets or ())
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"ok": False, "file": str(file), "error": str(error)})
        raise typer.Exit(2) from None
    count = sum(source != "default" for source in resolved.sources.values())
    notes = _missing_paths(resolved.rows())
    if as_json:
        print_json({"ok": True, "file": str(file), "settings": count, "notes": notes})
        return
    typer.echo(f"{file} is right: {count} settings.")
    for note in notes:
        typer.echo(f"note: {note}")


@app.command(hidden=True)
def docs(
    folder: Annotated[Path, typer.Argument(help="Where config.md and cli.md go.")] = Path("docs"),
    as_json: Json = False,
) -> None:
    """Write docs/config.md and docs/cli.md from the code."""
    from instar.commands.reference import pages

    written = []
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(str(folder / name))
    print_json(written) if as_json else typer.echo("\n".join(written))


def shown(value: Any) -> Any:
    """A value as it may be printed: plain, and without the password of a database address."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return re.sub(r"(?<=://)([^:/@]*):[^@]*@", r"\1:***@", value)
    return value


def _print_rows(rows: list[tuple[str, Any, str]]) -> None:
    import json

    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("setting", "value", "from"):
        table.add_column(name, overflow="fold")
    for path, value, source in rows:
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        style = "dim" if source == "default" else "green"
        table.add_row(Text(path), Text(written), Text(source, style=style))
    console().print(table)


def _missing_paths(rows: Any) -> list[str]:
    return [
        f"{path} is {value}, which is not here"
        for path, value, _ in rows
        if isinstance(value, Path) and not value.exists()
    ]
