"""How good a tool call is: a pure function from a reply and the call that was wanted.

A reply earns something for every part that is right, so that a model which gets nothing whole
yet still sees which of its attempts was the better one. A call that cannot be read earns less
than any that can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from instar.types import Message

OPEN, CLOSE = "<tool_call>", "</tool_call>"
WEIGHTS = {"form": 0.25, "name": 0.25, "arguments": 0.2, "values": 0.3}
TRIED = 0.2
"""Of `form`: the reply opens a call. With both tags it is twice that."""
NAMED = 0.5
"""Of `name`: a call that cannot be read at least has the right name in it."""
LOOSE = 0.5
"""Of one value: it is right but of the wrong type, such as "5" for 5."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool's name and its arguments."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Grade:
    """The parts of a call's grade, each 0 to 1."""

    form: float = 0.0
    name: float = 0.0
    arguments: float = 0.0
    values: float = 0.0

    @property
    def total(self) -> float:
        return sum(WEIGHTS[part] * value for part, value in self.parts.items())

    @property
    def parts(self) -> dict[str, float]:
        return asdict(self)


def calls_of(reply: Message) -> Iterator[Call]:
    """The calls that a reply makes, in order; arguments that are no object count as none."""
    for call in reply.get("tool_calls") or []:
        function = call["function"]
        found = function.get("arguments") or "{}"
        try:
            arguments = json.loads(found) if isinstance(found, str) else found
        except (ValueError, RecursionError):
            arguments = None
        yield Call(str(function["name"]), arguments if isinstance(arguments, dict) else {})


def grade(reply: Message, wanted: Call) -> Grade:
    """Exactly one call is wanted; several share what the best of them earns."""
    calls = list(calls_of(reply))
    if not calls:
        return _grade_text(str(reply.get("content") or ""), wanted)
    best = max((_grade_call(call, wanted) for call in calls), key=lambda one: one.total)
    share = {part: value / len(calls) for part, value in best.parts.items()}
    return Grade(**share)


def _grade_call(call: Call, wanted: Call) -> Grade:
    keys = call.arguments.keys() | wanted.arguments.keys()
    shared = call.arguments.keys() & wanted.arguments.keys()
    right = sum(alike(call.arguments[key], wanted.arguments[key]) for key in shared)
    return Grade(
        form=1.0,
        name=float(call.name == wanted.name),
        arguments=len(shared) / len(keys) if keys else 1.0,
        values=right / len(keys) if keys else 1.0,
    )


def _grade_text(text: str, wanted: Call) -> Grade:
    """What a reply without a readable call earns for trying."""
    opened = text.find(OPEN)
    if opened < 0:
        return Grade()
    body = text[opened + len(OPEN) :]
    named = re.search(r'"name"\s*:\s*"([^"]*)"', body)
    return Grade(
        form=TRIED * (2 if CLOSE in body else 1),
        name=NAMED if named and named[1] == wanted.name else 0.0,
    )


def alike(found: Any, wanted: Any) -> float:
    """1 where the value is right, something where only its type is wrong, else 0."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return float(found is wanted)
    if isinstance(wanted, str):
        if isinstance(found, str):
            return float(_plain(found) == _plain(wanted))
        return LOOSE if _same_number(found, wanted) else 0.0
    if isinstance(wanted, int | float):
        if isinstance(found, int | float):
            return float(found == wanted)
        return LOOSE if _same_number(found, wanted) else 0.0
    return float(found == wanted)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _same_number(found: Any, wanted: Any) -> bool:
    if isinstance(found, list | dict) or found is None:
        return False
    try:
        return float(found) == float(wanted)
    except (ValueError, OverflowError):
        return False


def says(text: str, fact: str) -> bool:
    """Whether the text states the fact as a word of its own, not as a part of another."""
    return re.search(rf"(?<![\w.]){re.escape(fact)}(?![\w]|\.\d)", text) is not None
