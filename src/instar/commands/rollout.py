"""`instar rollout` and `instar eval`: play tasks of an environment, learn from them, compare."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instar.commands.common import (
    DEFAULT_HOME,
    File,
    Home,
    Json,
    Sets,
    environment_options,
    print_json,
    ready_home,
    resolve,
)
from instar.errors import ConfigError

if TYPE_CHECKING:
    from instar.config import Config
    from instar.envs.runner import Plan
    from instar.playing import Job

ROLLOUT_EPILOG = """Examples:

instar rollout tau --tasks 8 --group 4 --train

instar rollout tau --split test --eval

instar rollout tau --option domain=airline --option user=human --tasks 1 --parallel 1"""
EVAL_EPILOG = "Example: instar eval tau --version base --version v3 --tasks 24 --group 2"

Env = Annotated[
    str,
    typer.Argument(
        help="tau, terminal, swe, toolcall, bfcl or interpreter.",
        metavar="ENV",
    ),
]
Tasks = Annotated[
    int, typer.Option("--tasks", help="How many tasks; 0 is each one once.", min=0, metavar="N")
]
Group = Annotated[int, typer.Option("--group", help="Attempts a task.", min=1, metavar="G")]
Parallel = Annotated[
    int | None,
    typer.Option("--parallel", help="Attempts at once; rollout.parallel_envs.", min=1, metavar="P"),
]
Split = Annotated[str, typer.Option("--split", help="train or test.", metavar="SPLIT")]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="Tasks in an order drawn from the seed.")]
Seed = Annotated[int, typer.Option("--seed", help="For the drawing of replies.", metavar="N")]
Url = Annotated[
    str | None,
    typer.Option("--url", help="A running gateway, with /v1; else one is started.", metavar="URL"),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="One option of the environment; repeatable.", metavar="K=V"),
]
MaxTurns = Annotated[
    int | None,
    typer.Option("--max-turns", help="Replies an attempt; rollout.max_turns.", min=1, metavar="N"),
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", help="Longest reply.", min=1, metavar="N")
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", help="By default the gateway's.", min=0)
]
RunName = Annotated[
    str | None,
    typer.Option(
        "--run", help="The run's name; one that was stopped goes on under it.", metavar="NAME"
    ),
]
Train = Annotated[bool, typer.Option("--train", help="Learn from it, round by round.")]
Evaluate = Annotated[
    bool,
    typer.Option("--eval", help="Only measure; with --train: the test split before and after."),
]
OneVersion = Annotated[
    str | None,
    typer.Option("--version", help="Play this one, not the live one.", metavar="NAME"),
]

TRAINS = (
    "training.method=binary",
    "training.max_wait_s=60",
    "rollout_config.collection_mode=sync",
)
"""What `--train` sets unless told otherwise: outcomes are rewards and there are few hints."""


def rollout(
    env: Env,
    tasks: Tasks = 0,
    group: Group = 4,
    parallel: Parallel = None,
    split: Split = "train",
    train: Train = False,
    evaluate: Evaluate = False,
    version: OneVersion = None,
    run: RunName = None,
    url: Url = None,
    options: Options = None,
    max_turns: MaxTurns = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = 0,
    shuffle: Shuffle = False,
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Let the model act: play tasks of an environment, and perhaps learn from how they end.

    Attempts are conversations like any other: they go through the gateway and are recorded turn
    by turn. Run the same command again after a stop: what is over is not played twice.
    """
    if train and version:
        raise ConfigError("--train goes on with the live version; leave --version out")
    chosen = (*(TRAINS if train else ()), *(sets or ()))
    config = resolve(home=home, file=file, sets=chosen).config
    if train and config.engine.type == "fake":
        raise ConfigError("the fake engine has no model to train; leave --train out")
    plan = _plan(
        config,
        env,
        tasks=tasks,
        group=group,
        parallel=parallel,
        split=split,
        options=environment_options(options),
        limits=(max_turns, max_tokens, temperature),
        seed=seed,
        no_train=evaluate and not train,
        shuffle=shuffle,
    )
    from instar.commands.rollout_show import show
    from instar.playing import rollout as play

    found = _run(
        plan,
        lambda job: play(job, version=version, measure=train and evaluate),
        job={"config": config, "url": url, "sets": chosen, "file": file, "train": train},
        home=home,
        version=version,
        run=run,
        quiet=as_json,
    )
    print_json(found) if as_json else show(found)


