"""`instar sessions`: what was recorded, as a list, a tree or a file."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    from instar.record.forget import Forgotten
    from instar.record.store import TurnStore
    from instar.types import Session, Turn

PAGE = 1000
_OWN_ID = re.compile(r"s[0-9a-f]{24}")
"""As instar names sessions: none of these is how another one begins."""

app = typer.Typer(no_args_is_help=True, help="Look at recorded sessions.")
Id = Annotated[
    str, typer.Argument(help="A session's id, or enough of its beginning.", metavar="ID")
]


@app.command("list", epilog="Example: instar sessions list --owner ann --limit 20")
def list_(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, latest first.")] = 50,
    as_json: Json = False,
) -> None:
    """List sessions, the latest first."""
    config = resolve_last(home=home, file=file, sets=sets)
    found = ask(config, home, lambda store: store.sessions(owner, limit))
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
        return
    if not found:
        # A mistyped home or owner looks like an empty one, so both are named.
        whose = f" of {owner}" if owner else ""
        where = "the store" if config.store.url else home.expanduser()
        typer.echo(
            f"No sessions{whose} yet in {where}. Start instar with `instar up` and talk to it."
        )
        return
    screen = console()
    table, least = _table(found, screen.width)
    # Where even that is too wide, the terminal breaks the line: half an id is of no use.
    screen.width = max(screen.width, least)
    screen.print(table)


@app.command(epilog="Example: instar sessions show s0199a5c3 --tokens")
def show(
    session: Id,
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Show where each token ends; prompts whole.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show long prompts whole.")] = False,
    as_json: Json = False,
) -> None:
    """Draw a session: its turns and branches, with prompt and sampled tokens in two colours."""
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> tuple[Session, list[Turn]]:
        found = await find(store, session, owner=owner)
        return found, await store.turns(found.owner, found.id)

    found, turns = ask(config, home, query)
    if as_json:
        print_json(
            {
                "session": dataclasses.asdict(found),
                "turns": [dataclasses.asdict(turn) for turn in turns],
            }
        )
        return
    from instar.commands.tree import Pen, draw, load_tokenizer

    tokenizer = load_tokenizer(config, home.expanduser())
    screen = console()
    screen.print(draw(found, turns, Pen(tokenizer=tokenizer, tokens=tokens, full=full)))
    if tokenizer is None:
        screen.print("note: the model's tokenizer is not here, so token ids are shown", style="dim")


@app.command(epilog="Example: instar sessions export --owner ann --output ann.jsonl")
def export(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    session: Annotated[
        str | None, typer.Option("--session", help="Only this session.", metavar="ID")
    ] = None,
    form: Annotated[
        Literal["jsonl"], typer.Option("--format", help="One JSON object a turn and line.")
    ] = "jsonl",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A file; by default standard output.", metavar="FILE"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write turns with their token ids, log-probs, settings and what followed.

    Private turns are among them: their no_train is true.
    With --json the turns are one JSON list; with --output too, a summary of that file is printed.
    """
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> int:
        from instar.record.export import export_sessions

        found = await find(store, session, owner=owner) if session else None
        lines = export_sessions(
            store, owner=found.owner if found else owner, session=found.id if found else None
        )
        return await _write(_as_list(lines) if as_json and output is None else lines, output)

    count = ask(config, home, query)
    if as_json and output is not None:
        print_json({"turns": count, "output": str(output)})
    elif output is not None:
        typer.echo(f"{count} turns are in {output}.", err=True)


