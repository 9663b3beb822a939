"""The fake engine's script: replies in order, and replies to what is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from instar.backends.fake_script import read_script
from instar.errors import ConfigError, InstarError


def written(tmp_path: Path, *lines: Any) -> Path:
    file = tmp_path / "script.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    return file


def prompt(*said: tuple[str, str]) -> str:
    told = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said)
    return f"{told}<|im_start|>assistant\n"


def test_replies_come_in_order_and_end(tmp_path: Path) -> None:
    script = read_script(written(tmp_path, {"text": "one"}, {"text": "two", "reasoning": "hm"}))
    assert [script.next(), script.next(), script.next()] == [
        "one",
        "<think>\nhm\n</think>\n\ntwo",
        None,
    ]


def test_a_rule_answers_what_came_after_the_last_reply(tmp_path: Path) -> None:
    rules = (
        {"when": r"RUN (\w+)", "tool_calls": [{"name": "exec", "arguments": {"command": "$1 $2"}}]},
        {"when": r"<\|im_start\|>tool\n(\w+)", "text": "it said $1"},
        {"text": "else"},
    )
    script = read_script(written(tmp_path, *rules))
    asked = ("user", "RUN ls")
    called = '<tool_call>\n{"name": "exec", "arguments": {"command": "ls $2"}}\n</tool_call>'
    assert script.next(prompt(asked)) == called
    assert script.next(prompt(asked, ("assistant", called), ("tool", "files"))) == "it said files"
    assert script.next(prompt(asked, ("assistant", "RUN x"), ("user", "thanks"))) == "else"
    assert script.next(prompt(asked)) == called, "a rule holds as often as it is asked"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ({"wehn": "x"}, "wehn"),
        ({"when": "("}, "regular expression"),
        ({"when": 3}, "regular expression"),
        (["x"], "list"),
    ],
)
def test_an_unusable_line_is_named(tmp_path: Path, line: Any, named: str) -> None:
    with pytest.raises(InstarError, match=f"line 2.*{named}"):
        read_script(written(tmp_path, {"text": "ok"}, line))


def test_a_script_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_script(tmp_path / "no")
    assert read_script(None).next() is None
