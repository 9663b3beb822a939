"""`instar model`: the model that comes with instar."""

from __future__ import annotations

import typer

from instar.commands.common import DEFAULT_HOME, Home, Json, print_json, ready_home

app = typer.Typer(no_args_is_help=True, help="The model that comes with instar.")


@app.command()
def unpack(home: Home = DEFAULT_HOME, as_json: Json = False) -> None:
    """Unpack the embedded model into home, unless it is there already."""
    from instar.backends.embedded import embedded_model

    folder = embedded_model(ready_home(home))
    print_json({"folder": str(folder)}) if as_json else typer.echo(str(folder))
