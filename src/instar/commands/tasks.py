"""`instar tasks`: what an environment can play, and more of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from instar.commands.common import Json, environment_options, print_json

app = typer.Typer(no_args_is_help=True, help="List, write out and make the tasks of environments.")


@app.command("list", epilog="Example: instar tasks list terminal --split test")
def list_tasks(
    environment: Annotated[str, typer.Argument(help="Its name.", metavar="ENV")],
    split: Annotated[
        str, typer.Option("--split", help="train or test.", metavar="SPLIT")
    ] = "train",
    given: Annotated[
        list[str] | None,
        typer.Option("--option", help="One option of it, as a=b.", metavar="A=B"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the ids of an environment's tasks."""
    from instar.envs import open_environment

    options = environment_options(given)

    async def asked() -> list[str]:
        async with open_environment(environment, options) as opened:
            return await opened.tasks(split)

    found = asyncio.run(asked())
    if as_json:
        print_json(found)
    else:
        typer.echo("\n".join(found))


@app.command("export", epilog="Example: instar tasks export ./tasks")
def export(
    folder: Annotated[Path, typer.Argument(help="Where to write them.", metavar="DIR")],
    as_json: Json = False,
) -> None:
    """Write the terminal tasks that come with instar as Harbor folders."""
    from instar.envs.harbor import write
    from instar.envs.terminal_tasks import shipped

    for task in shipped():
        write(task, folder)
    if as_json:
        print_json([task.id for task in shipped()])
    else:
        typer.echo(f"{len(shipped())} tasks are in {folder}")


@app.command("make-swe", epilog="Example: instar tasks make-swe toolz inflection==0.5.1")
def make_swe(
    packages: Annotated[
        list[str],
        typer.Argument(help="Names on PyPI, or files of source archives.", metavar="PACKAGE"),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="The folder of the tasks.", metavar="DIR")
    ] = Path("~/.instar/swe"),
    count: Annotated[
        int, typer.Option("--count", min=1, help="Tasks a package.", metavar="N")
    ] = 10,
    seed: Annotated[int, typer.Option("--seed", help="Other bugs.", metavar="N")] = 0,
    extras: Annotated[
        list[str] | None,
        typer.Option("--with", help="A package that the tests need.", metavar="PACKAGE"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make SWE tasks: bugs in real packages, each proved by their tests.

    The archives and pytest come from PyPI; the tests run in sandboxes,
    without a network.
    """
    from instar.envs.swe_make import Wanted, make_tasks

    out = out.expanduser().resolve()
    wanted = Wanted(count=count, seed=seed)
    say = (lambda text: None) if as_json else typer.echo
    made = asyncio.run(make_tasks(packages, out, wanted, extras=extras or (), say=say))
    if as_json:
        print_json({"file": str(out / "tasks.jsonl"), "made": [one.instance_id for one in made]})
    else:
        typer.echo(f"{len(made)} tasks were added to {out / 'tasks.jsonl'}")
