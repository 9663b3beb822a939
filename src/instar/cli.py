"""The `instar` command. Only light modules are imported here, so that --help is quick."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from instar import __version__
from instar.commands import (
    bench,
    config,
    connect,
    demo,
    judge,
    keys,
    learning,
    model,
    rollout,
    serve,
    sessions,
    tasks,
    train,
    versions,
)
from instar.commands.common import Json, print_json
from instar.errors import InstarError


class Root(TyperGroup):
    """Prints the errors that instar raises on purpose as one message, not as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InstarError as error:
            if ctx.params.get("debug"):
                raise
            typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: instar up\n\nThen point any OpenAI client at http://127.0.0.1:30000/v1",
)
app.command("up", epilog=serve.UP_EPILOG)(serve.up)
app.command("serve", epilog=serve.SERVE_EPILOG)(serve.serve)
app.command("train", epilog=train.TRAIN_EPILOG)(train.train)
app.command("demo", epilog=demo.EPILOG)(demo.demo)
app.command("connect", epilog=connect.EPILOG)(connect.connect)
app.command("rollout", epilog=rollout.ROLLOUT_EPILOG)(rollout.rollout)
app.command("eval", epilog=rollout.EVAL_EPILOG)(rollout.evaluate)
app.add_typer(sessions.app, name="sessions")
app.add_typer(judge.app, name="judge")
app.add_typer(versions.app, name="versions")
app.add_typer(learning.app, name="learning")
app.add_typer(tasks.app, name="tasks")
app.add_typer(keys.app, name="keys")
app.add_typer(config.app, name="config")
app.add_typer(model.app, name="model", hidden=True)
app.command(
    "bench",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: instar bench gateway --clients 64 --seconds 8",
)(bench.bench)


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Train your own AI agent simply by using it.

    instar stands in front of a model that you run yourself, as the API
    that agents already speak, and records every turn exactly as the
    model saw and sampled it. In the background it learns from what you
    say next; what it learned must pass a gate, and can be rolled back.
    """


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version of instar."""
    if as_json:
        print_json({"instar": __version__})
    else:
        typer.echo(f"instar {__version__}")


def main() -> None:
    """Where the `instar` script starts."""
    app()
