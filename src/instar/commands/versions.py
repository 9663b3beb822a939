"""`instar versions`: which there are, what they learned from, and which one serves.

All of this is in the store, so it works whether or not a gateway runs; a running one follows
within a second. Only `diff` needs it, since it asks both versions the same questions.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
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
    console,
    print_json,
    resolve_last,
)
from instar.errors import ConfigError, ModelError, StoreError

if TYPE_CHECKING:
    from instar.publish.versions import VersionFiles
    from instar.record.store import TurnStore
    from instar.types import Version

app = typer.Typer(no_args_is_help=True, help="See versions, and choose which one serves.")
Name = Annotated[str, typer.Argument(help="A version, such as v3, or base.", metavar="VERSION")]
Owner = Annotated[
    str | None,
    typer.Option("--owner", help="Whose versions; needed where several have some.", metavar="NAME"),
]


@app.command("list", epilog="Example: instar versions list --owner ann")
def list_(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """List versions, the latest last. Without a live one, the base serves."""
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> list[Version]:
        from instar.record.versions import VersionBook

        return await VersionBook(store).versions(owner)

    found = ask(config, home, query)
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
    elif found:
        console().print(_table(found))
    else:
        typer.echo("No versions yet: the base serves. Talk to it, and it will learn.")


@app.command(epilog="Example: instar versions show v3")
def show(
    version: Annotated[str, typer.Argument(help="A version, such as v3.", metavar="VERSION")],
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """Show what a version learned from, how the gate judged it, and whether its files are whole."""
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> tuple[Version, list[str], list[str]]:
        from instar.record.versions import VersionBook

        book = VersionBook(store)
        found = await _find(store, version, owner)
        line = [one.name for one in await book.line(found.owner, found.name)]
        return found, line, await book.turns(found.owner, found.name)

    found, line, turns = ask(config, home, query)
    damage = _damage(_files(home), found)
    if as_json:
        print_json(
            {**dataclasses.asdict(found), "line": line, "all_turns": turns, "damage": damage}
        )
        return
    for key, value in _facts(found, line, turns, damage).items():
        typer.echo(f"{key:>9}  {value}")
    if found.gate is not None:
        from instar.publish.gate import GateReport

        typer.echo(f"\n{GateReport.from_json(found.gate).text()}")


@app.command(epilog="Example: instar versions promote v3")
def promote(
    version: Name,
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also one that the gate rejected or did not see.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a version live. It is never pruned from then on."""
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> tuple[str, str]:
        from instar.record.versions import VersionBook
        from instar.types import BASE_VERSION

        whose = await _whose(store, owner)
        if version != BASE_VERSION:
            found = await _find(store, version, whose)
            if found.state == "candidate" and found.gate is None and not anyway:
                raise StoreError(
                    f"{version} of {whose} was not measured yet: the trainer does that before all "
                    "else, once learning goes on; --anyway does without"
                )
            if not (found.pruned or found.tainted):
                _files(home).read(whose, version)
        before = await VersionBook(store).promote(whose, version, keep=True, anyway=anyway)
        return whose, before

    whose, before = ask(config, home, query)
    _say_live(whose, before, version, as_json=as_json)


