"""`instar judge`: score what happened next, train the judge, and see whether to trust it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instar.commands.common import (
    DEFAULT_HOME,
    File,
    Home,
    Json,
    Owner,
    Sets,
    ask,
    must_be_writable,
    print_json,
    ready_home,
    resolve,
    resolve_last,
)
from instar.commands.judge_show import (
    agreement_json,
    fitted_json,
    label_counts,
    print_agreement,
    print_sets,
)
from instar.commands.serve import LogLevel, log_to, until_stopped
from instar.errors import ConfigError

if TYPE_CHECKING:
    from instar.config import Config
    from instar.judge.panel import Opinion, PanelJudge
    from instar.judge.report import Judged
    from instar.record.store import TurnStore
    from instar.types import Turn

PAGE = 200

app = typer.Typer(no_args_is_help=True, help="Judge turns by what happened next.")


@app.command(epilog="Example: instar judge score cases.jsonl --output verdicts.jsonl")
def score(
    cases: Annotated[
        Path,
        typer.Argument(help='Lines {"request","response","next","role"}.', metavar="FILE"),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Where the lines go; by default here.", metavar="FILE"),
    ] = None,
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Score lines and write {"label", "hint", "votes"}, one a line and in their order.

    A label is 1, 0, -1, or null where the judge has no verdict.
    A line that cannot be read is named and gets an "error"; exit code 1 then.
    """
    from instar.judge.fit import json_lines

    config = resolve(home=home, file=file, sets=sets).config
    try:
        lines = json_lines(cases)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f'{cases} cannot be read: {why}; expected lines {{"request","response","next","role"}}'
        ) from None
    if output is not None:
        must_be_writable(output, "--output")  # scoring takes long: say now what would be in vain
    rows = asyncio.run(_score_lines(open_judge(config, home), lines))
    written = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    bad = {at: row["error"] for at, row in enumerate(rows, 1) if "error" in row}
    if output is not None:
        try:
            output.write_text(written, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--output {output} cannot be written: {error.strerror}") from None
    if as_json:
        shown = {"output": str(output)} if output else {"results": rows}
        print_json({"lines": len(rows), "bad": bad, "labels": label_counts(rows), **shown})
    elif output is None:
        typer.echo(written, nl=False)
    else:
        typer.echo(f"{len(rows)} lines: {label_counts(rows)}")
    for at, problem in bad.items():
        typer.secho(f"{cases}:{at}: {problem}", fg=typer.colors.RED, err=True)
    if bad:
        raise typer.Exit(1)


@app.command(epilog="Examples:\n\ninstar judge run\n\ninstar judge run --once --json")
def run(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    once: Annotated[
        bool, typer.Option("--once", help="Judge what is ready now, then end.")
    ] = False,
    background: Annotated[
        bool,
        typer.Option("--background", help="Only take what other processes leave of the processor."),
    ] = False,
    log_level: LogLevel = "info",
    as_json: Json = False,
) -> None:
    """Judge recorded turns as what followed them becomes known; Ctrl-C stops.

    It meets the gateway and the trainer only in the store. A judge that
    is down is asked again later, with growing pauses; with --once the
    exit code is 1 then, and the turns wait for the next run.
    """
    from instar.learn.background import yield_to_others
    from instar.learn.judging import open_worker
    from instar.loop import store_url
    from instar.record.store import open_store

    log_to(log_level, None)
    config = resolve_last(home=home, file=file, sets=sets)
    if background:
        yield_to_others()
    counts: dict[str, int] = {}
    done = True

    async def work(stop: asyncio.Event) -> None:
        nonlocal done
        folder = ready_home(home)
        async with open_store(store_url(config, folder)) as store:
            worker = await open_worker(config, folder, store)
            try:
                if once:
                    done = await worker.drain()
                else:
                    await worker.run(stop)
            finally:
                counts.update(worker.counts)

    async def until_signal() -> None:
        stop = asyncio.Event()
        await until_stopped(work(stop), on_stop=stop.set)

    asyncio.run(until_signal())
    if as_json:
        print_json(counts)
    else:
        typer.echo(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items()))
    if not done:
        raise typer.Exit(1)


