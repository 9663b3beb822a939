"""What an agent's reply means: a tool call, something said to the customer, or neither."""

from __future__ import annotations

import json
from typing import Any

from instar.errors import ReplyError
from instar.types import Message

NOT_MADE = "Error: one tool call at a time; this one was not made"


def read_call(call: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Name and arguments of a call, and what is wrong with them if something is."""
    name = str(call["function"]["name"])
    try:
        given = json.loads(call["function"].get("arguments") or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return name, {}, "Error: the arguments are no JSON object"
    return name, given, ""


def said_to_user(reply: Message) -> str:
    """What a reply says to the customer; half a tool call is nothing that anybody should hear."""
    text = str(reply.get("content") or "").strip()
    if not text or "<tool_call>" in text:
        raise ReplyError(f"the reply is no message to the user and no tool call: {text[:200]}")
    return text


def told(call: dict[str, Any], name: str, output: str) -> Message:
    return {"role": "tool", "tool_call_id": call.get("id", ""), "name": name, "content": output}
