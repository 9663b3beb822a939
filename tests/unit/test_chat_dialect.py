"""Chat Completions: what is read of a body, and the bytes of a reply."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled_turns import turn

from instar.batch.render import ChatRenderer
from instar.errors import RequestError
from instar.gateway.call import Call, Step, read_hints
from instar.gateway.dialects.chat import REFUSED, ChatWriter, parse
from instar.types import Delta, Piece

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RENDERER = ChatRenderer.for_bytes()


def writer(**given: Any) -> ChatWriter:
    call = Call(model="m", messages=(), stream=True, **given)
    made = ChatWriter(call, RENDERER)
    made.begin(Step(name="t1", deltas=[]))
    return made


def events(data: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(line[6:]) for line in data.decode().split("\n\n") if line]


@given(st.text(), st.sampled_from(["content", "reasoning"]), st.booleans())
def test_an_event_made_from_parts_is_an_event(text: str, kind: Any, usage: bool) -> None:
    delta = Delta(kind=kind, text=text)
    name = "content" if kind == "content" else "reasoning_content"
    (event,) = events(writer(include_usage=usage).step(Step(name="t1", deltas=[delta])))
    assert event["choices"] == [
        {"index": 0, "delta": {name: text}, "finish_reason": None, "logprobs": None}
    ]
    assert event["id"] == "chatcmpl-t1"
    assert ("usage" in event) == usage


def test_each_token_brings_its_logprob_though_its_text_is_held_back() -> None:
    made = writer(logprobs=True, top_logprobs=1)
    piece = Piece(ids=(64, 65), logprobs=(-1.0, -2.0), version="base", top=(((64, -1.0),),) * 2)
    (event,) = events(made.step(Step(name="t1", deltas=[], piece=piece)))
    entries = event["choices"][0]["logprobs"]["content"]
    assert [(e["token"], e["logprob"]) for e in entries] == [("a", -1.0), ("b", -2.0)]
    assert entries[0]["top_logprobs"][0]["token"] == "a"


@given(st.text("abSTOP", max_size=12), st.integers(1, 3), st.booleans())
def test_the_tokens_of_a_stop_string_are_not_logged(text: str, size: int, end: bool) -> None:
    """Nor those of what follows it; what may begin one waits until that is clear."""
    made = writer(logprobs=True, stop=("STOP",))
    ids = RENDERER.encode(text + "STOP" * end + "b")
    shown = []
    for at in range(0, len(ids), size):
        part = tuple(ids[at : at + size])
        piece = Piece(ids=part, logprobs=(-1.0,) * len(part), version="base")
        for event in events(made.step(Step(name="t1", deltas=[], piece=piece))):
            shown += event["choices"][0]["logprobs"]["content"]
    for event in events(made.end(turn("t1", [1], ids), 0).replace(b"data: [DONE]\n\n", b"")):
        shown += (event["choices"][0]["logprobs"] or {"content": []})["content"]
    whole = text + "STOP" * end + "b"
    assert "".join(one["token"] for one in shown) == whole.partition("STOP")[0]


def test_a_message_with_a_refusal_says_it() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "I will not."}
    call = parse({**BODY, "messages": [*BODY["messages"], refused, *BODY["messages"]]})
    assert call.messages[1] == {"role": "assistant", "content": "I will not."}


def test_a_limit_is_named_rather_than_another_form() -> None:
    with pytest.raises(RequestError, match="at most 16"):
        parse({**BODY, "stop": ["x"] * 17})


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_answer_is_refused_by_name(name: str) -> None:
    off = dict.fromkeys(("do_sample", "skip_special_tokens", "detokenize"), False)
    value = {"n": 2, "response_format": {"type": "json_object"}, **off}.get(name, [1])
    with pytest.raises(RequestError, match=name) as caught:
        parse({**BODY, name: value})
    assert (caught.value.status, caught.value.param) == (400, name)


@pytest.mark.parametrize(
    "extra",
    [
        {"store": True, "user": "me", "metadata": {"a": 1}, "service_tier": "auto", "frob": 1},
        {"n": 1, "logit_bias": {}, "frequency_penalty": 0, "response_format": {"type": "text"}},
        {"temperature": None, "stop": None, "tools": None, "stream": None},
    ],
)
def test_what_changes_nothing_is_ignored(extra: dict[str, Any]) -> None:
    assert parse({**BODY, **extra}) == parse(BODY)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
        (
            {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
            "tool_choice",
        ),
        ({"stop": [""]}, None),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
def test_a_bad_field_is_named(extra: dict[str, Any], param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        parse({**BODY, **extra})
    assert caught.value.status == 400
    if param:
        assert caught.value.param == param


@pytest.mark.parametrize(
    "part",
    [{"type": "refusal", "refusal": "I won't."}, {"type": "refusal", "text": "I won't."}],
    ids=["openai", "as text"],
)
def test_a_refusal_is_its_text(part: dict[str, Any]) -> None:
    said = {"role": "assistant", "content": [part]}
    call = parse({**BODY, "messages": [*BODY["messages"], said, *BODY["messages"]]})
    assert call.messages[1]["content"] == [{"type": "text", "text": "I won't."}]
    with pytest.raises(RequestError, match="refusal"):
        parse({**BODY, "messages": [{"role": "assistant", "content": [{"type": "refusal"}]}]})


@pytest.mark.parametrize(
    "extra", [{"enable_thinking": False}, {"thinking": {"type": "disabled"}}, {"thinking": False}]
)
def test_thinking_can_be_turned_off(extra: dict[str, Any]) -> None:
    assert parse({**BODY, **extra}).options == {"enable_thinking": False}
    said = {"chat_template_kwargs": {"enable_thinking": True}}
    assert parse({**BODY, **extra, **said}).options == {"enable_thinking": True}


def test_stop_token_ids_are_read_once_each() -> None:
    assert parse({**BODY, "stop_token_ids": [5, 0, 5]}).stop_ids == (5, 0)


def test_max_completion_tokens_wins_over_the_older_name() -> None:
    assert parse({**BODY, "max_tokens": 5, "max_completion_tokens": 7}).max_tokens == 7


def test_the_first_header_that_names_a_session_wins() -> None:
    body = {"session_id": "body", "prompt_cache_key": "key:3"}
    assert read_hints({"x-session-affinity": "aff:12", "session-id": "s"}, body).session == "aff"
    assert read_hints({"x-session-id": "x:1"}, body).session == "x:1"
    assert read_hints({}, body).session == "key"
    assert read_hints({}, {"session_id": "body"}).session == "body"
    assert read_hints({}, {}).session is None