@app.command(epilog="Example: instar judge train --cases my_cases.jsonl")
def train(
    cases: Annotated[
        Path | None,
        typer.Option(
            "--cases",
            help="Labelled lines, used beside the shipped ones.",
            metavar="FILE",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="Folder of the frozen model.", metavar="DIR"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Where the head goes; by default home.", metavar="DIR"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the networks' beginnings.")] = 0,
    home: Home = DEFAULT_HOME,
    as_json: Json = False,
) -> None:
    """Train the judge's head on labelled cases and say how it does on those held out.

    The head goes to home, where every judge of this home finds it.
    """
    import torch

    from instar.backends.embedded import embedded_model
    from instar.judge.encoder import Encoder
    from instar.judge.fit import CASES, Recipe, fit, read_cases

    def say(text: str) -> None:
        typer.echo(text, err=True)

    home = ready_home(home)
    labelled = read_cases(CASES) + (read_cases(cases) if cases else [])
    recipe = Recipe(seed=seed)
    encoder = Encoder(
        model or embedded_model(home, say=say),
        layers=recipe.layers,
        context=recipe.context,
        threads=torch.get_num_threads(),
    )
    fitted = fit(labelled, encoder, recipe, say=say)
    folder = output or home / "judge"
    fitted.head.save(folder)
    if as_json:
        print_json({"folder": str(folder), **fitted_json(fitted)})
        return
    print_agreement(fitted.agreement, rows="label")
    print_sets(fitted)
    typer.echo(f"The head is in {folder}.")


@app.command(epilog="Example: instar judge calibrate --owner ann")
def calibrate(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    as_json: Json = False,
) -> None:
    """Fit the judge to the people who gave explicit feedback, each by their own."""
    from instar.judge.next_state import case_of
    from instar.judge.probe import Probe, save_calibrations, set_damaged_aside

    config = resolve_last(home=home, file=file, sets=sets)
    home = ready_home(home)
    if config.evaluation.judge.type != "probe":
        raise ConfigError("only evaluation.judge.type probe is fitted to people")
    if (aside := set_damaged_aside(home / "judge")) is not None:
        typer.echo(f"What was known of people cannot be read, it is in {aside} now.", err=True)
        owner = None  # what is written anew must not leave out the others
    found = [one for one in ask(config, home, lambda store: all_turns(store, owner)) if told(one)]
    probe = open_judge(config, home).voter
    assert isinstance(probe, Probe)
    pairs: dict[str, list[tuple[Any, int]]] = {}
    for turn in found:
        case = case_of(turn)
        if case is not None and turn.verdict is not None:
            pairs.setdefault(turn.owner, []).append((case, turn.verdict.score))
    for name, own in pairs.items():
        cases, scores = zip(*own, strict=True)
        probe.recalibrate(name, cases, scores)
    known = probe.calibrations
    for name in [one for one in known if owner in (None, one) and one not in pairs]:
        del known[name]  # all that they said is forgotten
    save_calibrations(known, home / "judge")
    if as_json:
        print_json({name: asdict(one) for name, one in known.items()})
        return
    for name, one in known.items():
        bias = ", ".join(f"{value:+.2f}" for value in one.bias)
        typer.echo(f"{name}: {one.pairs} pairs, bias {bias}, temperature {one.temperature:.2f}")
    if not known:
        typer.echo("Nobody has given feedback on a turn yet: POST /v1/feedback")


