"""`instar learning`: whether anything is learned now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instar.commands.common import (
    DEFAULT_HOME,
    File,
    Home,
    Json,
    Sets,
    age,
    ask,
    print_json,
    resolve_last,
)

if TYPE_CHECKING:
    from instar.record.store import TurnStore

app = typer.Typer(no_args_is_help=True, help="Pause and resume learning, and see what waits.")
Owner = Annotated[
    str | None,
    typer.Option("--owner", help="Only for this owner; by default for everybody.", metavar="NAME"),
]


@app.command(epilog="Example: instar learning pause")
def pause(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """Learn nothing from now on; serving and recording go on."""
    from instar.record.controls import EVERYBODY, pause_learning

    config = resolve_last(home=home, file=file, sets=sets)
    new = ask(config, home, lambda store: pause_learning(store, owner or EVERYBODY))
    if as_json:
        print_json({"owner": owner, "paused": True, "changed": new})
    else:
        typer.echo(f"Learning is paused{_for(owner)}{'' if new else ' already'}.")


@app.command(epilog="Example: instar learning resume")
def resume(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """Learn again, also from what was said meanwhile."""
    from instar.record.controls import EVERYBODY, resume_learning

    config = resolve_last(home=home, file=file, sets=sets)
    was = ask(config, home, lambda store: resume_learning(store, owner or EVERYBODY))
    if as_json:
        print_json({"owner": owner, "paused": False, "changed": was})
    else:
        typer.echo(f"Learning goes on{_for(owner)}{'' if was else '; it was not paused'}.")


@app.command(epilog="Example: instar learning status")
def status(
    home: Home = DEFAULT_HOME, file: File = None, sets: Sets = None, as_json: Json = False
) -> None:
    """Say who is paused, which versions serve, what is passed over, and what is to be rebuilt."""
    config = resolve_last(home=home, file=file, sets=sets)
    found = ask(config, home, _status)
    if as_json:
        print_json(found)
        return
    paused = found["paused"]
    typer.echo("Learning is paused." if "" in paused else "Learning is on.")
    for owner, since in sorted(paused.items()):
        who = owner or "everybody"
        typer.echo(f"  paused for {who} since {age(time.time() - since)}")
    for owner, name in sorted(found["live"].items()):
        typer.echo(f"  {owner} is served by {name}")
    for owner, counts in found["passed_over"].items():
        told = ", ".join(f"{count} {reason}" for reason, count in counts.items())
        typer.echo(f"  judged turns of {owner} that teach nothing as it is set: {told}")
    for one in found["rebuilds"]:
        what = ", ".join(one["versions"])
        typer.echo(f"  {what} of {one['owner']} waits to be trained again from {one['start']}")


async def _status(store: TurnStore) -> dict[str, Any]:
    import dataclasses

    from instar.record.controls import paused_since
    from instar.record.forget import pending_rebuilds
    from instar.record.judged import JudgedTurns
    from instar.record.versions import VersionBook

    live = await VersionBook(store).live()
    return {
        "paused": await paused_since(store),
        "live": {owner: version.name for owner, version in live.items()},
        "passed_over": await JudgedTurns(store).passed(),
        "rebuilds": [dataclasses.asdict(one) for one in await pending_rebuilds(store)],
    }


def _for(owner: str | None) -> str:
    return f" for {owner}" if owner else ""
