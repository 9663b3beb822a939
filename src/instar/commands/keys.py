"""`instar keys`: who may ask, and whose turns theirs are."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated

import typer

from instar.commands.common import (
    DEFAULT_HOME,
    File,
    Home,
    Json,
    Owner,
    Sets,
    age,
    ask,
    console,
    print_json,
    resolve_last,
)
from instar.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from instar.record.keys import ApiKey
    from instar.record.store import TurnStore

app = typer.Typer(no_args_is_help=True, help="Make and revoke the keys that clients send.")


@app.command(epilog="Example: instar keys create --owner ann --note laptop")
def create(
    owner: Annotated[
        str, typer.Option("--owner", help="Whose sessions this key makes and sees.", metavar="NAME")
    ],
    note: Annotated[str, typer.Option("--note", help="What the key is for.")] = "",
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Make a key and print it, this once: only its hash is kept.

    With a key instar may listen on addresses that other machines
    can reach. Clients send it as `Authorization: Bearer KEY`, which
    is what the api_key of an OpenAI client becomes.
    """
    if not owner.strip():
        raise ConfigError("--owner is empty, expected a name such as ann")
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> tuple[str, str]:
        from instar.record.keys import Keys

        return await Keys(store).create_key(owner.strip(), note=note)

    key_id, key = ask(config, home, query)
    if as_json:
        print_json({"id": key_id, "owner": owner.strip(), "key": key})
        return
    typer.echo(f"The key of {owner.strip()} ({key_id}) will not be shown again:", err=True)
    typer.echo(key)


@app.command("list", epilog="Example: instar keys list --owner ann")
def list_(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """List keys by id and owner; the keys themselves are not kept."""
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> list[ApiKey]:
        from instar.record.keys import Keys

        return await Keys(store).keys(owner)

    found = ask(config, home, query)
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
        return
    if not found:
        whose = f" of {owner}" if owner else ""
        typer.echo(f"No keys{whose} yet. `instar keys create --owner NAME` makes one.")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table("id", "owner", "note", "made", "state", box=None, pad_edge=False)
    now = time.time()
    for one in found:
        state = Text("revoked", style="red") if one.revoked else Text("valid", style="green")
        table.add_row(one.id, Text(one.owner), Text(one.note), age(now - one.created), state)
    console().print(table)


@app.command(epilog="Example: instar keys revoke key_1f2e3d4c5b6a")
def revoke(
    key: Annotated[str, typer.Argument(help="A key's id, from `instar keys list`.", metavar="ID")],
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Make a key invalid.

    A running gateway refuses it within a second; replies that are
    under way by then are still given.
    """
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> bool:
        from instar.record.keys import Keys

        return await Keys(store).revoke_key(key)

    if not ask(config, home, query):
        raise StoreError(f"found no valid key {key}; `instar keys list` shows which there are")
    print_json({"id": key, "revoked": True}) if as_json else typer.echo(f"{key} is revoked.")
