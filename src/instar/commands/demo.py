"""`instar demo`: watch a model learn from a simulated person."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instar.commands.common import Json, Sets, must_be_writable, print_json, ready_home, resolve

if TYPE_CHECKING:
    from instar.demo.run import Report

EPILOG = """Examples:

instar demo

instar demo --persona student --seed 1

instar demo --persona ME.py"""


def demo(
    persona: Annotated[
        str,
        typer.Option("--persona", help="brief, student, teacher, or a FILE.py.", metavar="NAME"),
    ] = "brief",
    seed: Annotated[int, typer.Option("--seed", help="For prompts and words.", metavar="N")] = 0,
    updates: Annotated[int, typer.Option("--updates", help="Versions to train.", min=1)] = 16,
    home: Annotated[
        Path | None,
        typer.Option("--home", help="Where to keep it; by default nowhere.", metavar="DIR"),
    ] = None,
    plot: Annotated[
        Path, typer.Option("--plot", help="Where the chart goes.", metavar="FILE")
    ] = Path("demo.svg"),
    proof: Annotated[
        bool,
        typer.Option("--proof/--no-proof", help="In the end, lie to it and roll back."),
    ] = True,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Let a simulated person talk to the embedded model until it does as they like.

    They talk over plain HTTP, like any client. The judge and the hints work from their words
    alone; what they really want is used only for the report, on prompts never trained on.
    """
    from instar.demo.person import load_person
    from instar.demo.run import Plan
    from instar.demo.run import demo as run

    must_be_writable(plot, "--plot")  # it is drawn last, after many minutes
    person = load_person(persona, seed=seed)
    plan = Plan(updates=updates, proof=proof)
    with _folder(home) as folder:
        chosen = ["rollout_config.max_concurrent_sessions=1000", *(sets or ())]
        config = resolve(home=folder, file=None, sets=chosen).config
        with _progress(quiet=as_json) as tell:
            job = run(
                config,
                ready_home(folder),
                person,
                seed=seed,
                plan=plan,
                sets=chosen,
                progress=tell,
            )
            report = asyncio.run(job)
    from instar.demo.plot import chart

    title = f"instar demo: {report.persona}, seed {report.seed}"
    plot.write_text(chart(report.looks, praised=report.praised, title=title), "utf-8")
    if as_json:
        print_json(_plain(report))
    else:
        _show(report, plot)


@contextmanager
def _folder(home: Path | None) -> Iterator[Path]:
    if home is not None:
        yield home
        return
    with tempfile.TemporaryDirectory(prefix="instar-demo-") as folder:
        yield Path(folder)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Any]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<38}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=quiet) as bars:
        task = bars.add_task("starting", total=1.0)

        def tell(text: str, share: float) -> None:
            bars.update(task, description=text, completed=share)

        yield tell
        bars.update(task, description="done", completed=1.0)


def _plain(report: Report) -> dict[str, Any]:
    looks = [
        {"updates": x.updates, "style": x.style, "on_topic": x.on_topic, "words": x.words}
        for x in report.looks
    ]
    return {
        "persona": report.persona,
        "seed": report.seed,
        "looks": looks,
        "retention": report.retention,
        "judge_agreement": report.judge_agreement,
        "praised": report.praised,
        "versions": [
            {"name": v.name, "state": v.state, "retention": (v.gate or {}).get("retention")}
            for v in report.versions
        ],
        "proof": _proved(report),
        "answers": [
            {"prompt": prompt, "before": before, "after": after}
            for prompt, before, after in _pairs(report)
        ],
    }


def _proved(report: Report) -> dict[str, Any] | None:
    if (found := report.proof) is None:
        return None
    gate = found.poisoned.gate or {}
    return {
        "poisoned": found.poisoned.state,
        "reasons": gate.get("reasons", []),
        "back_to": found.back_to,
        "same_answers": found.same,
    }


def _went_back(proved: dict[str, Any]) -> str:
    if proved["back_to"] is None:
        return "nothing to roll back: no version was accepted, so the base still serves"
    words = {True: "the same answers as before", False: "OTHER answers", None: "not compared"}
    return f"rolled back to {proved['back_to']}: {words[proved['same_answers']]}"


def _pairs(report: Report) -> list[tuple[str, str, str]]:
    first, last = report.looks[0], report.looks[-1]
    return list(zip(report.kept, first.answers, last.answers, strict=False))[:3]


def _show(report: Report, plot: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        "after", "style", "on topic", "words", title=f"{report.persona}, seed {report.seed}"
    )
    for look in report.looks:
        table.add_row(
            f"{look.updates} updates",
            f"{look.style:.2f}",
            f"{look.on_topic:.2f}",
            f"{look.words:.0f}",
        )
    console.print(table)
    states = [version.state for version in report.versions]
    console.print(
        f"versions: {len(states)} trained, {states.count('rejected')} rejected by the gate"
    )
    kept = "not measured" if report.retention is None else f"{report.retention:.3f}"
    console.print(f"retention of reference answers, against the base: {kept}")
    if report.judge_agreement is not None:
        console.print(f"the judge agreed with the person: {report.judge_agreement:.2f}")
    beside = Table("prompt", "before", "after", title="Three answers", show_lines=True)
    for prompt, before, after in _pairs(report):
        beside.add_row(prompt, before.strip(), after.strip())
    console.print(beside)
    if (found := _proved(report)) is not None:
        console.print(f"a batch with its verdicts turned round was {found['poisoned']}:")
        for reason in found["reasons"]:
            console.print(f"  - {reason}")
        console.print(_went_back(found))
    console.print(f"The chart is in {plot}")
