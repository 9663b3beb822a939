"""`instar connect`: point a client that people already use at this instar, and undo it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from instar.commands.common import DEFAULT_HOME, File, Home, Json, Sets, print_json, resolve_last
from instar.errors import ConfigError

if TYPE_CHECKING:
    from instar.config import Config
    from instar.connect.plan import Change, Edit, Plan, Server

EPILOG = "Example: instar connect openclaw\n\nUndo it with: instar connect openclaw --remove"


def connect(
    client: Annotated[
        str | None,
        typer.Argument(help="Which one; without it, all are listed.", metavar="CLIENT"),
    ] = None,
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Where instar listens, with /v1.", metavar="URL"),
    ] = None,
    key: Annotated[
        str, typer.Option("--key", help="A key of `instar keys create`, if keys are needed.")
    ] = "local",
    context: Annotated[
        int | None,
        typer.Option("--context", min=16, help="Tokens of prompt and reply together."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="The client's folder, if not the usual one.", metavar="DIR"),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take everything out again.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before writing.")] = False,
    as_json: Json = False,
) -> None:
    """Point a client at this instar: shows what it would change, asks, keeps a backup."""
    from instar.connect import CLIENTS

    if client is None:
        _list(as_json)
        return
    if client not in CLIENTS:
        raise ConfigError(f"found no client {client!r}; known are {', '.join(CLIENTS)}")
    chosen = CLIENTS[client]
    where = (folder or Path(chosen.folder)).expanduser()
    config = resolve_last(home=home, file=file, sets=sets)
    plan = chosen.plan(_server(config, url=url, key=key, context=context), where)
    changes = _changes(plan.edits, remove=remove)
    if as_json:
        print_json({"client": client, "says": plan.says, "diffs": [one.diff() for one in changes]})
        return
    if changes:
        _show(changes)
        if not yes and not typer.confirm("Write this?"):
            raise typer.Exit(1)
        _write(plan, changes, remove=remove)
    if not remove:
        typer.echo(plan.says)
    elif changes:
        typer.echo(f"{client} is as it was before.")
        if plan.parting:
            typer.echo(plan.parting)
    else:
        typer.echo(f"Found nothing of instar in {where}.")


def _server(config: Config, *, url: str | None, key: str, context: int | None) -> Server:
    from instar.connect.plan import Server

    host = config.gateway.host
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    url = (url or f"http://{host}:{config.gateway.port}/v1").rstrip("/")
    context = context or config.engine.context or 8192
    return Server(
        url=url if url.endswith("/v1") else f"{url}/v1",
        model=config.model.name,
        key=key,
        context=context,
        reply=min(config.gateway.default_max_tokens, context),
        sees=_sees(config),
    )


def _sees(config: Config) -> bool:
    """Whether the engine of this config takes images, as far as its files show."""
    engine, folder = config.engine, config.model.checkpoint_path
    if engine.type != "vllm":
        return engine.type == "fake" and engine.sees
    if engine.url is not None or folder is None:
        return False
    try:
        described = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(described, dict) and "vision_config" in described


def _changes(edits: tuple[Edit, ...], *, remove: bool) -> list[Change]:
    from instar.connect.plan import connecting, removing

    try:
        found = [(removing if remove else connecting)(edit) for edit in edits]
    except ConfigError as error:
        names = ", ".join(str(edit.file) for edit in edits[:1])
        raise ConfigError(f"{names}: {error}") from None
    return [one for one in found if one.before != one.after]


def _show(changes: list[Change]) -> None:
    for one in changes:
        if one.code:
            typer.echo(f"{'removes' if one.after is None else 'writes'} {one.file}")
            continue
        for line in one.diff().splitlines():
            colour = {"+": typer.colors.GREEN, "-": typer.colors.RED}.get(line[:1])
            typer.secho(line, fg=colour)


def _write(plan: Plan, changes: list[Change], *, remove: bool) -> None:
    from instar.connect.plan import apply, tidy

    for one in changes:
        apply(one)
    if remove:
        tidy(plan)


def _list(as_json: bool) -> None:
    from instar.connect import CLIENTS

    if as_json:
        print_json({name: one.what for name, one in CLIENTS.items()})
        return
    for name, one in CLIENTS.items():
        typer.echo(f"{name:12} {one.what}")
