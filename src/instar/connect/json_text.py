"""Puts members into JSON text and takes them out, leaving every other character as it is.

People comment their configs and lay them out as they like; JSON5 allows it. So the text is not
read and written again: a scanner finds where objects and members are, and only those characters
change. Understood are comments, trailing commas, single quotes and bare keys.

Example: put('{ // mine\\n}', ["a", "b"], 1) is '{ // mine\\n  "a": {\\n    "b": 1\\n  }\\n}'
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from instar.errors import ConfigError

_SPACE = re.compile(r"(?:\s|//[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|' r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_BARE = re.compile(r"[\w$+.\-\u0080-\uffff]+")
_LINE_COMMENT = re.compile(r"[ \t]*//[^\n]*")
_CLOSERS = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    start: int
    """Where its name begins; of an array's item, its value."""
    value: int
    end: int


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with this value at this path; objects on the way are made where there are none."""
    if not text.strip():
        text = "{}\n"
    at, left = _deepest(text, path)
    if not left:
        end = _value_end(text, at)
        return text[:at] + _written(value, text[at:end], _indent(text, at)) + text[end:]
    name, *inner = left
    for one in reversed(inner):
        value = {one: value}
    return _insert(text, at, name, value)


def take(text: str, path: Sequence[str]) -> str:
    """The text without the member at this path."""
    at, left = _deepest(text, path[:-1]) if text.strip() else (0, path)
    if left or text[at] != "{":
        return text
    members, _ = _members(text, at)
    return _cut(text, next((one for one in members if one.name == path[-1]), None))


def put_item(text: str, path: Sequence[str], item: str) -> str:
    """The text with this string in the array at this path, which is made where there is none."""
    at, left = _deepest(text, path) if text.strip() else (0, path)
    if left:
        return put(text, path, [item])
    if text[at] != "[":
        raise ConfigError(
            f"found no array at {'.'.join(path)}, where {item} belongs; put one there"
        )
    return text if _item(text, at, item) else _insert(text, at, None, item)


def take_item(text: str, path: Sequence[str], item: str) -> str:
    """The text without this string in the array at this path."""
    at, left = _deepest(text, path) if text.strip() else (0, path)
    return text if left or text[at] != "[" else _cut(text, _item(text, at, item))


def prune(text: str, path: Sequence[str]) -> str:
    """The text without the object or array at this path, if there is nothing in it."""
    return take(text, path) if get(text, path) in ({}, []) else text


def get(text: str, path: Sequence[str]) -> Any:
    """What is at this path: {} or [] where it is empty, its text where not, None for nothing."""
    if not text.strip():
        return None
    at, left = _deepest(text, path)
    if left:
        return None
    if text[at] in _CLOSERS and not _members(text, at)[0]:
        return {} if text[at] == "{" else []
    return text[at : _value_end(text, at)]


def _deepest(text: str, path: Sequence[str]) -> tuple[int, list[str]]:
    """Where the value at this path begins, or the last object on the way and what is left."""
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise _broken(text, at, "an object")
    _value_end(text, at)
    for depth, name in enumerate(path):
        if text[at] != "{":
            raise ConfigError(
                f"found no object at {'.'.join(path[:depth])}, where {name} belongs; "
                "put an object there, or take it out"
            )
        members, _ = _members(text, at)
        found = next((one for one in members if one.name == name), None)
        if found is None:
            return at, list(path[depth:])
        at = found.value
    return at, []


def _item(text: str, at: int, item: str) -> _Member | None:
    written = {json.dumps(item), json.dumps(item, ensure_ascii=False), f"'{item}'"}
    members, _ = _members(text, at)
    return next((one for one in members if text[one.value : one.end] in written), None)


def _insert(text: str, at: int, name: str | None, value: Any) -> str:
    """The new member goes first: what follows keeps its commas and comments."""
    members, end = _members(text, at)
    until = members[0].start if members else end
    key = "" if name is None else f"{json.dumps(name, ensure_ascii=False)}: "
    if members and "\n" not in text[at:until]:
        # All on one line: stay there, with the same space after the brace.
        start = at + 1 + len(text[at + 1 :]) - len(text[at + 1 :].lstrip(" \t"))
        written = f"{key}{_written(value, '', '')},{text[at + 1 : start]}"
        return text[:start] + written + text[start:]
    outer = _indent(text, at)
    indent = _indent(text, until) if members else outer + "  "
    written = _written(value, "\n", indent)
    comment = _LINE_COMMENT.match(text, at + 1)
    start = comment.end() if comment else at + 1
    new = f"\n{indent}{key}{written}"
    if members:
        new += ","
    elif "\n" not in text[start:end]:
        new += f"\n{outer}"
    return text[:start] + new + text[start:]


def _written(value: Any, like: str, indent: str) -> str:
    """JSON on one line or on several, as what it stands in place of."""
    if "\n" not in like:
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{indent}")


def _indent(text: str, at: int) -> str:
    """The space that the line of this place begins with."""
    line = text[text.rfind("\n", 0, at) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _cut(text: str, member: _Member | None) -> str:
    """Without this member, its comma, and the line break and space before it."""
    if member is None:
        return text
    start, end = len(text[: member.start].rstrip(" \t")), member.end
    if text[start - 1] == "\n":
        start -= 1
    comma = _skip(text, end)
    if text[comma : comma + 1] == ",":
        return text[:start] + text[comma + 1 :]
    if text[:start].rstrip().endswith(","):
        # The last one: the comma before it would be left over, which plain JSON does not allow.
        start = text.rindex(",", 0, start)
    rest = text[end:]
    if text[:start].endswith(("{", "[")) and not text[end:comma].strip():
        rest = text[comma:]  # the only one: the object closes as it did before
    return text[:start] + rest


def _members(text: str, at: int) -> tuple[list[_Member], int]:
    """The members of the object or array that begins here, and where it ends."""
    closer = _CLOSERS[text[at]]
    found: list[_Member] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != closer:
        start, name = at, ""
        if closer == "}":
            name, at = _name(text, at)
            at = _skip(text, at)
            if text[at : at + 1] != ":":
                raise _broken(text, at, "a colon")
            at = _skip(text, at + 1)
        end = _value_end(text, at)
        found.append(_Member(name, start, at, end))
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != closer:
            raise _broken(text, at, f"a comma or {closer}")
    return found, at


def _value_end(text: str, at: int) -> int:
    if text[at : at + 1] in _CLOSERS:
        return _members(text, at)[1] + 1
    if found := _STRING.match(text, at) or _BARE.match(text, at):
        return found.end()
    raise _broken(text, at, "a value")


def _name(text: str, at: int) -> tuple[str, int]:
    if found := _STRING.match(text, at):
        quoted = found[0]
        if quoted[0] == "'":
            return quoted[1:-1], found.end()
        return str(json.loads(quoted)), found.end()
    if found := _BARE.match(text, at):
        return found[0], found.end()
    raise _broken(text, at, "a name")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _broken(text: str, at: int, wanted: str) -> ConfigError:
    line = text.count("\n", 0, at) + 1
    found = text[at : at + 20].split("\n")[0] or "the end"
    return ConfigError(f"line {line}: found {found!r}, expected {wanted}")
