"""What people see of a rollout: a live table while it runs, and its numbers in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from instar.envs.runner import Plan, Progress


@contextmanager
def board(plan: Plan, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A live table for people; nothing where a program reads."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield lambda progress: live.update(_table(plan, progress))


def _table(plan: Plan, progress: Progress) -> Any:
    from rich.table import Table

    table = Table(title=f"{plan.environment}, {plan.split}: attempts at {progress.total} places")
    for column in ("done", "playing", "reward", "turns/s", "tokens/s", "failures"):
        table.add_column(column)
    failures = ", ".join(
        f"{name.replace('_', ' ')} {n}"
        for name, n in sorted(progress.statuses.items())
        if name != "completed"
    )
    table.add_row(
        f"{progress.done} of {progress.total}",
        str(progress.playing),
        "-" if progress.reward is None else f"{progress.reward:.3f}",
        f"{progress.per_second(progress.turns):.1f}",
        f"{progress.per_second(progress.tokens):.0f}",
        failures or "none",
    )
    return table


def _line(name: str, found: dict[str, Any]) -> list[str]:
    def shown(values: dict[str, float]) -> str:
        return "  ".join(f"{k}: {value:.3f}" for k, value in values.items()) or "-"

    reward = found["reward"]
    statuses = ", ".join(f"{k.replace('_', ' ')} {n}" for k, n in sorted(found["statuses"].items()))
    return [
        name,
        "-" if reward is None else f"{reward:.3f}",
        shown(found["pass@k"]),
        shown(found["pass^k"]),
        statuses,
    ]


def _summary_table() -> Any:
    from rich.table import Table

    return Table("", "reward", "pass@k", "pass^k", "attempts")


def show(found: dict[str, Any]) -> None:
    from rich.console import Console

    table = _summary_table()
    for name in ("before", "summary", "after"):
        if name in found:
            table.add_row(*_line("played" if name == "summary" else name, found[name]))
    console = Console(highlight=False)
    console.print(table)
    _show_idle(console, found["summary"])
    flat = found["summary"]["flat_groups"]
    console.print(f"run {found['run']}; {flat} groups whose attempts all earned the same")


def show_versions(found: dict[str, Any]) -> None:
    from rich.console import Console

    table = _summary_table()
    for name, one in found["versions"].items():
        table.add_row(*_line(name, one))
    console = Console(highlight=False)
    console.print(table)
    for one in found["versions"].values():
        _show_idle(console, one)
    for one in found["differences"]:
        console.print(
            f"{one['from']} to {one['to']} on {one['tasks']} tasks: {one['change']:+.3f} "
            f"(95% from {one['low']:+.3f} to {one['high']:+.3f})"
        )


def _show_idle(console: Any, found: dict[str, Any]) -> None:
    reward = found["reward_without_idle"]
    if found["idle_tasks"] and reward is not None:
        console.print(
            f"without the {found['idle_tasks']} tasks that reward doing nothing: {reward:.3f}"
        )
