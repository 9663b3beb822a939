"""What a running instar shows: a live panel, plain lines, or JSON lines.

All three are called with each new status. Only changes that matter are printed as lines, and
otherwise one line a minute, so that a log stays short.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from instar.loop import Status

LINE_EVERY_S = 60.0


class Board(Protocol):
    """Shows statuses while it is entered."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def show(self, status: Status) -> None: ...


class Lines:
    """One line when something changed that people should know, else one a minute."""

    def __init__(
        self, *, write: Callable[[Status], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._shown: Status | None = None
        self._at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, status: Status) -> None:
        now = self._clock()
        if self._shown is not None:
            changed = _notable(self._shown) != _notable(status)
            due = now - self._at >= LINE_EVERY_S and status != self._shown
            if not changed and not due:
                return
        self._shown, self._at = status, now
        self._write(status)


class Panel:
    """A panel at the bottom of the terminal that is drawn anew with each status."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, status: Status) -> None:
        self._live.update(panel(status))


def board(console: Console, *, as_json: bool) -> Board:
    """The board that fits where the output goes."""
    if as_json:
        return Lines(write=lambda status: _echo(json.dumps(dataclasses.asdict(status))))
    if console.is_terminal:
        return Panel(console)
    return Lines(write=lambda status: _echo(line(status)))


def line(status: Status) -> str:
    """A status in one line."""
    if not status.address:
        return status.state
    parts = [
        status.state,
        status.address,
        f"model {status.model}, version {status.version}",
        f"{_count(status.sessions, 'session')}",
        f"{_count(status.turns, 'turn')}",
        f"{status.tokens_per_s:.1f} tok/s",
        f"{status.running} running, {status.waiting} waiting",
    ]
    if status.late:
        parts.append(f"{_count(status.late, 'late turn')}")
    if status.lost:
        parts.append(f"LOST {_count(status.lost, 'turn')}")
    if status.lost_states:
        parts.append(f"LOST {_count(status.lost_states, 'next state')}")
    if status.read_errors:
        parts.append(f"{_count(status.read_errors, 'failed lookup')}")
    if status.trouble:
        parts.append(f"STORE: {status.trouble}")
    return " | ".join(parts)


def panel(status: Status) -> RenderableType:
    """A status as a framed table."""
    from rich.panel import Panel as Frame
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", justify="right")
    table.add_column()
    table.add_row("address", Text(status.address or "not yet", style="bold cyan"))
    table.add_row("model", Text(f"{status.model}  ({status.engine})"))
    table.add_row("version", Text(status.version or "not yet"))
    table.add_row("sessions", f"{status.sessions:,}")
    table.add_row("turns", _turns(status))
    if problems := _problems(status):
        table.add_row("store", Text("\n".join(problems), style="bold red"))
    table.add_row("tokens/s", f"{status.tokens_per_s:.1f}")
    table.add_row("requests", f"{status.running} running, {status.waiting} waiting")
    colour = "green" if status.state == "serving" else "yellow"
    return Frame(
        table,
        title=Text.assemble(("instar ", "bold"), (status.state, colour)),
        subtitle=Text("Ctrl-C stops", style="dim"),
        title_align="left",
        subtitle_align="left",
        expand=False,
        border_style="red" if status.lost or _problems(status) else colour,
    )


def _turns(status: Status) -> Text:
    from rich.text import Text

    text = Text(f"{status.turns:,}")
    if status.late:
        text.append(f"  {status.late:,} late", style="yellow")
    if status.lost:
        text.append(f"  {status.lost:,} lost: the store cannot be written", style="bold red")
    return text


def _problems(status: Status) -> list[str]:
    """What the store could not do, besides writing turns."""
    found = [status.trouble] if status.trouble else []
    if status.lost_states:
        found.append(f"{_count(status.lost_states, 'next state')} lost: nothing is learned there")
    if status.read_errors:
        found.append(f"{_count(status.read_errors, 'history', 'histories')} not looked up")
    return found


def _notable(status: Status) -> tuple[object, ...]:
    lost = (status.lost > 0, status.lost_states > 0, status.read_errors > 0, bool(status.trouble))
    return (status.state, status.address, status.model, status.version, *lost)


def _count(number: int, noun: str, nouns: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def _echo(text: str) -> None:
    # Flushed: whoever reads this through a pipe waits for the line that says serving.
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