@app.command(epilog="Example: instar sessions done s0199a5c3")
def done(
    session: Id,
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """Mark a session as over. A new turn in it opens it again."""
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> Session:
        found = await find(store, session, owner=owner)
        await store.close_session(found.owner, found.id, time.time())
        return found

    found = ask(config, home, query)
    if as_json:
        print_json({"session": found.id, "owner": found.owner, "closed": True})
    else:
        typer.echo(f"{found.id} is closed.")


@app.command(epilog="Example: instar sessions forget s0199a5c3")
def forget(
    session: Id,
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """Remove a session for good, and put every version that learned from it out of service.

    The newest version that did not learn from it serves at once; the
    trainer then makes the others again without this session.
    An id that a client chose must be given whole: chat-1 is also how chat-10 begins.
    """
    config = resolve_last(home=home, file=file, sets=sets)

    async def query(store: TurnStore) -> Forgotten:
        from instar.record.forget import forget_session

        return await forget_session(store, *await _to_forget(store, session, owner=owner))

    done = ask(config, home, query)
    _remove_files(home, done)
    if as_json:
        tainted = [one.name for one in done.tainted]
        print_json({**dataclasses.asdict(done), "tainted": tainted})
        return
    typer.echo(f"{done.session} of {done.owner} is forgotten: {done.turns} turns are removed.")
    if done.tainted:
        names = ", ".join(one.name for one in done.tainted)
        typer.echo(f"These versions learned from it and are removed: {names}.")
    if done.rebuild:
        typer.echo(f"{done.live} serves instead of {done.was_live}, which will be made again.")


async def _to_forget(store: TurnStore, session: str, *, owner: str | None) -> tuple[str, str]:
    """The owner and the id of the session that is meant, which may be gone already."""
    from instar.gateway.auth import LOCAL_OWNER
    from instar.record.versions import VersionBook

    # It may have been forgotten by a command that died before the files were gone.
    whose = owner or LOCAL_OWNER
    learned = await VersionBook(store).of_session(whose, session)
    try:
        found = await find(store, session, owner=owner)
    except StoreError:
        if not learned:
            raise
        return whose, session
    if found.id != session and learned:
        return whose, session
    if found.id != session and not _OWN_ID.fullmatch(found.id):
        raise StoreError(
            f"found no session {session}, only {found.id} of {found.owner}, which its client "
            "named; to forget that one give its whole id"
        )
    return found.owner, found.id


def _remove_files(home: Path, done: Forgotten) -> None:
    from instar.publish.versions import VersionFiles, safe

    files = VersionFiles.of_home(home)
    for one in done.tainted:
        files.remove(one.owner, one.name)
        # The optimiser's state holds the weights, too.
        state = files.root.parent / "training" / safe(one.owner) / f"{one.name}.pt"
        state.unlink(missing_ok=True)


async def find(store: TurnStore, session: str, *, owner: str | None) -> Session:
    """The one session whose id is this or begins with it."""
    if not session:
        # As a shell has it for a variable that is not set; every id begins like that.
        raise StoreError("found an empty id; `instar sessions list` shows which there are")
    begins: list[Session] = []
    async for one in _all(store, owner):
        if one.id == session and owner is not None:
            return one
        if one.id.startswith(session):
            begins.append(one)
    exact = [one for one in begins if one.id == session]
    found = exact or begins
    if len(found) == 1:
        return found[0]
    if not found:
        raise StoreError(
            f"found no session {session}{f' of {owner}' if owner else ''}; "
            "`instar sessions list` shows which there are"
        )
    several = ", ".join(f"{one.id} of {one.owner}" for one in found[:5])
    raise StoreError(
        f"found {len(found)} sessions that {session} may mean ({several}); "
        "give more of the id, or --owner"
    )


async def _all(store: TurnStore, owner: str | None) -> AsyncIterator[Session]:
    page = await store.sessions(owner, PAGE)
    while page:
        for one in page:
            yield one
        page = await store.sessions(owner, PAGE, page[-1])


async def _as_list(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """JSON lines as one JSON list, of which still one line at a time is in memory."""
    before = b"["
    async for line in lines:
        yield before + line
        before = b","
    yield b"]\n" if before == b"," else b"[]\n"


async def _write(lines: AsyncIterator[bytes], output: Path | None) -> int:
    """Write lines to a file, which appears only once it is whole, or to standard output."""
    count = 0
    if output is None:
        async for line in lines:
            sys.stdout.buffer.write(line)
            count += 1
        sys.stdout.flush()
        return count
    part = output.with_name(f"{output.name}.part")
    try:
        with part.open("wb") as file:
            async for line in lines:
                file.write(line)
                count += 1
        part.replace(output)
    except OSError as error:
        raise ConfigError(f"--output {output} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return count


TITLE_WIDTH = 50
LEAST_TITLE = 8
"""Where a title would get less room than this it is left out."""


def _table(found: list[Session], width: int) -> tuple[Any, int]:
    """The sessions in a screen of that width, and the least that it takes: only titles are cut."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    rows = [_row(one) for one in found]
    # Each column but the last is followed by a blank.
    widths = {name: max(map(cell_len, (name, *(row[name] for row in rows)))) for name in rows[0]}
    wanted = min(widths.pop("title"), TITLE_WIDTH)
    others = sum(widths.values()) + len(widths) - 1
    room = min(wanted, width - others - 1)
    titled = room >= min(wanted, LEAST_TITLE)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in rows[0]:
        if name != "title":
            justify: Any = "left" if name in ("id", "owner") else "right"
            table.add_column(name, no_wrap=True, justify=justify)
        elif titled:
            table.add_column(name, no_wrap=True, overflow="ellipsis", width=room)
    for one, row in zip(found, rows, strict=True):
        cells = [Text(text) for name, text in row.items() if titled or name != "title"]
        cells[0].stylize("dim" if one.closed else "bold")
        table.add_row(*cells)
    return table, others


def _row(one: Session) -> dict[str, str]:
    from instar.commands.tree import VISIBLE

    return {
        "id": one.id.translate(VISIBLE),
        "owner": one.owner.translate(VISIBLE),
        "title": one.title.translate(VISIBLE).replace("\n", " "),
        "turns": f"{one.turns:,}",
        "side": f"{one.side_turns:,}",
        "tokens": f"{one.sampled_tokens:,}",
        "age": age(time.time() - one.updated),
    }
