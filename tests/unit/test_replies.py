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
