"""What makes two messages the same, and a history findable."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from talk import rewritten

from instar.gateway.history import anchors, chain, message_key, own_talk, said


def call(arguments: Any, name: str = "f", id: str = "c") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **fields}
    return {**message, "tool_calls": list(calls)} if calls else message


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (user("a"), user(" a\n")),
        (user("a" * 5000), user(" " + "a" * 5000)),
        (user("a\nb"), user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])),
        (assistant(None), assistant("")),
        (assistant("a"), assistant("<think>x</think>\n\na")),
        (assistant("a"), assistant("a", reasoning_content="x")),
        (assistant("a"), {**assistant("a"), "tool_calls": []}),
        (assistant("", call('{"a":1,"b":[2]}')), assistant(None, call('{ "b":[2], "a": 1 }'))),
        (assistant("", call("{}", id="x_1")), assistant("", call("{}", id="x1"))),
        (assistant("", call('{"a": 1}')), assistant("", call({"a": 1}))),
        (assistant("", call('{"a": "\\u00e9"}')), assistant("", call('{"a": "é"}'))),
        (assistant("", call(" {not json")), assistant("", call("{not json "))),
        # Numbers as JSON.stringify(JSON.parse(..)) writes them again.
        (assistant("", call('{"a": 2.0}')), assistant("", call('{"a":2}'))),
        (assistant("", call('{"a": [-0.0, 1e3]}')), assistant("", call('{"a":[0,1000]}'))),
        (
            assistant("", call('{"a": 1234567890123456789}')),
            assistant("", call('{"a":1234567890123456800}')),
        ),
        (assistant("", call('{"a": 1E25}')), assistant("", call('{"a":1e+25}'))),
        ({"role": "system", "content": "a"}, {"role": "developer", "content": "a"}),
        (
            {"role": "tool", "content": "a", "tool_call_id": "1"},
            {"role": "tool", "content": "a", "tool_call_id": "2"},
        ),
    ],
)
def test_rewriting_a_message_keeps_its_key(left: Any, right: Any) -> None:
    assert message_key(left) == message_key(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (user("a"), user("b")),
        (user("a b"), user("ab")),
        (user("a" * 5000), user("a" * 4999 + "b")),
        (user("a"), assistant("a")),
        (user("a"), {**user("a"), "name": "ann"}),
        (user("<think>x</think>a"), user("a")),
        (assistant("a"), assistant("a", call("{}"))),
        (assistant("", call('{"a": 1}')), assistant("", call('{"a": 2}'))),
        (assistant("", call('{"a": 1}')), assistant("", call('{"a": true}'))),
        (assistant("", call('{"a": 1}')), assistant("", call('{"a": "1"}'))),
        (assistant("", call('{"a": 0.1}')), assistant("", call('{"a": 0.2}'))),
        (assistant("", call("{}")), assistant("", call("{}", name="g"))),
        (assistant("", call("{}")), assistant("", call("{}"), call("{}"))),
        ({"role": "tool", "content": "a"}, user("a")),
    ],
)
def test_messages_that_differ_have_other_keys(left: Any, right: Any) -> None:
    assert message_key(left) != message_key(right)


@given(st.integers(0, 2**32), st.text(max_size=8), st.dictionaries(st.text(max_size=3), st.none()))
def test_any_rewriting_keeps_the_key(seed: int, text: str, arguments: dict[str, None]) -> None:
    message = assistant(text, call(json.dumps(arguments)))
    assert message_key(rewritten(message, random.Random(seed))) == message_key(message)


def test_arguments_nested_too_deep_still_have_a_key() -> None:
    for depth in (300, 5000):
        deep = assistant("", call("[" * depth + "]" * depth))
        assert message_key(deep) != message_key(assistant("", call("[]")))


def test_a_chain_names_each_beginning() -> None:
    history = [{"role": "system", "content": "s"}, user("a"), assistant("b"), user("c")]
    numbers = chain(history)
    assert len(set(numbers)) == len(history)
    assert chain(history[:2]) == numbers[:2]
    assert chain([history[0], user("x"), *history[2:]])[1:] != numbers[1:]
    assert all(-(2**63) <= number < 2**63 for number in numbers)


def test_a_loose_chain_leaves_system_text_out() -> None:
    told = [{"role": "system", "content": "s"}, user("a"), {"role": "developer", "content": "d"}]
    assert chain(told, system=False)[-1] == chain([user("a")], system=False)[-1]
    assert chain(told)[-1] != chain([user("a")])[-1]
    assert chain([user("a")], system=False) != chain([user("a")])


def test_anchors_find_a_history_with_its_usual_changes() -> None:
    system = {"role": "system", "content": "12:01"}
    reply = assistant("b")
    exact, trunk, loose, _ = anchors([system, user("a"), user("context")], reply)
    assert chain([system, user("a"), user("context"), reply])[-1] == exact
    assert chain([system, user("a"), reply])[-1] == trunk, "its last message was never kept"
    other = {"role": "system", "content": "12:02"}
    kept = [other, user("a"), user("context"), reply]
    assert chain(kept, system=False)[-1] == loose, "its system text was rewritten"
    assert exact not in (trunk, loose)


def test_who_talks_to_itself() -> None:
    committed = user("I committed the changes with git hash 4f95b45 & commit msg: fix: it")
    history = [
        *(user("Fix it"), assistant("Done."), committed, assistant("Ok.")),
        *(user("I committed the changes"), assistant("Good."), user("I updated the files. And?")),
        *(assistant("And?"), user("I updated the files."), user("Go on"), assistant("Ok.")),
        *(user("I updated the files."), assistant("Ok."), user("I updated the files.")),
    ]
    assert own_talk(history) == {2, 3, 11, 12}
    assert said(history[6:]) == (history[6], history[8], history[9], history[13])
