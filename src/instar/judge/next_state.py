"""From a recorded turn to what a judge is shown: request, reply and the whole next state.

The last thing the person asked before the reply is the request; what was said before that is
the history. Everything that followed is the next state, all tool results included, also where the
person spoke after them: of several parallel calls the first may have failed. Synthetic client text
is taken out of each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from instar.judge.calls import calls_in
from instar.synthetic import strip
from instar.types import Message, Turn

Role = Literal["user", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool gave."""

    text: str
    call: str = ""
    """The call that it answers, as it stands in the reply; empty where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What happened, as text: the only thing a judge ever sees."""

    request: str
    response: str
    next: str
    """What the person said; where only tools spoke, all that they gave."""
    role: Role = "user"
    """Who had the last word in the next state: the person, or only tools."""
    results: tuple[ToolResult, ...] = ()
    """What each tool gave, also where the person spoke after it; may be left out where `next`
    is a tool's result."""
    history: str = ""
    """What was said before the request, oldest first."""
    owner: str = ""
    """Whose turn it is; a judge may know what this person's words mean."""

    @property
    def tools(self) -> tuple[ToolResult, ...]:
        """All tool results of the next state."""
        if self.results or self.role == "user":
            return self.results
        calls = calls_in(self.response)
        return (ToolResult(text=self.next, call=calls[0] if len(calls) == 1 else ""),)

    @property
    def whole(self) -> str:
        """The whole next state as one text: what the tools gave, then what the person said."""
        if self.role == "tool":
            return self.next
        return "\n\n".join([*(one.text for one in self.results), self.next])

    def pieces(self) -> list[Case]:
        """Each tool result and then the person's words, as cases of their own."""
        tools = [replace(self, next=one.text, role="tool", results=(one,)) for one in self.tools]
        return [*tools, replace(self, results=())] if self.role == "user" else tools


def case_of(turn: Turn) -> Case | None:
    """The turn as a case, or None where nothing followed that anybody could judge by."""
    if turn.next_state is None:
        return None
    results = _results(turn)
    said = [
        text
        for one in turn.next_state.messages
        if one.get("role") == "user" and (text := message_text(one))
    ]
    if not said and not results:
        return None
    request, history = _asked(turn.messages)
    return Case(
        request=request,
        response=reply_text(turn.reply),
        # The person has the last word: a tool's error that they call fine is fine.
        next="\n\n".join(said or (one.text for one in results)),
        role="user" if said else "tool",
        results=results,
        history="\n".join(history),
        owner=turn.owner,
    )


def _results(turn: Turn) -> tuple[ToolResult, ...]:
    """What the tools gave, each with its call: by the call's id, else by its place."""
    assert turn.next_state is not None
    calls = list(turn.reply.get("tool_calls") or ())
    by_id = {str(one.get("id")): _call(one) for one in calls}
    messages = [one for one in turn.next_state.messages if one.get("role") == "tool"]
    placed = [_call(one) for one in calls] if len(calls) == len(messages) else []
    return tuple(
        ToolResult(
            text=message_text(one),  # an empty result is a result
            call=by_id.get(str(one.get("tool_call_id")), placed[at] if placed else ""),
        )
        for at, one in enumerate(messages)
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