def evaluate(
    env: Env,
    versions: Annotated[
        list[str], typer.Option("--version", help="A version; give two to compare.", metavar="NAME")
    ],
    tasks: Tasks = 0,
    group: Group = 1,
    parallel: Parallel = None,
    split: Split = "test",
    url: Url = None,
    options: Options = None,
    max_turns: MaxTurns = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = 0,
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Measure versions on the same tasks with the same seeds, and say how sure the difference is.

    The interval is a paired bootstrap over tasks. Nothing that is played here is trained on.
    """
    config = resolve(home=home, file=file, sets=sets).config
    plan = _plan(
        config,
        env,
        tasks=tasks,
        group=group,
        parallel=parallel,
        split=split,
        options=environment_options(options),
        limits=(max_turns, max_tokens, temperature),
        seed=seed,
        no_train=True,
    )
    from instar.commands.rollout_show import show_versions
    from instar.playing import evaluate as play

    found = _run(
        plan,
        lambda job: play(job, versions),
        job={"config": config, "url": url, "sets": sets or (), "file": file, "train": False},
        home=home,
        version=",".join(versions),
        run=None,
        quiet=as_json,
    )
    print_json(found) if as_json else show_versions(found)


def _run(
    plan: Plan,
    play: Callable[[Job], Coroutine[Any, Any, dict[str, Any]]],
    *,
    job: dict[str, Any],
    home: Path,
    version: str | None,
    run: str | None,
    quiet: bool,
) -> dict[str, Any]:
    """Begin a run, or go on with it, play it, and note that it is over."""
    from instar.commands.rollout_show import board
    from instar.envs.runs import Runs
    from instar.playing import Job

    folder = ready_home(home)
    settings = _settings(plan, version=version, train=job["train"])
    name, again = Runs(folder).begin(settings, run)
    with board(plan, quiet=quiet) as tell:
        given = {**job, "sets": (*job["sets"], *_room(plan))}
        whole = Job(plan=replace(plan, run=name), home=folder, tell=tell, **given)
        found = asyncio.run(play(whole))
    Runs(folder).finish(name, settings)
    return {"run": name, "resumed": again, **found}


def _plan(
    config: Config,
    env: str,
    *,
    tasks: int,
    group: int,
    parallel: int | None,
    split: str,
    options: dict[str, Any],
    limits: tuple[int | None, int | None, float | None],
    seed: int,
    no_train: bool,
    shuffle: bool = False,
) -> Plan:
    from instar.envs.client import Draw
    from instar.envs.play import Limits
    from instar.envs.runner import Plan

    rollout = config.rollout
    max_turns, max_tokens, temperature = limits
    return Plan(
        environment=env,
        run="",
        split=split,
        tasks=tasks,
        group=group,
        parallel=parallel or rollout.parallel_envs,
        seed=seed,
        no_train=no_train,
        shuffle=shuffle,
        options=options,
        limits=Limits(
            max_turns=max_turns or rollout.max_turns, step_timeout_s=rollout.step_timeout_s
        ),
        draw=Draw(max_tokens=max_tokens, temperature=temperature),
    )


def _settings(plan: Plan, *, version: str | None, train: bool) -> dict[str, Any]:
    """What makes two commands the same run."""
    return {
        "environment": plan.environment,
        "options": dict(plan.options),
        "split": plan.split,
        "tasks": plan.tasks,
        "group": plan.group,
        "seed": plan.seed,
        "max_turns": plan.limits.max_turns,
        "max_tokens": plan.draw.max_tokens,
        "temperature": plan.draw.temperature,
        "version": version,
        "train": train,
        "no_train": plan.no_train,
        "shuffle": plan.shuffle,
    }


def _room(plan: Plan) -> list[str]:
    """Settings of a started gateway that holds all attempts at once."""
    return [
        f"rollout_config.max_concurrent_sessions={max(100, 2 * plan.parallel)}",
        f"gateway.max_queue={max(256, 2 * plan.parallel)}",
    ]
