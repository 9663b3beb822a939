"""What the commands share: their common options, the resolved config, and how they print."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from instar.config import Config
    from instar.config_load import Resolved
    from instar.record.store import TurnStore

T = TypeVar("T")
log = logging.getLogger(__name__)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Home = Annotated[
    Path,
    typer.Option("--home", help="The folder that holds everything.", metavar="DIR"),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A YAML or JSON file; by default config.yaml in home, where there is one.",
        metavar="FILE",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, as a.b=c; may be repeated.", metavar="A.B=C"),
]
Host = Annotated[
    str | None,
    typer.Option("--host", help="Address to listen on; by default 127.0.0.1.", metavar="HOST"),
]
Port = Annotated[
    int | None, typer.Option("--port", help="Port to listen on; by default 30000.", metavar="PORT")
]
Owner = Annotated[
    str | None, typer.Option("--owner", help="Only what is this owner's.", metavar="NAME")
]

DEFAULT_HOME = Path("~/.instar")
LAST_RUN = "last-run.json"
NO_EDGE = 100_000
"""Columns of what is no terminal: more than any line that is worth reading has."""


def resolve(
    *,
    home: Path,
    file: Path | None,
    sets: Sequence[str] | None,
    host: str | None = None,
    port: int | None = None,
) -> Resolved:
    """The config that the common options ask for."""
    from instar.config_load import load_config

    own = home.expanduser() / "config.yaml"
    if file is None and own.exists():
        file = own
    flags = {"gateway.host": host, "gateway.port": port}
    return load_config(file, sets or (), flags=flags)


def save_run(resolved: Resolved, home: Path) -> None:
    """Keep what a run was started with, so that later commands find its store and model."""
    given = {path: value for path, value, source in resolved.rows() if source != "default"}
    part = home / f"{LAST_RUN}.part"
    try:
        part.touch(mode=0o600)  # closed to others: a store's address may hold a password
        part.write_text(json.dumps(given, default=str, indent=1), encoding="utf-8")
        part.replace(home / LAST_RUN)
    except OSError as error:
        log.warning("%s cannot be written: %s", home / LAST_RUN, error.strerror)


def resolve_last(*, home: Path, file: Path | None, sets: Sequence[str] | None) -> Config:
    """The config of the last run in this home, unless other settings are given."""
    from instar.config_load import load_config
    from instar.errors import ConfigError

    last = home.expanduser() / LAST_RUN
    if file is None and not sets and last.is_file():
        # A file of an older instar may hold what is no setting any more; then it is no help.
        with contextlib.suppress(ConfigError, ValueError):
            return load_config(flags=json.loads(last.read_text(encoding="utf-8"))).config
    return resolve(home=home, file=file, sets=sets).config


def ready_home(home: Path) -> Path:
    """The home folder, made if need be and closed to other people of this machine."""
    from instar.errors import ConfigError

    home = home.expanduser().resolve()
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"--home {home} cannot be made: {error.strerror}; name a folder you may write to"
        ) from None
    return home


def must_be_writable(file: Path, option: str) -> None:
    """Raises ConfigError that says why a file could not be written there."""
    from instar.errors import ConfigError

    if file.is_dir():
        problem = "it is a folder"
    elif not file.parent.is_dir():
        problem = f"there is no folder {file.parent}"
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        problem = "permission denied"
    else:
        return
    raise ConfigError(f"{option} {file} cannot be written: {problem}")


def store_url(config: Config, home: Path) -> str:
    """The store's address: the one that is set, or a file in home."""
    return config.store.url or f"sqlite:///{home.expanduser().resolve() / 'instar.db'}"


def ask(config: Config, home: Path, query: Callable[[TurnStore], Awaitable[T]]) -> T:
    """Open the store, ask it and close it again."""
    from instar.record.store import open_store

    url = store_url(config, ready_home(home))

    async def asked() -> T:
        async with open_store(url) as store:
            return await query(store)

    return asyncio.run(asked())


def environment_options(given: Sequence[str] | None) -> dict[str, Any]:
    """What `--option name=value` tells an environment."""
    import yaml

    from instar.errors import ConfigError

    found: dict[str, Any] = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"--option {one!r} is not of the form name=value, such as difficulty=easy"
            )
        found[name] = yaml.safe_load(value) if value else ""
    return found


def console() -> Console:
    """Where people read results. Only a terminal has an edge at which lines must be broken:

    in a pipe or a file a broken one is a name that no search finds.
    """
    from rich.console import Console

    screen = Console(highlight=False)
    if not screen.is_terminal:
        # COLUMNS still decides where somebody has set it.
        screen.width = shutil.get_terminal_size((NO_EDGE, 25)).columns
    return screen


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    options: dict[str, Any] = {"ensure_ascii": False, "indent": 2, "default": str}
    try:
        text = json.dumps(value, allow_nan=False, **options)
    except ValueError:
        text = json.dumps(_finite(value), **options)
    typer.echo(text)


def _finite(value: Any) -> Any:
    """With null for numbers that JSON does not have, such as the gradient of a broken batch."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def age(seconds: float) -> str:
    """A time span in one unit, as people say it: 45 s, 12 min, 3 h, 9 d."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"