@app.command(epilog="Example: instar versions rollback")
def rollback(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """Make the version live that the live one was trained from.

    One whose files are damaged is named and passed over: the nearest
    version before it that is whole becomes live, in the end the base.
    """
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> tuple[str, str, str, dict[str, str]]:
        from instar.record.versions import VersionBook

        book, whose = VersionBook(store), await _whose(store, owner)
        live = await book.live_name(whose)
        damaged = _damaged(_files(home), (await book.line(whose, live))[1:])
        return whose, *await book.rollback(whose, damaged=damaged, instead_of=live), damaged

    whose, before, after, damaged = ask(config, home, query)
    for name, why in damaged.items():
        typer.echo(f"{name} is passed over. {why}", err=True)
    _say_live(whose, before, after, as_json=as_json, damaged=damaged)


@app.command(epilog="Example: instar versions diff base v3 --limit 5")
def diff(
    first: Annotated[str, typer.Argument(help="A version, or base.", metavar="A")],
    second: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many prompts.")] = 3,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Longest answer.")] = 200,
    url: Annotated[
        str | None, typer.Option("--url", help="The gateway; by default the last one started here.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The owner's key, where owners have keys.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show answers of two versions to the same held-out prompts, side by side.

    The prompts are corrected turns that were never trained on; where there
    are none yet, questions of the retention set. A running gateway is asked,
    and what it answers is not learned from.
    """
    from instar.commands.compare import answer_both, held_out_prompts, show_side_by_side

    config = resolve_last(home=home, file=file, sets=sets)
    whose = ask(config, home, lambda store: _whose(store, owner))
    prompts = ask(
        config,
        home,
        lambda store: held_out_prompts(
            store, whose, share=config.training.holdout_share, limit=limit
        ),
    )
    answers = answer_both(
        config, prompts, (first, second), url=url, key=key, owner=whose, tokens=tokens
    )
    if as_json:
        print_json(answers)
    else:
        show_side_by_side(answers, (first, second))


def _files(home: Path) -> VersionFiles:
    from instar.publish.versions import VersionFiles

    return VersionFiles.of_home(home)


async def _whose(store: TurnStore, owner: str | None) -> str:
    """The owner that is meant: the one named, or the only one with versions."""
    from instar.gateway.auth import LOCAL_OWNER
    from instar.record.versions import VersionBook

    if owner is not None:
        return owner
    owners = sorted({one.owner for one in await VersionBook(store).versions()})
    if len(owners) > 1:
        raise ConfigError(f"versions belong to {', '.join(owners[:5])}; name one with --owner")
    return owners[0] if owners else LOCAL_OWNER


async def _find(store: TurnStore, name: str, owner: str | None) -> Version:
    from instar.record.versions import VersionBook
    from instar.types import BASE_VERSION

    if name == BASE_VERSION:
        raise ConfigError(
            f"{name} is the model as it came: it learned from nothing; name a version such as v3"
        )
    whose = await _whose(store, owner)
    found = await VersionBook(store).get(whose, name)
    if found is None:
        raise StoreError(
            f"found no version {name} of {whose}; `instar versions list` shows which there are"
        )
    return found


def _damage(files: VersionFiles, version: Version) -> str | None:
    if version.pruned:
        return None
    try:
        files.read(version.owner, version.name)
    except ModelError as error:
        return str(error)
    return None


def _damaged(files: VersionFiles, line: list[Version]) -> dict[str, str]:
    """Those of a line that would serve next and cannot, each with the reason why."""
    from instar.record.lineage import last_good

    found: dict[str, str] = {}
    by_name = {one.name: one for one in line}
    while by_name and (name := last_good(by_name.values())) in by_name:
        why = _damage(files, by_name.pop(name))
        if why is None:
            break
        found[name] = why
    return found


def _facts(
    version: Version, line: list[str], turns: list[str], damage: str | None
) -> dict[str, str]:
    kept = "pruned" if version.pruned else (damage or "whole")
    facts = {
        "version": f"{version.name} of {version.owner}",
        "state": _state(version),
        "made": f"{age(time.time() - version.created)} ago",
        "line": " < ".join([*line, "base"]),
        "turns": f"{len(version.turns)} trained it, {len(turns)} with those of its ancestors",
        "files": kept,
    }
    if version.metrics:
        facts["metrics"] = ", ".join(f"{k} {v:.4g}" for k, v in sorted(version.metrics.items()))
    return facts


def _state(version: Version) -> str:
    return f"{version.state}, learned from what is forgotten" if version.tainted else version.state


def _say_live(
    owner: str,
    before: str,
    after: str,
    *,
    as_json: bool,
    damaged: dict[str, str] | None = None,
) -> None:
    if as_json:
        passed = {"damaged": damaged} if damaged else {}
        print_json({"owner": owner, "before": before, "live": after, **passed})
    elif before == after:
        typer.echo(f"{after} is live for {owner} already.")
    else:
        typer.echo(f"{after} is live for {owner} now; before it was {before}.")


def _table(found: list[Version]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("version", "owner", "state", "from"):
        table.add_column(name)
    for name in ("turns", "gate", "retention", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    now = time.time()
    styles = {"live": "bold green", "rejected": "red", "candidate": "yellow"}
    for one in found:
        gate = one.gate or {}
        decided = ("accepted" if gate["accepted"] else "rejected") if gate else ""
        kept = gate.get("retention")
        notes = [word for word, on in (("forgotten", one.tainted), ("pruned", one.pruned)) if on]
        state = " ".join([one.state, *(f"({note})" for note in notes)])
        table.add_row(
            Text(one.name, style=styles.get(one.state, "dim")),
            Text(one.owner),
            Text(state, style=styles.get(one.state, "dim")),
            Text(one.parent),
            f"{len(one.turns):,}",
            decided,
            "" if kept is None else f"{kept:.3f}",
            age(now - one.created),
        )
    return table