@app.command(epilog="Example: instar judge report --owner ann --last 200")
def report(
    home: Home = DEFAULT_HOME,
    file: File = None,
    sets: Sets = None,
    owner: Owner = None,
    last: Annotated[
        int, typer.Option("--last", min=1, help="How many of the latest turns alarms look at.")
    ] = 100,
    as_json: Json = False,
) -> None:
    """Compare the judge with explicit feedback, and look for signs that it is being gamed.

    Alarms compare the last turns with all before them: verdicts that
    drift, tool errors that rise together with reward, clarifying
    questions that multiply. Exit code 0, alarms or not.
    """
    from instar.judge.report import agreement, alarms

    config = resolve_last(home=home, file=file, sets=sets)
    turns = ask(config, home, lambda store: all_turns(store, owner))
    explicit = [turn for turn in turns if told(turn)]
    opinions = asyncio.run(_opinions(open_judge(config, home), explicit)) if explicit else []
    table = agreement(
        [
            (turn.verdict.score, one.label)
            for turn, one in zip(explicit, opinions, strict=True)
            if turn.verdict is not None and one is not None
        ]
    )
    rows = [row for turn in turns if (row := judged(turn)) is not None]
    found = alarms(rows, last=last)
    if as_json:
        print_json({"judged": len(rows), **agreement_json(table), "alarms": found})
        return
    typer.echo(f"{len(rows)} turns have a verdict, {table.pairs} of them by explicit feedback.")
    if table.pairs:
        print_agreement(table, rows="person")
    for one in found:
        typer.secho(f"alarm: {one}", fg=typer.colors.RED)
    if not found:
        typer.echo("No alarms.")


def open_judge(config: Config, home: Path) -> PanelJudge:
    """The judge of the config, with the embedded model of this home where it needs one."""
    from instar.backends.embedded import embedded_model
    from instar.judge.panel import make_judge

    home = ready_home(home)

    def folder() -> Path:
        return embedded_model(home, say=lambda text: typer.echo(text, err=True))

    return make_judge(config, folder=folder, home=home)


def told(turn: Turn) -> bool:
    """Whether a person gave explicit feedback on it and something followed it, too."""
    return (
        turn.verdict is not None and turn.verdict.source == "person" and turn.next_state is not None
    )


def judged(turn: Turn) -> Judged | None:
    """A turn as the report's alarms see it; None without a verdict."""
    from instar.judge.next_state import case_of, message_text
    from instar.judge.report import Judged
    from instar.judge.tool_results import any_failed

    if turn.verdict is None or turn.kind != "main":
        return None
    case = case_of(turn)
    text = message_text(turn.reply)
    return Judged(
        score=turn.verdict.score,
        tool_error=None if case is None else any_failed(case),
        asks=not turn.reply.get("tool_calls") and text.rstrip().endswith(("?", "?", "؟")),
    )


async def all_turns(store: TurnStore, owner: str | None) -> list[Turn]:
    """Every turn, oldest first."""
    found: list[Turn] = []
    after: tuple[str, str] | None = None
    while page := await store.session_keys(owner, PAGE, after):
        for name, session in page:
            found += await store.turns(name, session)
        after = page[-1]
    return sorted(found, key=lambda turn: turn.created)


async def _opinions(judge: PanelJudge, turns: Sequence[Turn]) -> list[Opinion | None]:
    return [await judge.opinion(turn) for turn in turns]


async def _score_lines(judge: PanelJudge, lines: Sequence[str]) -> list[dict[str, Any]]:
    from instar.judge.fit import case_from

    rows: list[dict[str, Any]] = []
    for line in lines:
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"found {type(row).__name__}, expected an object")
            case = case_from(row)
        except ValueError as error:
            rows.append({"label": None, "hint": None, "votes": [], "error": str(error)})
            continue
        rows.append(_scored(await judge.consider(case)))
    return rows


def _scored(opinion: Opinion) -> dict[str, Any]:
    """A judge that could not be asked is an error: it looks like one that could not decide."""
    row = {"label": opinion.label, "hint": opinion.hint, "votes": list(opinion.votes)}
    if opinion.failed:
        row["error"] = f"the judge could not be asked: {opinion.problem}"
    return row
