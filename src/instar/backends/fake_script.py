"""What the fake engine says: replies in order, and replies to what is asked.

A script has one JSON object a line. One without `when` is used once, in order. One with `when`
answers whenever that regular expression is found in what came after the last reply, and `$1`
in it stands for what the expression's first group found. One with `session` is for sessions of
that pattern only (`*` is anything), each of which goes through such lines in order:

    {"text": "Hello."}
    {"session": "task-*", "text": "Done."}
    {"when": "RUN (\\w+)", "tool_calls": [{"name": "exec", "arguments": {"command": "$1"}}]}
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from instar.errors import ConfigError, ModelError

_REPLY = "<|im_start|>assistant"
_END = "<|im_end|>"
_KNOWN = ("text", "tool_calls", "reasoning", "when", "session")
_GROUP = re.compile(r"\$(\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One scripted reply."""

    text: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    reasoning: str = ""
    when: re.Pattern[str] | None = None
    session: str | None = None

    def reply(self, found: re.Match[str] | None = None) -> str:
        """As a model of the Hermes family would write it."""
        told = _filled(
            {"text": self.text, "calls": list(self.tool_calls), "why": self.reasoning}, found
        )
        head = f"<think>\n{told['why']}\n</think>\n\n" if told["why"] else ""
        calls = [
            f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
            for call in told["calls"]
        ]
        return head + "\n".join([told["text"]] * bool(told["text"]) + calls)


class Script:
    """The replies of one file, and how far it has been played."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self._rules = [line for line in lines if line.when is not None]
        ordered = [line for line in lines if line.when is None]
        self._ordered = [line.reply() for line in ordered if line.session is None]
        self._by_session = [(line.session, line.reply()) for line in ordered if line.session]
        self._asked = 0
        self._asked_by: Counter[str] = Counter()

    @property
    def rules(self) -> bool:
        return bool(self._rules)

    def next(self, prompt: str = "", *, session: str = "") -> str | None:
        """The reply to this prompt; None where the script has none (any more)."""
        said = _since_last_reply(prompt)
        for rule in self._rules:
            assert rule.when is not None
            if found := rule.when.search(said):
                return rule.reply(found)
        own = [reply for pattern, reply in self._by_session if fnmatchcase(session, pattern)]
        if self._asked_by[session] < len(own):
            self._asked_by[session] += 1
            return own[self._asked_by[session] - 1]
        if self._asked < len(self._ordered):
            self._asked += 1
            return self._ordered[self._asked - 1]
        return None


def read_script(file: Path | None) -> Script:
    """The script in a file; an unusable line is named."""
    if file is None:
        return Script()
    if not file.exists():
        raise ConfigError(f"engine.script is {file}, which does not exist")
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"engine.script is {file}, which cannot be read: {error}") from None
    # Only these end a line: what else `splitlines` takes for an end may stand in a JSON string.
    written = enumerate(text.split("\n"), 1)
    return Script([_line(text, f"{file.name} line {at}") for at, text in written if text.strip()])


def read_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object, or a ModelError that says where none was found."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{where} is a {type(found).__name__}, not an object")
    return found


def _line(text: str, where: str) -> Line:
    entry = read_object(text, where)
    if unknown := entry.keys() - set(_KNOWN):
        raise ConfigError(
            f"{where} has {', '.join(sorted(unknown))}; known are {', '.join(_KNOWN)}"
        )
    for name in ("text", "reasoning", "session"):
        if not isinstance(entry.get(name), str | None):
            raise ConfigError(f"{where}: `{name}` must be a string")
    calls = entry.get("tool_calls")
    if not isinstance(calls, list | None):
        raise ConfigError(f"{where}: `tool_calls` must be a list, not {calls!r:.60}")
    for call in calls or ():
        _check_call(call, where)
    when = entry.get("when")
    try:
        pattern = re.compile(when) if when is not None else None
    except (re.error, TypeError) as error:
        raise ConfigError(f"{where}: `when` is no regular expression: {error}") from None
    return Line(
        text=entry.get("text") or "",
        tool_calls=tuple(calls or ()),
        reasoning=entry.get("reasoning") or "",
        when=pattern,
        session=entry.get("session"),
    )


def _check_call(call: Any, where: str) -> None:
    """A call is written as models write it, not as the API wraps it in `function`."""
    shape = '{"name": "...", "arguments": {...}}'
    wrong = f"{where}: found {call!r:.60} in `tool_calls`, expected {shape}"
    if not isinstance(call, dict):
        raise ConfigError(wrong)
    if unknown := call.keys() - {"name", "arguments"}:
        raise ConfigError(f"{wrong}; {', '.join(sorted(unknown))} is not known")
    if not isinstance(call.get("name"), str) or not call["name"].strip():
        raise ConfigError(f"{wrong}; its name must be a string that is not empty")
    if not isinstance(call.get("arguments", {}), dict):
        raise ConfigError(f"{wrong}; its arguments must be an object")


def _since_last_reply(prompt: str) -> str:
    """What the model has not answered yet; the prompt itself ends where a reply begins."""
    *before, said = prompt.removesuffix("\n").removesuffix(_REPLY).rsplit(_REPLY, 1)
    return said.partition(_END)[2] if before else said


def _filled(value: Any, found: re.Match[str] | None) -> Any:
    if isinstance(value, str) and found is not None:
        return _GROUP.sub(lambda at: _group(found, int(at[1])), value)
    if isinstance(value, list):
        return [_filled(one, found) for one in value]
    if isinstance(value, dict):
        return {name: _filled(one, found) for name, one in value.items()}
    return value


def _group(found: re.Match[str], number: int) -> str:
    return (found[number] or "") if number <= (found.re.groups or 0) else f"${number}"
