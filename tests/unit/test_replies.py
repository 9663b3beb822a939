"""A reply as it grows: however its ids are cut, the client is told the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from instar.batch.render import ChatRenderer
from instar.types import Delta

RENDERER = ChatRenderer.for_bytes()
END = RENDERER.eos_ids[0]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'

chunks = st.sampled_from(
    [
        *(
            "<think>",
            "</think>",
            "<thi",
            "\n",
            "\n\n",
            " ",
            "a",
            "b ☃",
            "STOP",
            "ST",
            "<tool_call>",
        ),
        *("</tool_call>", CALL, '{"name": "f"}', "{", "<tool", "<", "é"),
        *('"', "\\", "}", '{"name": "f", "arguments": {"a": "', '"}}', "<function=f><parameter=a>"),
        *("</parameter></function>", "f<arg_key>a</arg_key><arg_value>", "</arg_value>"),
    ]
)
texts = st.lists(chunks, max_size=8).map("".join)


def ids_of(text: str) -> list[int]:
    found: list[int] = RENDERER.tokenizer.encode(text, add_special_tokens=False).ids
    return found


def read(parts: list[list[int]], **rules: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole message, and what a client puts together from the deltas."""
    reader = RENDERER.reader(**{"tools": True, **rules})
    deltas: list[Delta] = []
    for part in parts:
        deltas += reader.push(part)
    last, message = reader.close()
    return plain(message), gathered([*deltas, *last])


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Without the ids of calls, which are made up."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": calls,
    }


def gathered(deltas: list[Delta]) -> dict[str, Any]:
    text = {
        kind: "".join(delta.text for delta in deltas if delta.kind == kind)
        for kind in ("content", "reasoning")
    }
    calls = [delta for delta in deltas if delta.kind == "tool_call"]
    assert [delta.index for delta in calls] == list(range(len(calls)))
    return {**text, "calls": [delta.call["function"] for delta in calls]}


