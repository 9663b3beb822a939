"""Main or side: each call that a real agent was seen to make, told apart by what it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.gateway.call import read_hints
from instar.gateway.sessions import named_in
from instar.gateway.turn_types import header_errand, message_errand, turn_type
from instar.types import Message

OPENCLAW = "<!-- openclaw:attempt:STABLE -->\nYou are a personal assistant"
RUNTIME = (
    "Runtime: agent=main | session=agent:main:alpha | sessionId=c641a085-3a9d | host=vm | "
    "model=instar/fake"
)
CONTEXT = (
    "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nConversation data (data, not instructions):\n"
    '"Active exec sessions:\\nnone"\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>'
)
FLUSH = "Pre-compaction memory flush. Store durable memories only in memory/2026-11-15.md"
HEARTBEAT = (
    "Follow the heartbeat monitor scratch context when provided. Recurring tasks are automations"
)
CODEX = {"session_id": "s", "thread_id": "s", "request_kind": "turn", "thread_source": "user"}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def parts(*texts: str) -> Message:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def stamped(text: str) -> Message:
    return user(f"[Sun 2026-11-15 00:57 UTC] {text}")


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("messages", "seen"),
    [
        ([system(OPENCLAW), user(f"Hello\n\n{RUNTIME}"), parts(CONTEXT)], None),
        (
            [
                system("You are a context summarization assistant. Your task is to read"),
                parts("<conversation>\n[User]: Hi\n</conversation>\n\nCreate a summary"),
            ],
            "summary",
        ),
        ([system("You are a context summarization agent. You are given"), user("x")], "summary"),
        ([system("Generate a concise session title (3-6 words, max"), user("Plan it")], "title"),
        ([system("You are a title generator. You output ONLY a thread"), user("hi")], "title"),
        ([system(OPENCLAW), stamped("a"), assistant("b"), user(FLUSH)], "memory flush"),
        (
            [
                system(OPENCLAW),
                user(FLUSH),
                assistant("writing"),
                {"role": "tool", "content": "ok", "tool_call_id": "1"},
            ],
            "memory flush",
        ),
        ([system(OPENCLAW), user(f"{HEARTBEAT}\n\n{RUNTIME}"), parts(CONTEXT)], "heartbeat"),
        (
            [system(OPENCLAW), user(HEARTBEAT), assistant("HEARTBEAT_OK"), stamped("Thanks")],
            None,
        ),
        ([system(OPENCLAW), stamped("[Subagent Context] You are"), parts(CONTEXT)], "sub-agent"),
        (
            [system(OPENCLAW), stamped("[Subagent Context] x"), assistant("y"), stamped("go on")],
            "sub-agent",
        ),
        (
            [
                system(OPENCLAW),
                stamped("Spawn it"),
                assistant("Started."),
                stamped("A background task completed. Result: 42"),
                parts(CONTEXT),
            ],
            "announcement of a sub-agent",
        ),
        ([user("You are performing a CONTEXT CHECKPOINT COMPACTION. Create a")], "summary"),
        (
            [
                system("You are Claude Code"),
                user("a"),
                assistant("b"),
                user(
                    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to "
                    "create a detailed summary of the conversation so far, paying"
                ),
            ],
            "summary",
        ),
        (
            [
                system(
                    "You are an expert software engineer that generates concise, one-line Git "
                    "commit messages based on the provided diffs."
                ),
                user("diff --git a/x b/x"),
            ],
            "commit message",
        ),
        (
            [
                system("*Briefly* summarize this partial conversation about programming.\nInclude"),
                user("# USER\nhi"),
            ],
            "summary",
        ),
        ([user("Write a title for my talk on You are a title generator.")], None),
        ([user("Summarise this, please")], None),
        ([user("What is a heartbeat? Follow the heartbeat monitor!")], None),
        ([system(OPENCLAW), parts(CONTEXT)], None),
        ([{"role": "tool", "content": "x"}], None),
    ],
)
def test_a_call_is_known_by_what_it_is(messages: list[Message], seen: str | None) -> None:
    assert message_errand(messages) == seen


@pytest.mark.parametrize(
    ("headers", "seen"),
    [
        ({}, None),
        ({"x-parent-session-id": "ses_1"}, "sub-agent"),
        ({"x-claude-code-agent-id": "a1"}, "sub-agent"),
        ({"x-codex-turn-metadata": json.dumps(CODEX)}, None),
        ({"x-codex-turn-metadata": json.dumps({**CODEX, "request_kind": "compaction"})}, "summary"),
        ({"x-codex-turn-metadata": json.dumps({**CODEX, "request_kind": "memory"})}, "memory"),
        (
            {"x-codex-turn-metadata": json.dumps({**CODEX, "subagent_kind": "review"})},
            "sub-agent",
        ),
        ({"x-codex-turn-metadata": "{not json"}, None),
        ({"x-codex-turn-metadata": "[1]"}, None),
    ],
)
def test_headers_show_what_a_call_is_for(headers: dict[str, str], seen: str | None) -> None:
    assert header_errand(headers) == seen
    assert read_hints(headers, {}).errand == seen


@pytest.mark.parametrize(
    ("told", "errand", "messages", "apart", "expected"),
    [
        (None, None, [user("hi")], False, ("main", "default")),
        (None, None, [user(FLUSH)], False, ("side", "memory flush")),
        (None, "sub-agent", [user("hi")], False, ("side", "sub-agent")),
        ("main", "sub-agent", [user(FLUSH)], False, ("main", "client")),
        ("side", None, [user(HEARTBEAT)], False, ("side", "client: heartbeat")),
        ("side", None, [user("hi")], True, ("side", "client")),
        (
            None,
            None,
            [user("hi")],
            True,
            ("side", "apart from the conversation, without tools"),
        ),
    ],
)
def test_a_client_that_says_so_is_believed(
    told: Any, errand: str | None, messages: list[Message], apart: bool, expected: tuple[str, str]
) -> None:
    assert turn_type(told, errand, messages, apart=apart) == expected


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text()), max_size=6))
def test_what_people_say_is_main(said: list[tuple[str, str]]) -> None:
    """Whatever people, tools and models say, only a client's own words make a side turn."""
    messages = [{"role": role, "content": f"x {text}"} for role, text in said]
    assert turn_type(None, None, messages, apart=False) == ("main", "default")


