"""What makes two messages the same, however a client rewrote one of them.

A client resends its history as text and alters it: white space is trimmed, thinking dropped,
tool ids renamed, arguments re-serialised, strings become lists of parts. A message's key leaves
all that out. A history's chain hashes its keys, so that a history is found by one number.

Some clients also rewrite what a person said: a time goes in front, a retry is wrapped in a note,
a block of context comes and goes. The `told` chain knows only what people, tools and the model
said, so that a rewritten history still shows which turn it continues.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from instar.synthetic import strip, talks_to_itself
from instar.types import Message

_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)

_LONG = 512
"""Bytes of a message's key from which on its digest stands for it."""

_WHOLE = 2**53
"""Up to here doubles tell whole numbers apart."""

_EMPTY, _LOOSE, _TOLD = b"\0" * 8, b"loose\0\0\0", b"told\0\0\0\0"
"""Where the three kinds of chain begin, so that no number means two things."""


def message_key(message: Message) -> bytes:
    """Equal for two messages that say the same."""
    role = role_of(message)
    text = text_of(message)
    if role == "assistant":
        text = _THOUGHTS.sub("", text)
    parts: list[Any] = [role, text.strip()]
    if role == "assistant" and message.get("tool_calls"):
        parts.append([_call_key(call) for call in message["tool_calls"]])
    elif role == "user" and message.get("name"):
        parts.append(message["name"])
    key = orjson.dumps(parts)
    # A history's chains are many: each hashes a long message's digest, not the message again.
    return key if len(key) <= _LONG else hashlib.blake2b(key, digest_size=32).digest()


def chain(messages: Sequence[Message], *, system: bool = True, told: bool = False) -> list[int]:
    """One number for each beginning of the history; with `system=False`, system text is ignored.

    With `told`, text that no person typed is ignored as well. Entry i stands for
    messages[: i + 1].
    """
    state = _TOLD if told else _EMPTY if system else _LOOSE
    keys = _keys(messages, system=system, told=told)
    return [_number(state := state if key is None else _digest(state, key)) for key in keys]


def said(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What people and tools said in these messages, in their own words."""
    own = own_talk(messages)
    heard = [one for at, one in enumerate(messages) if at not in own]
    seen = (_as_told(one) for one in heard if one["role"] in ("user", "tool"))
    return tuple(one for one in seen if one is not None)


def own_talk(messages: Sequence[Message]) -> frozenset[int]:
    """Positions of messages in which a client talks to itself, in both roles."""
    own: set[int] = set()
    for at, message in enumerate(messages):
        if message["role"] != "user":
            continue
        after = messages[at + 1] if at + 1 < len(messages) else None
        answered = after is not None and after["role"] == "assistant"
        if talks_to_itself(text_of(message), text_of(after) if after and answered else ""):
            own.update((at, at + 1) if answered else (at,))
    return frozenset(own)


def anchors(messages: Sequence[Message], reply: Message) -> tuple[int, ...]:
    """By which numbers a later history that contains this reply is recognised.

    In order: the history as it was; the history without its last message, since some clients
    end each request with one that they never send again; the history without system text, since
    some clients rewrite that on each call; only what was said, for those that rewrite more.
    """
    answer = message_key(reply)
    plain = [message_key(one) for one in messages]
    strict = _last_two(plain, _EMPTY)
    loose = _last_two(_keys(messages, system=False, plain=plain), _LOOSE)
    told = _last_two(_keys(messages, told=True, plain=plain), _TOLD)
    ends = (strict[0], strict[1], loose[0], told[0])
    exact, trunk, no_system, only_told = (_number(_digest(state, answer)) for state in ends)
    return exact, trunk, no_system, only_told


def _keys(
    messages: Sequence[Message],
    *,
    system: bool = True,
    told: bool = False,
    plain: Sequence[bytes] = (),
) -> Iterator[bytes | None]:
    """The key of each message; None for one that is left out.

    `plain` are the keys of the messages as they are, where somebody has them: most of the work.
    """
    own = own_talk(messages) if told else ()
    for at, message in enumerate(messages):
        seen = (None if at in own else _as_told(message)) if told else message
        left_out = (told or not system) and role_of(message) == "system"
        if seen is None or left_out:
            yield None
        else:
            yield plain[at] if plain and seen is message else message_key(seen)


def _last_two(keys: Iterable[bytes | None], state: bytes) -> tuple[bytes, bytes]:
    """The state after all messages, and after all but the last."""
    before = state
    for key in keys:
        before, state = state, state if key is None else _digest(state, key)
    return state, before


def _number(state: bytes) -> int:
    return int.from_bytes(state, "little", signed=True)


def _as_told(message: Message) -> Message | None:
    """The message without its client's own text; None where nothing else is in it."""
    if role_of(message) != "user" or _has_image(message):
        return message
    whole = text_of(message)
    text = strip(whole)
    if not text:
        return None
    return message if text == whole else {**message, "content": text}


def _has_image(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(one.get("type") == "image_url" for one in content)


def _digest(state: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=8, key=state).digest()


def role_of(message: Message) -> str:
    """The message's role; a developer's text is system text."""
    role = str(message.get("role"))
    return "system" if role == "developer" else role


def text_of(message: Message) -> str:
    """All words of a message, whole or in parts."""
    content: Any = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(_part(part) for part in content)


def _part(part: dict[str, Any]) -> str:
    """An image counts by what it shows: its data, not the way to it."""
    if part.get("type") != "image_url":
        return part.get("text") or ""
    return f"image {hashlib.blake2b(part['image_url']['url'].encode(), digest_size=16).hexdigest()}"


def _call_key(call: dict[str, Any]) -> list[Any]:
    function = call.get("function", {})
    raw = function.get("arguments", "")
    try:
        parsed = orjson.loads(raw) if isinstance(raw, str) else raw
        raw = orjson.dumps(_as_doubles(parsed), option=orjson.OPT_SORT_KEYS).decode()
    except (ValueError, TypeError, RecursionError):
        # No JSON, or nested deeper than can be written again.
        raw = str(raw).strip()
    return [function.get("name"), raw]


def _as_doubles(value: Any) -> Any:
    """Numbers as a client in JavaScript has them: 2.0 comes back as 2, and long ones rounded."""
    if isinstance(value, dict):
        return {name: _as_doubles(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_as_doubles(one) for one in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    double = float(value)
    return int(double) if double.is_integer() and abs(double) <= _WHOLE else double
