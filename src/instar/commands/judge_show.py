"""What `instar judge` found, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from instar.commands.common import console

if TYPE_CHECKING:
    from instar.judge.fit import Fitted
    from instar.judge.report import Agreement


def label_counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    labels = [row["label"] for row in rows]
    return {str(one): labels.count(one) for one in (1, 0, -1, None)}


def agreement_json(table: Agreement) -> dict[str, Any]:
    return {
        "pairs": table.pairs,
        "accuracy": table.accuracy,
        "macro_f1": table.macro_f1,
        "confusion": [
            {"person": person, "judge": judge, "count": count}
            for (person, judge), count in table.table.items()
        ],
    }


def fitted_json(fitted: Fitted) -> dict[str, Any]:
    missed = [
        {"kind": one.kind, "next": one.case.next, "label": one.label, "found": found}
        for one, found in fitted.missed
    ]
    sets = {name: agreement_json(table) for name, table in fitted.sets.items()}
    return {**agreement_json(fitted.agreement), "sets": sets, "missed": missed}


def print_sets(fitted: Fitted) -> None:
    for name, one in fitted.sets.items():
        typer.echo(
            f"{name}: {one.pairs} cases, accuracy {one.accuracy:.3f}, macro-F1 {one.macro_f1:.3f}"
        )


def print_agreement(table: Agreement, *, rows: str) -> None:
    from rich.table import Table

    from instar.judge.report import LABELS

    columns: tuple[int | None, ...] = (*LABELS, None)
    drawn = Table(rows, *("judge none" if one is None else f"judge {one:+d}" for one in columns))
    for person in LABELS:
        drawn.add_row(f"{person:+d}", *(str(table.table.get((person, one), 0)) for one in columns))
    console().print(drawn)
    if table.accuracy is not None and table.macro_f1 is not None:
        typer.echo(f"accuracy {table.accuracy:.3f}, macro-F1 {table.macro_f1:.3f}")