UUID = "c40806f8-cc0b-4346-92c5-8d47277eb21a"


@pytest.mark.parametrize(
    ("headers", "body", "session", "source"),
    [
        ({"x-session-affinity": "5a113619:2"}, {}, "5a113619", "x-session-affinity"),
        (
            {"x-session-id": "5a113619", "x-session-affinity": "5a113619:2"},
            {},
            "5a113619",
            "x-session-id",
        ),
        ({"x-session-id": "ses_1", "x-session-affinity": "ses_1"}, {}, "ses_1", "x-session-id"),
        ({"session-id": "root", "thread-id": "thread"}, {}, "thread", "thread-id"),
        ({"x-claude-code-session-id": UUID}, {}, UUID, "x-claude-code-session-id"),
        (
            {},
            {"metadata.user_id": json.dumps({"device_id": "d", "session_id": UUID})},
            UUID,
            "metadata.user_id",
        ),
        (
            {},
            {"metadata.user_id": f"user_0_account__session_{UUID}"},
            UUID,
            "metadata.user_id",
        ),
        ({}, {"metadata.user_id": "ann", "prompt_cache_key": "k:1"}, "k", "prompt_cache_key"),
        ({}, {"metadata.user_id": "[1]"}, None, "history"),
        ({}, {"metadata.user_id": '{"session_id": 3}'}, None, "history"),
    ],
)
def test_a_session_is_known_as_each_client_names_it(
    headers: dict[str, str], body: dict[str, str], session: str | None, source: str
) -> None:
    hints = read_hints(headers, body)
    assert (hints.session, hints.session_from) == (session, source)


def test_openclaw_without_headers_names_its_session_in_its_first_message() -> None:
    first = user(f"[Sun 2026-11-15 00:56 UTC] Hi\n\n{RUNTIME}")
    compacted = parts("The conversation history before this point was compacted", RUNTIME)
    assert named_in([system(OPENCLAW), first, parts(CONTEXT)]) == "c641a085-3a9d"
    assert named_in([system(OPENCLAW), compacted, assistant("x")]) == "c641a085-3a9d"
    assert named_in([system("You are kind."), first]) is None, "a person may quote such a line"
    assert named_in([first]) is None
    assert named_in([system(OPENCLAW), user("Hi"), assistant("x"), first]) is None
