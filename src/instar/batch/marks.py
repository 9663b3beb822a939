"""Marks that stand for recorded replies while a template is rendered."""

from __future__ import annotations

import re
from collections.abc import Mapping

from instar.types import Message, Turn

# Noncharacters, which `TextEncoder.guard` takes out of all that a person wrote.
_REPLY, _THOUGHT, _END = "\ufdd1", "\ufdd2", "\ufdd3"
_MARKS = re.compile(f"([{_REPLY}{_THOUGHT}])(\\d+){_END}")


def marked(at: int, turn: Turn, *, thoughts: bool) -> Message:
    """A message with marks in place of what was sampled."""
    message: Message = {"role": "assistant", "content": f"{_REPLY}{at}{_END}"}
    if thoughts and turn.reply.get("reasoning_content"):
        message["reasoning_content"] = f"{_THOUGHT}{at}{_END}"
    return message


def lost_marks(text: str, replies: Mapping[int, Turn], *, thoughts: bool) -> list[int]:
    """Positions whose mark the template left out, doubled or moved, or whose thoughts it cut."""
    marks: dict[tuple[str, int], int] = {}
    order: list[int] = []
    for hit in _MARKS.finditer(text):
        key = (hit[1], int(hit[2]))
        marks[key] = marks.get(key, 0) + 1
        if hit[1] == _REPLY:
            order.append(key[1])
    lost = [at for at in replies if marks.get((_REPLY, at), 0) != 1]
    lost += [
        at
        for at, turn in replies.items()
        if thoughts
        and at not in lost
        and turn.reply.get("reasoning_content")
        and marks.get((_THOUGHT, at), 0) != 1
    ]
    return lost if order == sorted(order) else list(replies)


def spans(text: str) -> list[tuple[int, int, int]]:
    """(position, begin, end) of what each reply covers: its thoughts, if kept, and its mark."""
    found: dict[int, tuple[int, int]] = {}
    for hit in _MARKS.finditer(text):
        at = int(hit[2])
        begin = min(found[at][0], hit.start()) if at in found else hit.start()
        found[at] = (begin, hit.end())
    return [(at, *span) for at, span in found.items()]
