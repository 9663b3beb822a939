"""How each family of models writes tool calls, and who is taken for which."""

from __future__ import annotations

import json
from typing import Any

import pytest

from instar.batch.render import ChatRenderer
from instar.batch.toolform import FORMS, describe_tools, pick_form, write_calls
from instar.errors import ConfigError

OSLO = {"city": "Oslo; N", "n": [1, {"a": None}]}
WRITTEN = json.dumps(OSLO)

EXAMPLES: dict[str, list[tuple[str, list[tuple[str, Any]]]]] = {
    "hermes": [
        (f'<tool_call>\n{{"name": "w", "arguments": {WRITTEN}}}\n</tool_call>', [("w", OSLO)]),
        (
            '<tool_call>{"name": "a", "arguments": {}}</tool_call>\n'
            '<tool_call>{"name": "b", "arguments": "{\\"x\\": 1}"}</tool_call>',
            [("a", {}), ("b", {"x": 1})],
        ),
        ('<tool_call>{"name": "a"}</tool_call>', [("a", {})]),
        (
            "<tool_call>\n<function=w>\n<parameter=city>\nOslo\n</parameter>\n"
            "<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
            [("w", {"city": "Oslo", "n": 3})],
        ),
        (
            "<tool_call>w\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
            "<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            [("w", {"city": "Oslo", "n": 3})],
        ),
    ],
    "llama": [
        (f'<|python_tag|>{{"name": "w", "parameters": {WRITTEN}}}', [("w", OSLO)]),
        (
            f'<|python_tag|>{{"name": "w", "parameters": {WRITTEN}}}; {{"name": "b", '
            '"parameters": {}}',
            [("w", OSLO), ("b", {})],
        ),
    ],
    "mistral": [
        (f'[TOOL_CALLS][{{"name": "w", "arguments": {WRITTEN}}}]', [("w", OSLO)]),
        (f"[TOOL_CALLS]w[ARGS]{WRITTEN}[TOOL_CALLS]b[ARGS]{{}}", [("w", OSLO), ("b", {})]),
    ],
    "deepseek": [
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>w\n```json\n"
            f"{WRITTEN}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            [("w", OSLO)],
        ),
        (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>w<｜tool▁sep｜>{WRITTEN}"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            [("w", OSLO)],
        ),
    ],
    "kimi": [
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.w:0"
            f"<|tool_call_argument_begin|>{WRITTEN}<|tool_call_end|><|tool_calls_section_end|>",
            [("w", OSLO)],
        )
    ],
    "granite": [(f'<|tool_call|>[{{"name": "w", "arguments": {WRITTEN}}}]', [("w", OSLO)])],
    "pythonic": [
        (
            "<|python_start|>[w(city='Oslo', n=[1, {'a': None}]), b()]<|python_end|>",
            [("w", {"city": "Oslo", "n": [1, {"a": None}]}), ("b", {})],
        )
    ],
}

MALFORMED: dict[str, list[str]] = {
    "hermes": [
        "<tool_call>{</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call><function></tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "a", "arguments": {',
    ],
    "llama": ["<|python_tag|>", "<|python_tag|>print(1)", '<|python_tag|>{"name": "a"} and'],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS]w[ARGS]{", "[TOOL_CALLS][3]"],
    "deepseek": ["<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>"],
    "kimi": ["<|tool_calls_section_begin|>x<|tool_calls_section_end|>"],
    "granite": ["<|tool_call|>{"],
    "pythonic": [
        "<|python_start|>[w(1)]<|python_end|>",
        "<|python_start|>[x]<|python_end|>",
        "<|python_start|>[w(a=open)]<|python_end|>",
        "<|python_start|>[(]<|python_end|>",
    ],
}


def read(family: str, text: str) -> dict[str, Any]:
    """The message that a reply of this family becomes."""
    renderer = ChatRenderer.for_bytes(tool_parser=family)
    reader = renderer.reader(tools=True)
    reader.push(renderer.tokenizer.encode(text, add_special_tokens=False).ids)
    return reader.close()[1]


def test_every_form_has_examples() -> None:
    assert EXAMPLES.keys() == MALFORMED.keys() == FORMS.keys()


@pytest.mark.parametrize(
    ("family", "text", "calls"),
    [(family, *example) for family, some in EXAMPLES.items() for example in some],
)
def test_calls_are_read(family: str, text: str, calls: list[tuple[str, Any]]) -> None:
    message = read(family, f"So.\n{text}")
    found = [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls
    assert message["content"] == "So."


@pytest.mark.parametrize(
    ("family", "text"), [(family, text) for family, some in MALFORMED.items() for text in some]
)
def test_what_is_no_call_stays_text(family: str, text: str) -> None:
    assert read(family, f"So.\n{text}") == {"role": "assistant", "content": f"So.\n{text}"}


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (
            "deepseek",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>w<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
            '<｜tool▁call▁begin｜>w<｜tool▁sep｜>{"a": "<｜tool▁calls▁end｜>"}<｜tool▁call▁end｜>'
            "<｜tool▁calls▁end｜>",
        ),
        (
            "kimi",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.w:0"
            "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.w:1"
            '<|tool_call_argument_begin|>{"a": "<|tool_calls_section_end|>"}<|tool_call_end|>'
            "<|tool_calls_section_end|>",
        ),
        ("pythonic", '<|python_start|>[w(), w(a="<|python_end|>")]<|python_end|>'),
    ],
)
def test_the_closing_text_may_stand_in_an_argument(family: str, text: str) -> None:
    found = [call["function"]["arguments"] for call in read(family, text)["tool_calls"]]
    assert [json.loads(one) for one in found] == [{}, {"a": FORMS[family].close}]


def test_a_call_cut_off_after_its_last_brace_is_whole() -> None:
    assert read("hermes", '<tool_call>{"name": "a", "arguments": {}}')["tool_calls"]


@pytest.mark.parametrize("family", FORMS)
def test_auto_goes_by_what_the_template_mentions(family: str) -> None:
    assert pick_form("auto", f"{{% if tools %}}{FORMS[family].open}{{% endif %}}") is FORMS[family]
    assert pick_form(family, "nothing of it") is FORMS[family]


def test_auto_takes_hermes_where_a_template_mentions_none() -> None:
    assert pick_form("auto", "{{ messages }}") is FORMS["hermes"]


def test_an_unknown_parser_is_named() -> None:
    with pytest.raises(ConfigError, match=r"gateway.tool_parser is 'herms'.*hermes"):
        pick_form("herms", "")


def test_what_is_written_is_what_is_read() -> None:
    arguments = {"text": 'é "x" </b>', "n": 10**30}
    function = {"name": "w", "arguments": json.dumps(arguments)}
    message = {"role": "assistant", "content": "So.", "tool_calls": [{"function": function}]}
    found = read("hermes", write_calls(message))
    assert found["content"] == "So."
    assert json.loads(found["tool_calls"][0]["function"]["arguments"]) == arguments


def test_tools_are_described_as_they_were_given() -> None:
    tool = {"type": "function", "function": {"name": "w", "description": "é"}}
    assert json.dumps(tool, ensure_ascii=False) in describe_tools([tool])
