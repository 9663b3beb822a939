"""`instar train`: the background process on its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from instar.commands.common import (
    DEFAULT_HOME,
    File,
    Home,
    Json,
    Sets,
    print_json,
    ready_home,
    resolve_last,
)
from instar.commands.serve import LogLevel, log_to, until_stopped

if TYPE_CHECKING:
    from instar.learn.learner import Outcome

TRAIN_EPILOG = """Examples:

instar train

instar train --set training.method=opd

instar train --no-judge"""
Judging = Annotated[
    bool, typer.Option("--judge/--no-judge", help="Judge turns too, beside training.")
]
Background = Annotated[
    bool,
    typer.Option("--background", help="Only take what other processes leave of the processor."),
]

WithParent = Annotated[
    bool,
    typer.Option("--with-parent", hidden=True, help="End when standard input closes."),
]


def train(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    judging: Judging = True,
    background: Background = False,
    with_parent: WithParent = False,
    log_level: LogLevel = "info",
    as_json: Json = False,
) -> None:
    """Learn from recorded turns: judge them, train, gate, publish; Ctrl-C stops.

    It meets the gateway only in the store and the folder of versions, so it may run before,
    beside or after `instar serve`. `instar up` starts it by itself. With --no-judge another
    process judges: `instar judge run`.
    """
    from instar.learn.background import end_with_parent, yield_to_others
    from instar.learn.run import learn

    if with_parent:
        end_with_parent()
    log_to(log_level, None)
    config = resolve_last(home=home, file=file, sets=sets)

    if background:
        yield_to_others()

    def show(outcome: Outcome) -> None:
        if as_json:
            print_json({"version": outcome.version.name, "gate": outcome.report.to_json()})
        else:
            typer.echo(outcome.report.text())

    async def work() -> None:
        stop = asyncio.Event()
        job = learn(config, ready_home(home), stop=stop, judging=judging, on_outcome=show)
        await until_stopped(job, on_stop=stop.set)

    asyncio.run(work())
