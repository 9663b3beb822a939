"""The three ways of showing how a running instar fares."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from instar.loop import Status
from instar.status import LINE_EVERY_S, Lines, Panel, board, line, panel

SERVING = Status(
    state="serving",
    address="http://127.0.0.1:30000/v1",
    model="m",
    engine="fake on none",
    version="base",
    sessions=1,
    turns=2,
    tokens_per_s=12.34,
    running=3,
    waiting=4,
)


def drawn(status: Status) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(panel(status))
    return out.getvalue()


def test_a_line_holds_what_matters() -> None:
    text = line(SERVING)
    for part in ("serving", "30000/v1", "model m", "1 session ", "2 turns", "12.3 tok/s", "3 run"):
        assert part in text
    assert "late" not in text and "LOST" not in text
    assert line(replace(SERVING, lost=2, late=1)).endswith("1 late turn | LOST 2 turns")
    assert line(Status(state="starting [x]")) == "starting [x]"


def test_the_panel_holds_what_matters() -> None:
    text = drawn(SERVING)
    for part in ("serving", "30000/v1", "fake on none", "base", "12.3", "3 running, 4 waiting"):
        assert part in text
    assert "lost" not in text
    assert "7 lost: the store cannot be written" in drawn(replace(SERVING, lost=7))
    assert "starting [x]" in drawn(Status(state="starting [x]"))


TROUBLED = replace(SERVING, lost_states=1, read_errors=2, trouble="The store cannot be read: x.")


def test_trouble_with_the_store_is_shown() -> None:
    told = "LOST 1 next state | 2 failed lookups | STORE: The store cannot be read: x."
    assert line(TROUBLED).endswith(told)
    text = drawn(TROUBLED)
    for part in ("The store cannot be read: x.", "1 next state lost", "2 histories not looked up"):
        assert part in text
    assert "store" not in drawn(SERVING)


def test_trouble_with_the_store_is_told_at_once() -> None:
    shown = list[Status]()
    lines = Lines(write=shown.append, clock=lambda: 0.0)
    bad = [replace(SERVING, **one) for one in ({"trouble": "x"}, {"lost_states": 1})]
    for status in (SERVING, bad[0], replace(bad[0], trouble="y"), SERVING, bad[1]):
        lines.show(status)
    assert shown == [SERVING, bad[0], SERVING, bad[1]]


def test_lines_come_on_change_and_once_a_minute() -> None:
    now, shown = [0.0], list[Status]()
    lines = Lines(write=shown.append, clock=lambda: now[0])
    busy = replace(SERVING, turns=3)
    lines.show(SERVING)
    lines.show(busy)
    assert shown == [SERVING]
    now[0] += LINE_EVERY_S
    lines.show(busy)
    now[0] += LINE_EVERY_S
    lines.show(busy)
    assert shown == [SERVING, busy]
    lost = replace(busy, lost=1)
    lines.show(lost)
    lines.show(replace(lost, version="v1"))
    assert [one.version for one in shown[2:]] == ["base", "v1"]


def test_the_board_fits_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    pipe = Console(file=io.StringIO(), force_terminal=False)
    with board(pipe, as_json=True) as one:
        one.show(SERVING)
    assert json.loads(capsys.readouterr().out)["tokens_per_s"] == 12.34
    with board(pipe, as_json=False) as one:
        one.show(SERVING)
    assert capsys.readouterr().out == line(SERVING) + "\n"
    out = io.StringIO()
    with board(Console(file=out, force_terminal=True, width=80), as_json=False) as one:
        assert isinstance(one, Panel)
        one.show(SERVING)
    assert "30000/v1" in out.getvalue()
