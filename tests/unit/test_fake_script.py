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
        ({"text": 5}, "`text` must be a string"),
        ({"reasoning": ["x"]}, "`reasoning` must be a string"),
        ({"session": 1}, "`session` must be a string"),
        ({"tool_calls": {"name": "f"}}, "`tool_calls` must be a list"),
        ({"tool_calls": {}}, "`tool_calls` must be a list"),
        ({"tool_calls": ""}, "`tool_calls` must be a list"),
        ({"tool_calls": ["f"]}, "found 'f' in `tool_calls`, expected {"),
        ({"tool_calls": [{"nme": "x"}]}, "nme is not known"),
        ({"tool_calls": [{"id": "c", "function": {"name": "f"}}]}, "function, id is not known"),
        ({"tool_calls": [{"name": "f", "parameters": {}}]}, "parameters is not known"),
        ({"tool_calls": [{"name": "f"}, {}]}, "found {} in .*name must be a string"),
        ({"tool_calls": [{"name": 3, "arguments": {}}]}, "name must be a string"),
        ({"tool_calls": [{"name": " "}]}, "name must be a string that is not empty"),
        ({"tool_calls": [{"name": "f", "arguments": "{}"}]}, "arguments must be an object"),
        ({"tool_calls": [{"name": "f", "arguments": None}]}, "arguments must be an object"),
    ],
)
def test_an_unusable_line_is_named(tmp_path: Path, line: Any, named: str) -> None:
    with pytest.raises(InstarError, match=f"script.jsonl line 2.*{named}"):
        read_script(written(tmp_path, {"text": "ok"}, line))


def test_a_line_that_is_nested_too_deep_is_named(tmp_path: Path) -> None:
    file = tmp_path / "script.jsonl"
    file.write_text('{"text": "ok"}\n' + "[" * 100_000)
    with pytest.raises(InstarError, match=r"script.jsonl line 2 is not JSON"):
        read_script(file)


def test_a_script_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_script(tmp_path / "no")
    assert read_script(None).next() is None


def test_a_script_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_script(tmp_path)
    file = tmp_path / "latin.jsonl"
    file.write_bytes(b'{"text": "\xe9"}\n')
    with pytest.raises(ConfigError, match="cannot be read"):
        read_script(file)


def test_a_line_ends_at_a_newline_only(tmp_path: Path) -> None:
    file = tmp_path / "script.jsonl"
    file.write_bytes('{"text": "a\u2028b"}\r\n{"text": "c"}'.encode())
    script = read_script(file)
    assert [script.next(), script.next(), script.next()] == ["a\u2028b", "c", None]
