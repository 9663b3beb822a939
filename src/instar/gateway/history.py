"""What makes two messages the same, however a client rewrote one of them.

A client resends its history as text and alters it: white space is trimmed, thinking dropped,
tool ids renamed, arguments re-serialised, strings become lists of parts. A message's key leaves
all that out. A history's chain hashes its keys, so that a history is found by one number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import orjson

from instar.types import Message

_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)

_EMPTY = b"\0" * 8


def message_key(message: Message) -> bytes:
    """Equal for two messages that say the same."""
    role = _role(message)
    text = _text(message.get("content"))
    if role == "assistant":
        text = _THOUGHTS.sub("", text)
    parts: list[Any] = [role, text.strip()]
    if role == "assistant" and message.get("tool_calls"):
        parts.append([_call_key(call) for call in message["tool_calls"]])
    elif role == "user" and message.get("name"):
        parts.append(message["name"])
    return orjson.dumps(parts)


def chain(messages: Sequence[Message], *, system: bool = True) -> list[int]:
    """One number for each beginning of the history; with `system=False`, system text is ignored.

    Entry i stands for messages[: i + 1].
    """
    return _chain([_keyed(message) for message in messages], system=system)


def anchors(messages: Sequence[Message], reply: Message) -> tuple[int, ...]:
    """By which numbers a later history that contains this reply is recognised.

    In order: the history as it was; the history without its last message, since some clients
    end each request with one that they never send again; the history without system text, since
    some clients rewrite that on each call.
    """
    keys, last = [_keyed(message) for message in messages], _keyed(reply)
    exact = _chain([*keys, last])[-1]
    trunk = _chain([*keys[:-1], last])[-1]
    loose = _chain([*keys, last], system=False)[-1]
    return exact, trunk, loose


def _keyed(message: Message) -> tuple[bytes, bool]:
    """A message's key, and whether it is system text."""
    return message_key(message), _role(message) == "system"


def _chain(keys: Sequence[tuple[bytes, bool]], *, system: bool = True) -> list[int]:
    out = []
    state = _EMPTY if system else b"loose\0\0\0"
    for key, is_system in keys:
        if system or not is_system:
            state = _digest(state, key)
        out.append(int.from_bytes(state, "little", signed=True))
    return out


def _digest(state: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=8, key=state).digest()


def _role(message: Message) -> str:
    role = str(message.get("role"))
    return "system" if role == "developer" else role


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)


def _call_key(call: dict[str, Any]) -> list[Any]:
    function = call.get("function", {})
    raw = function.get("arguments", "")
    try:
        parsed = orjson.loads(raw) if isinstance(raw, str) else raw
        raw = orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS).decode()
    except (ValueError, TypeError):
        # No JSON, or nested deeper than can be written again.
        raw = str(raw).strip()
    return [function.get("name"), raw]