@given(texts, st.data(), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_cut_gives_the_same_reply(
    text: str, data: st.DataObject, tools: bool, thinking: bool, one_call: bool
) -> None:
    ids = [*ids_of(text), END]
    stop = data.draw(st.sampled_from([(), ("STOP",), ("STOP", "b", "TOP")]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    parts = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    rules = {"tools": tools, "thinking": thinking, "stop": stop, "one_call": one_call}
    whole, _ = read([ids], **rules)
    for split in (parts, [[i] for i in ids], [ids]):
        message, told = read(split, **rules)
        assert message == whole
        assert told == message, "the deltas are the message"


ARGUMENTS = st.lists(
    st.sampled_from(
        [
            *("</tool_call>", "<tool_call>", CALL, '"', "\\", "\n", " ", "x", "é☃", "{", "}}"),
            *("</tool_", "call>", "<parameter=a>", "<arg_value>", "</think>", "\x00"),
        ]
    ),
    max_size=6,
).map("".join)


def in_pieces(text: str, data: st.DataObject) -> list[list[int]]:
    ids = ids_of(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@given(st.lists(ARGUMENTS, min_size=1, max_size=3), st.booleans(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_call_ends_where_no_argument_is_open(
    values: list[str], raw: bool, data: st.DataObject
) -> None:
    """An argument may well be a text about calls, with all that opens and closes them."""
    written = [{"name": "f", "arguments": {"a": one, "</tool_call>": [one]}} for one in values]
    calls = [f"<tool_call>\n{json.dumps(one, ensure_ascii=raw)}\n</tool_call>" for one in written]
    text = "Look: " + "\n".join(calls) + "\nDone."
    message, told = read(in_pieces(text, data))
    assert told == message
    assert [json.loads(call["arguments"]) for call in message["calls"]] == [
        one["arguments"] for one in written
    ]
    assert message["content"] == "Look:\nDone."


@given(ARGUMENTS.filter(lambda one: "parameter" not in one and "arg_" not in one), st.data())
@settings(deadline=None)
def test_so_it_does_where_arguments_are_not_json(value: str, data: st.DataObject) -> None:
    value = f"x{value}x"
    xml = f"<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>"
    glm = f"f\n<arg_key>a</arg_key>\n<arg_value>{value}</arg_value>"
    text = f"<tool_call>\n{xml}\n</tool_call>\n<tool_call>{glm}\n</tool_call>"
    message, told = read(in_pieces(text, data))
    assert told == message and message["content"] == ""
    assert [json.loads(call["arguments"]) for call in message["calls"]] == [{"a": value}] * 2


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        # A string that is never closed: the first closing text was meant, and other calls follow.
        (f'<tool_call>{{"a": "</tool_call> and {CALL}', '<tool_call>{"a": "</tool_call> and', 1),
        (f'<tool_call>{{"a": "x</tool_call>{CALL}{CALL}', '<tool_call>{"a": "x</tool_call>', 2),
        ('<tool_call>{"a": "</tool_call> so', '<tool_call>{"a": "</tool_call> so', 0),
        ('<tool_call>{"a": "</tool_call>', '<tool_call>{"a": "</tool_call>', 0),
        ('<tool_call>{"a": "x', '<tool_call>{"a": "x', 0),
        (f'<tool_call>{{"a": 1</tool_call>{CALL}', '<tool_call>{"a": 1</tool_call>', 1),
        (f"<tool_call><function=f><parameter=a>1</function></tool_call>{CALL}", "", 2),
    ],
)
def test_a_call_that_is_no_call_takes_no_other_with_it(text: str, content: str, calls: int) -> None:
    for parts in ([ids_of(text)], [[i] for i in ids_of(text)]):
        message, told = read(parts)
        assert told == message
        assert (message["content"], len(message["calls"])) == (content, calls)


def test_a_call_is_told_as_soon_as_it_ends() -> None:
    reader = RENDERER.reader(tools=True)
    call = json.dumps({"name": "f", "arguments": {"a": "</tool_call> <parameter=x> <arg_value>"}})
    assert reader.push(ids_of(f"<tool_call>{call}</tool_call")) == []
    assert [delta.kind for delta in reader.push(ids_of(">"))] == ["tool_call"]


def test_many_closing_texts_in_one_argument_are_read_quickly() -> None:
    call = json.dumps({"name": "f", "arguments": {"a": "</tool_call>" * 1000}})
    message, _ = read([[i] for i in ids_of(f"<tool_call>{call}</tool_call>")])
    assert len(message["calls"]) == 1
    message, _ = read([ids_of("<tool_call><function=f><parameter=a></tool_call>" * 500)])
    assert len(message["calls"]) == 500


@given(st.lists(st.integers(0, 257), max_size=20))
@example([*b"\xff"])
@settings(deadline=None)
def test_any_ids_make_a_message(ids: list[int]) -> None:
    """Also bytes that are no UTF-8, which a client can still be sent."""
    message, told = read([[i] for i in ids])
    assert told == message
    json.dumps(message, ensure_ascii=False).encode()
    assert "<|im_end|>" not in message["content"]


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("plain", "plain", ""),
        (" plain \n", " plain \n", ""),
        ("<think>\nhm\n\nhm\n</think>\n\nso", "so", "hm\n\nhm"),
        ("\n <think>hm</think>so", "so", "hm"),
        ("<think>\n\n</think>\n\nso", "so", ""),
        ("<think>\nnever ends\n", "", "never ends"),
        ("so <think>hm</think>", "so <think>hm</think>", ""),
        ("<thing>", "<thing>", ""),
        ("<thi", "<thi", ""),
        ("", "", ""),
        ("\n\n", "\n\n", ""),
    ],
)
def test_thinking_is_told_apart(text: str, content: str, reasoning: str) -> None:
    for tools in (True, False):
        message, _ = read([[i] for i in ids_of(text)], tools=tools)
        assert (message["content"], message["reasoning"]) == (content, reasoning)


def test_a_prompt_may_have_opened_the_thinking() -> None:
    message, _ = read([ids_of("hm\n</think>\n\nso")], thinking=True)
    assert (message["reasoning"], message["content"]) == ("hm", "so")


def test_calls_are_read_only_where_tools_were_offered() -> None:
    message, _ = read([ids_of(CALL)], tools=False)
    assert (message["content"], message["calls"]) == (CALL, [])


def test_text_around_calls_is_kept() -> None:
    message, _ = read([ids_of(f"one\n{CALL}\n{CALL} two\n")])
    assert len(message["calls"]) == 2
    assert message["content"] == "one two"


def test_a_message_of_calls_alone_has_no_content() -> None:
    reader = RENDERER.reader(tools=True)
    reader.push(ids_of(CALL))
    message = reader.close()[1]
    assert message["content"] is None
    assert message["tool_calls"][0]["type"] == "function"
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}


def test_a_reader_is_done_when_something_follows_the_one_call_that_was_asked_for() -> None:
    reader = RENDERER.reader(tools=True, one_call=True)
    # The reply's own end is still wanted; only what is more than that is not.
    reader.push([*ids_of(CALL + "\n"), END])
    assert not reader.done
    reader.push(ids_of(CALL + "more"))
    assert reader.done
    deltas, message = reader.close()
    assert (deltas, len(message["tool_calls"]), message["content"]) == ([], 1, None)


def test_text_comes_as_soon_as_it_cannot_be_a_marker() -> None:
    reader = RENDERER.reader(tools=True, stop=("END",))
    pushed = ["Hi", " <", "b> E", "x <tool_", "x"]
    shown = ["".join(d.text for d in reader.push(ids_of(part))) for part in pushed]
    assert shown == ["Hi", "", " <b>", " Ex", " <tool_x"]


def test_end_tokens_are_never_shown_wherever_they_stand() -> None:
    message, told = read([[*ids_of("a"), END, *ids_of("b"), END]])
    assert message["content"] == told["content"] == "ab"


@pytest.mark.parametrize(
    ("text", "content"), [("a STOP b", "a "), ("STOP", ""), ("a STO", "a STO"), ("<STOP", "<")]
)
def test_a_stop_string_and_all_after_it_are_cut(text: str, content: str) -> None:
    message, _ = read([[i] for i in ids_of(text)], stop=("STOP",))
    assert message["content"] == content
