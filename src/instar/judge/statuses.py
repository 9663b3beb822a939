"""Exit statuses in what a tool gave: as JSON, as a tag, as a line of a shell's wrapper.

A status that stands at a line's beginning, or in an object, is the call's own. One at the end of
a line may be part of what the command printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_NAMES = frozenset(("exitcode", "exitstatus", "exitvalue", "returncode", "retcode", "rc", "exit"))
_OUTPUTS = frozenset(("stdout", "stderr", "output", "killed", "signal", "metadata"))
"""Beside one of these, `code` and `status` are those of a process, too."""
_DEPTH = 4
_EDGE = 1000
"""Characters at either end of a content in which its wrapper is looked for."""
_N = r"(-?\d+)\b(?!\.\d)"
_CLAIM = (
    r"(?:\b(?:exit|return)[ _-]?(?:code|status|value)|\bretcode|\berrorlevel)"
    rf"(?: (?:is|was|of))?[\s\"':=>\])]{{1,4}}{_N}"
    r"|\b(?:exited|exits|returned|failed|finished|terminated|ended)(?: with)?(?: an?)?"
    rf"(?: non-?zero)?(?: (?:exit|return))?[ _-](?:code|status|value)[\s:=]+{_N}"
    r"|\bexited(?: with)? (-?\d+)(?![\w.%])(?! [a-z])"
)
_SUBJECT = r"(?:command|process|program|script|task|job|shell|tool|child)\b[^\n]{0,80}? "
_SAID = rf"(?:(?:the |your )?{_SUBJECT}(?:was )?)?(?:{_CLAIM})"
_AT_START = re.compile(rf"^[^\w\n]*{_SAID}", re.MULTILINE)
_FIRST = re.compile(rf"\s*[^\w\n]*{_SAID}")
_LAST = re.compile(rf"\n(?:\n[^\w\n]*|[\[(<]+){_SAID}[^\n]*\s*\Z")
_ALONE = re.compile(
    rf"(?:\A|\n\n)[^\w\n]*(?:exit|rc|returncode)[ :=]+{_N}[^\w\n]*(?=\n|\Z)"
    rf"|\n[^\w\n]*(?:exit|rc|returncode)[ :=]+{_N}[^\w\n]*\Z"
)
"""A bare "exit 1" is a status where a result begins or ends with it; elsewhere it is a script's."""
_AT_END = re.compile(rf"(?:{_CLAIM})[^\w\n]*$", re.MULTILINE)
_QUOTED = re.compile(
    rf"(?<!\\)[\"'](?:exit_?code|exit_?status|return_?code)(?<!\\)[\"']\s*:\s*[\"']?{_N}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statuses:
    """What was found; 0 is success."""

    own: tuple[int, ...] = ()
    """Of calls."""
    printed: tuple[int, ...] = ()
    """At the end of lines that a command may have printed."""


def statuses(text: str, values: Sequence[Any]) -> Statuses:
    """The exit statuses in a lower-case text, whose JSON values these are."""
    own = [status for value in values for status in _in_json(value)]
    if not own and text.lstrip()[:1] in ("{", "["):
        own = [int(one) for one in _QUOTED.findall(text)]  # cut off, or not quite JSON
    own += [_number(one) for pattern in (_AT_START, _ALONE) for one in pattern.finditer(text)]
    return Statuses(own=tuple(own), printed=tuple(map(_number, _AT_END.finditer(text))))


def around(text: str, values: Sequence[Any]) -> Statuses:
    """Only what a wrapper says about a content that may speak of statuses itself: in the first
    line, in a last one set apart, or in an object beside the output."""
    own = [status for value in values if _is_process(value) for status in _in_json(value)]
    ends = (_FIRST.match(text[:_EDGE]), _LAST.search(text[-_EDGE:]))
    own += [_number(one) for one in ends if one is not None]
    return Statuses(own=tuple(own[:1]))


def json_values(text: str) -> list[Any]:
    """The objects and arrays that a text is made of: one, or several one below the other."""
    text = text.strip()
    decoder = json.JSONDecoder()
    found: list[Any] = []
    while text[:1] in ("{", "["):
        try:
            value, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            break
        found.append(value)
        text = text[end:].lstrip()
    return found


def _number(match: re.Match[str]) -> int:
    return int(next(one for one in match.groups() if one is not None))


def _in_json(value: Any, depth: int = _DEPTH) -> Iterator[int]:
    """Statuses in an object and in objects in it; what stands in a list is data."""
    if not isinstance(value, dict) or depth == 0:
        return
    process = _is_process(value)
    for name, one in value.items():
        key = re.sub(r"[^a-z]", "", str(name).lower())
        if key in _NAMES or (process and key in ("code", "status")):
            yield from _status(one)
        elif process and key in ("signal", "timedout") and one:
            yield 1
        else:
            yield from _in_json(one, depth - 1)


def _is_process(value: Any) -> bool:
    return isinstance(value, dict) and any(str(key).lower() in _OUTPUTS for key in value)


def _status(value: object) -> Iterator[int]:
    if isinstance(value, int | str) and not isinstance(value, bool):
        try:
            yield int(value)
        except ValueError:
            return
