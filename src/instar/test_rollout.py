"""Try the whole path from a client's request to a recorded turn.

    python -m instar.test_rollout --num-samples 10 --output-dir DIR

Starts the system in this process, on the scripted engine or on the one that is configured,
plays short conversations against its API like any client, writes what was recorded to
`DIR/rollouts.jsonl` and prints a summary. `instar.inspect_sessions(DIR)` reads it again.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instar.commands.common import DEFAULT_HOME, File, Home, Json, Sets, print_json, resolve
from instar.errors import ConfigError, EngineError, InstarError
from instar.rollouts import inspect_sessions

if TYPE_CHECKING:
    import httpx

    from instar.config import Config

OUTPUT = "rollouts.jsonl"
_ASK = (
    "What is a volcano?",
    "How do planes fly?",
    "Write a line about the sea.",
    "Name three trees.",
    "What does a librarian do?",
    "How do I boil an egg?",
    "Why is the sky blue?",
)
_REPLY = (
    "Thanks, that helps.",
    "Too long. One sentence, please.",
    "Can you say more about that?",
    "That is not what I asked.",
    "Perfect. And in winter?",
)

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    output: Annotated[
        Path, typer.Option("--output-dir", help="Where rollouts.jsonl goes.", metavar="DIR")
    ],
    samples: Annotated[
        int, typer.Option("--num-samples", min=1, help="How many conversations.")
    ] = 10,
    seed: Annotated[int, typer.Option("--seed", help="For the choice of what is said.")] = 0,
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Play conversations and write what was recorded; without settings, on the scripted engine."""
    if file is None and not sets:
        sets = ["engine.type=fake"]
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output-dir {output} cannot be a folder: {error}") from error
    with tempfile.TemporaryDirectory() as scratch:
        # A store of its own: what is played here is nobody's conversation.
        config = resolve(
            home=home, file=file, sets=[*(sets or ()), f"store.url=sqlite:///{scratch}/instar.db"]
        ).config
        asyncio.run(_play(config, home.expanduser(), output, samples=samples, seed=seed))
    found = _summary(output)
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found['sessions']} sessions, {found['turns']} turns, engine {config.engine.type}")
    typer.echo(f"  main-line turns {found['main']}, side turns {found['side']}")
    typer.echo(f"  sampled tokens  {found['sampled_tokens']}, all with log-probs")
    typer.echo(f"  written to      {found['output']}")


async def _play(config: Config, home: Path, output: Path, *, samples: int, seed: int) -> None:
    import httpx

    from instar.loop import open_system
    from instar.record.export import export_sessions

    chance = random.Random(seed)
    async with open_system(config, home, say=lambda text: typer.echo(text, err=True)) as system:
        transport = httpx.ASGITransport(app=system.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://instar", timeout=600
        ) as client:
            for number in range(samples):
                await _converse(client, config.model.name, f"sample-{number:03d}", chance)
        lines = [line async for line in export_sessions(system.store)]
    part = output / f"{OUTPUT}.part"
    await asyncio.to_thread(part.write_bytes, b"".join(lines))
    await asyncio.to_thread(part.replace, output / OUTPUT)


async def _converse(
    client: httpx.AsyncClient, model: str, session: str, chance: random.Random
) -> None:
    """One to three turns, and one on the side."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": chance.choice(_ASK)}]
    for _ in range(chance.randint(1, 3)):
        messages.append(await _ask(client, model, session, messages))
        messages.append({"role": "user", "content": chance.choice(_REPLY)})
    title = [{"role": "user", "content": f"A title for: {messages[0]['content']}"}]
    await _ask(client, model, session, title, **{"x-turn-type": "side"})


async def _ask(
    client: httpx.AsyncClient,
    model: str,
    session: str,
    messages: list[dict[str, Any]],
    **headers: str,
) -> dict[str, Any]:
    body = {"model": model, "messages": messages, "max_tokens": 64}
    response = await client.post(
        "/v1/chat/completions", json=body, headers={"x-session-id": session, **headers}
    )
    if response.status_code != 200:
        raise EngineError(f"the gateway answered {response.status_code}: {response.text[:500]}")
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


def _summary(output: Path) -> dict[str, Any]:
    sessions = inspect_sessions(output / OUTPUT)
    turns = [turn for session in sessions.values() for turn in session]
    return {
        "sessions": len(sessions),
        "turns": len(turns),
        "main": sum(turn["type"] == "main" for turn in turns),
        "side": sum(turn["type"] == "side" for turn in turns),
        "sampled_tokens": sum(len(turn["sampled_ids"]) for turn in turns),
        "output": str(output / OUTPUT),
    }


if __name__ == "__main__":
    try:
        app()
    except InstarError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        raise SystemExit(2) from None
