"""`instar up` and `instar serve`: the running system and how it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instar.commands.common import (
    DEFAULT_HOME,
    File,
    Home,
    Host,
    Json,
    Port,
    Sets,
    ready_home,
    resolve,
    save_run,
)
from instar.errors import ConfigError

if TYPE_CHECKING:
    from instar.config_load import Resolved
    from instar.loop import Status

FORCE_AFTER_S = 3.0
"""How long a forced stop lets clean-up run before the process ends without it."""

UP_EPILOG = """Examples:

instar up --port 8080

instar up --config configs/vllm.yaml

instar up --set engine.type=fake"""
SERVE_EPILOG = """Examples:

instar serve --set model.name=NAME --set model.checkpoint_path=FOLDER

instar keys create --owner ann && instar serve --host 0.0.0.0"""
LogLevel = Annotated[
    str, typer.Option("--log-level", help="debug, info, warning or error.", metavar="LEVEL")
]


def up(
    home: Home = DEFAULT_HOME,
    file: File = None,
    host: Host = None,
    port: Port = None,
    sets: Sets = None,
    log_level: LogLevel = "warning",
    as_json: Json = False,
) -> None:
    """Start everything and show how it fares; Ctrl-C stops it.

    Without options this serves the embedded model at
    http://127.0.0.1:30000/v1 and keeps everything in ~/.instar.
    Point any OpenAI client there.
    """
    from rich.console import Console

    from instar import status

    resolved = resolve(home=home, file=file, sets=sets, host=host, port=port)
    home = ready_home(home)
    console = Console(highlight=False)
    log_to(
        log_level,
        # Markup in a log line is text, not colours.
        partial(console.print, markup=False) if console.is_terminal and not as_json else None,
    )
    learns = resolved.config.training.enabled and resolved.config.engine.type != "fake"
    with status.board(console, as_json=as_json) as board:
        run(resolved, home=home, on_status=board.show, learns=learns)


def serve(
    home: Home = DEFAULT_HOME,
    file: File = None,
    host: Host = None,
    port: Port = None,
    sets: Sets = None,
    log_level: LogLevel = "info",
    as_json: Json = False,
) -> None:
    """Serve and record, and log to standard error: for service managers and containers."""
    from rich.console import Console

    from instar import status

    resolved = resolve(home=home, file=file, sets=sets, host=host, port=port)
    home = ready_home(home)
    log_to(log_level, None)
    # A console that is no terminal gives lines whatever the output is.
    plain = Console(force_terminal=False)
    with status.board(plain, as_json=as_json) as board:
        run(resolved, home=home, on_status=board.show)


def run(
    resolved: Resolved,
    *,
    home: Path,
    on_status: Callable[[Status], None],
    learns: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM, and learn in the background once serving has begun."""
    from instar import loop
    from instar.learn.background import learning

    save_run(resolved, home)

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop

    async def served() -> None:
        stop, serving = asyncio.Event(), asyncio.Event()

        def show(status: Status) -> None:
            if status.address:
                serving.set()
            on_status(status)

        async with learning(home, after=serving) if learns else nullcontext():
            await until_stopped(
                loop.serve(resolved.config, home, stop=stop, on_status=show), on_stop=stop.set
            )

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(served())


async def until_stopped(work: Coroutine[Any, Any, None], *, on_stop: Callable[[], None]) -> None:
    """Run `work`; the first SIGINT or SIGTERM asks it to end, the second ends it.

    A forced end still lets `finally` blocks run, since they end the engine's process, but only
    for a few seconds.
    """
    task = asyncio.ensure_future(work)
    signals = 0

    def received() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            on_stop()
        else:
            task.cancel()
            asyncio.get_running_loop().call_later(FORCE_AFTER_S, os._exit, 130)

    running = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(one, received)
    try:
        await task
    except asyncio.CancelledError:
        if signals < 2:
            raise
        raise typer.Exit(130) from None
    finally:
        for one in (signal.SIGINT, signal.SIGTERM):
            running.remove_signal_handler(one)


class _Printer(logging.Handler):
    """Log lines through a function, such as the console that a live panel is drawn on."""

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))


def log_to(level: str, write: Callable[[str], object] | None) -> None:
    """Log at this level through `write`, or to standard error."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"--log-level: found {level}, expected debug, info, warning or error")
    handler = logging.StreamHandler() if write is None else _Printer(write)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=number, handlers=[handler], force=True)
