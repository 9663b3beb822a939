"""From a recorded turn to what a judge is shown: request, reply and the whole next state.

The last thing the person asked before the reply is the request; what was said before that is
the history. Everything that followed is the next state, all tool results included: of several
parallel calls the first may have failed. Synthetic client text is taken out of each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from instar.synthetic import strip
from instar.types import Message, Turn

Role = Literal["user", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What happened, as text: the only thing a judge ever sees."""

    request: str
    response: str
    next: str
    role: Role = "user"
    """Who spoke in the next state: the person, or only tools."""
    history: str = ""
    """What was said before the request, oldest first."""
    owner: str = ""
    """Whose turn it is; a judge may know what this person's words mean."""


def case_of(turn: Turn) -> Case | None:
    """The turn as a case, or None where nothing followed that anybody could judge by."""
    if turn.next_state is None:
        return None
    following = [one for one in map(_spoken, turn.next_state.messages) if one is not None]
    if not following:
        return None
    said = [text for role, text in following if role == "user"]
    # The person has the last word: a tool's error that they call fine is fine.
    role: Role = "user" if said else "tool"
    texts = said or [text for _, text in following]
    tools = [text for kind, text in following if kind == "tool"] if said else []
    request, history = _asked(turn.messages)
    return Case(
        request=request,
        response=reply_text(turn.reply),
        next="\n\n".join(texts),
        role=role,
        history="\n".join([*history, *(f"tool: {one}" for one in tools)]),
        owner=turn.owner,
    )


def message_text(message: Message) -> str:
    """The words of a message, without what its client put in by itself."""
    content = message.get("content")
    if isinstance(content, str):
        return strip(content)
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, dict))
    return strip("\n".join(text for text in parts if isinstance(text, str)))


def reply_text(reply: Message) -> str:
    """What the model said and which tools it called."""
    calls = [_call(one) for one in reply.get("tool_calls") or ()]
    return "\n".join(part for part in (message_text(reply), *calls) if part)


def _call(call: dict[str, Any]) -> str:
    function = call.get("function") or {}
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f"{function.get('name', '')}({arguments})"


def _spoken(message: Message) -> tuple[str, str] | None:
    """(role, text) of a message of the next state; None for one that says nothing."""
    role = str(message.get("role"))
    text = message_text(message)
    if role == "tool":
        return role, text  # an empty result is a result
    return (role, text) if role == "user" and text else None


def _asked(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """The person's last request, and everything before it, one line a message."""
    spoken = [
        (str(one.get("role")), text)
        for one in messages
        if (text := reply_text(one)) and one.get("role") != "system"
    ]
    last = max((at for at, (role, _) in enumerate(spoken) if role == "user"), default=None)
    if last is None:
        return "", [f"{role}: {text}" for role, text in spoken]
    others = [*spoken[:last], *spoken[last + 1 :]]
    return spoken[last][1], [f"{role}: {text}" for role, text in others]
