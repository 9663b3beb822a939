"""Whether a call is part of the conversation (main) or beside it (side), and why.

A client that says so is believed. Otherwise a call is main, unless it is seen to be one that an
agent makes on its own account: for a summary, a title, a memory flush, a heartbeat, a sub-agent.
Those are served and recorded like any other, and never trained: nobody judges them. The tables
below, and ERRANDS in synthetic.py, say what each looks like.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from instar.gateway.history import role_of, text_of
from instar.synthetic import errand, unwrap
from instar.types import Kind, Message

BY_CLIENT = "client"
BY_DEFAULT = "default"

SYSTEMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("summary", re.compile(r"You are a context summarization (?:assistant|agent)\b")),
    ("summary", re.compile(r"You are a helpful AI assistant tasked with summarizing\b")),
    ("summary", re.compile(r"\*Briefly\* summarize this partial conversation about programming\b")),
    (
        "commit message",
        re.compile(
            r"You are an expert software engineer that generates concise, "
            r"one-line Git commit messages\b"
        ),
    ),
    ("title", re.compile(r"Generate a concise session title\b")),
    ("title", re.compile(r"You are a title generator\b")),
    ("title", re.compile(r"Generate a short kebab-case name\b")),
)
"""How the system text of such a call begins: OpenClaw, opencode, Claude Code, aider."""


def _codex(value: str) -> str | None:
    """codex describes each request in JSON: what it is for, and whose thread it is in."""
    try:
        told: Any = orjson.loads(value)
    except ValueError:
        return None
    if not isinstance(told, dict):
        return None
    if told.get("request_kind", "turn") not in ("turn", None):
        return "summary" if told["request_kind"] == "compaction" else str(told["request_kind"])[:40]
    return "sub-agent" if told.get("subagent_kind") or told.get("parent_thread_id") else None


HEADERS: tuple[tuple[str, Callable[[str], str | None]], ...] = (
    ("x-parent-session-id", lambda _: "sub-agent"),  # opencode
    ("x-claude-code-agent-id", lambda _: "sub-agent"),
    ("x-codex-turn-metadata", _codex),
)


def turn_type(
    told: Kind | None, errand_seen: str | None, messages: Sequence[Message], *, apart: bool
) -> tuple[Kind, str]:
    """Main or side, and the reason that is kept with the turn.

    `apart`: the call has no tools and continues nothing, in a session whose turns have tools.
    """
    seen = errand_seen or message_errand(messages)
    if told is not None:
        return told, f"{BY_CLIENT}: {seen}" if told == "side" and seen else BY_CLIENT
    if seen is not None:
        return "side", seen
    return ("side", "apart from the conversation, without tools") if apart else ("main", BY_DEFAULT)


def header_errand(headers: Mapping[str, str]) -> str | None:
    """What the headers show a call to be for; None where they show nothing."""
    for name, read in HEADERS:
        if (value := headers.get(name)) and (found := read(value)):
            return found
    return None


def message_errand(messages: Sequence[Message]) -> str | None:
    """What the messages show a call to be for; None where they are a conversation."""
    for message in messages:
        if role_of(message) == "system":
            text = text_of(message).lstrip()
            if found := next((what for what, begins in SYSTEMS if begins.match(text)), None):
                return found
    people = [said for one in messages if one["role"] == "user" and (said := unwrap(text_of(one)))]
    if not people:
        return None
    # A sub-agent is told what it is first; everything else is asked for last.
    return "sub-agent" if errand(people[0]) == "sub-agent" else errand(people[-1])
