"""What became of a call, read off its result: the one reading for all who ask.

The rules vote by it, the probe takes its shapes for features and believes it where it is sure,
and the report counts failures by it. An exit status decides; then errors that cannot be mistaken;
then a call that only shows something, which worked whatever the shown text speaks of. The rest is
a guess by words (`lexicon.json`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from instar.judge.calls import only_shows, status_1
from instar.judge.lexicon import patterns
from instar.judge.next_state import Case, ToolResult
from instar.judge.statuses import Statuses, around, json_values, statuses

_LINES, _SHORT = 3, 200
"""With fewer lines and characters it may be a message of the tool itself."""
_GUESSED_BAD = ("http_bad", "denied", "missing", "down")
_GUESSED_GOOD = ("http_good", "success")
_BAD = frozenset(("error", "exception", "failed_count", "flag_bad", "waiting", *_GUESSED_BAD))
_ERROR = re.compile(
    r"^traceback \(most recent call last\)"
    # "ValueError: x", "error[E0382]: y", "fatal error: z", but not "error: none"
    r"|^(?:[\w.]+[./])?\w*(?:error|exception)(?:\[\w+\])?: (?!none\b|null\b|0\b|no )\S"
    r"|^error (?:ts|cs|c|lnk)\d+:|^error (?:executing|running|calling|while|reading)\b"
    # compilers: file, line, message
    r"|^[^\s:]+:\d+(?::\d+)?: (?:fatal |internal compiler )?error\b"
    r"|^\S+\(\d+(?:,\d+)?\): (?:fatal )?error\b|^\S+:\d+:\d+ - error\b|^\S+\.go:\d+:\d+: \S"
    r"|^[ \t]+\d+:\d+[ \t]+error\s|undefined reference to|^ld: \S"
    r"|^make(?:\[\d+\])?: \*\*\*|^cmake error|^ninja: build stopped|^npm (?:err!|error) "
    r"|^(?:fatal|panic): \S|^fatal error: |^thread '[^'\n]*' panicked|^exception in thread "
    r"|^(?:.*: )?segmentation fault|\(core dumped\)$|^unhandled |terminated by signal \d"
    r"|^(?:ba|z|da|k|)sh: .*(?:not found|no such file|permission denied|syntax error)"
    r"|^(?:\S+: )?(?:line \d+: )?\S+: command not found"
    r"|^timeout (?:of )?\d+ ?m?s exceeded|^timed out (?:after|waiting)"
    r"|^failed \S+::\w|^e   \S"
    r"|^[^\w\n]*(?:tests: +)?[1-9]\d* (?:failed|errors?)\b.*\b(?:passed|in \d)"
    r"|^test result: failed|^failed \(\w+=\d|^<tool_use_error>",
    re.MULTILINE,
)
_HEAD = re.compile(
    r"\W*(?:(?:tool |fatal |internal )?(?:error|exception|failure)\b(?![ _-]*\d)|err!|"
    r"(?:enoent|eacces|cannot|can't|could not|couldn't|unable to|failed to|no such|not found|"
    r"permission denied|access denied|timed? ?out|unauthori[sz]ed|forbidden)\b|"
    r"(?:http\S* )?[45]\d\d [a-z]|(?:\w+\.)*\w+(?:error|exception): |"
    r"(?:ba|z|da|)sh: |fatal: |\S+: (?:.*: )?(?:cannot|can't|no such|permission denied|not a |"
    r"is a directory|invalid|unrecogni[sz]ed))"
)
_HEAD_CHARS = 300
_SHELL = re.compile(
    r"^(?:ba|z|da|k|)sh: |: (?:no such file|not a directory|permission denied|command not found)",
    re.MULTILINE,
)
"""What a shell says where a step before the last failed."""
_PLACED = re.compile(
    r"\d{4}-\d\d-\d\d[t ]\d\d:\d\d|[^\s:]+:\d+[:-]|[^\s:]*[./][^\s:]*:(?! \S)|[-+](?= {2}|\w)"
)
"""How a line of a log begins, one that a search found in a file, and one of a comparison; a tool's
message does not."""
_NUMBERED = re.compile(r"\d+[:-]")
"""How a line begins that a search found in its only file."""
_FALSE = ("ok", "success", "successful", "succeeded")
_TRUE = ("iserror", "is_error")
_PROBLEMS = ("error", "errors", "warnings")
_SAYS = ("status", "result")
_DONE = frozenset((*_FALSE, "done", "confirmed", "completed", "created", "sent", "saved", "booked"))
_ENVELOPES = ("result", "response")
"""Objects in which another says how it went, as in JSON-RPC."""
_HTTP = ("status", "statuscode", "status_code", "httpstatus", "http_status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one result says."""

    vote: int | None
    """-1 failed, 1 worked, 0 found nothing or is not done, None nothing is told."""
    sure: bool
    """Whether no words had to be guessed by."""
    shapes: frozenset[str]
    """The tables of `lexicon.json` that it is an instance of."""


def read_result(result: ToolResult) -> Reading:
    """One tool result."""
    text = result.text.lower()
    values = json_values(result.text)
    shows = only_shows(result.call)
    found = around(text, values) if shows else statuses(text, values)
    shapes = _shapes(text, found)
    by_status = _by_status(found)
    if by_status == -1 and (answer := _answer(result.call, text, found)) is not None:
        return Reading(vote=answer, sure=True, shapes=shapes)
    for vote in (by_status, _by_flags(values, shows=shows)):
        if vote is not None:
            return Reading(vote=vote, sure=True, shapes=shapes)
    searched = status_1(result.call) == 0
    if shows and (sure := _is_content(text, searched=searched)) is not None:
        return Reading(vote=1, sure=sure, shapes=shapes)
    if _is_found(text, values, shapes):
        return Reading(vote=1, sure=True, shapes=shapes)
    if _ERROR.search(text):
        return Reading(vote=-1, sure=not shows, shapes=shapes)
    return Reading(vote=_guess(shapes), sure=False, shapes=shapes)


def readings(case: Case) -> list[Reading]:
    """Of each tool result in the next state."""
    return [read_result(one) for one in case.tools]


def all_told(found: Sequence[Reading]) -> int | None:
    """Of parallel calls one that failed decides, wherever it stands."""
    votes = [one.vote for one in found]
    return next((vote for vote in (-1, 1, 0) if vote in votes), None)


def any_failed(case: Case) -> bool | None:
    """Whether a call that the reply made failed; None where it made none."""
    found = readings(case)
    return all_told(found) == -1 if found else None


def _shapes(text: str, found: Statuses) -> frozenset[str]:
    shapes = {name for name, one in patterns("tools").items() if one.search(text)}
    shapes -= {"exit_bad", "exit_good"}
    if any(found.own) or (not found.own and any(found.printed)):
        shapes.add("exit_bad")
    elif found.own or found.printed:
        shapes.add("exit_good")
    return frozenset(shapes)


def _by_status(found: Statuses) -> int | None:
    known = found.own or found.printed
    return None if not known else -1 if any(known) else 1


def _answer(call: str, text: str, found: Statuses) -> int | None:
    """What was answered by an exit status 1, as `grep` does; None where something failed."""
    failed = set(found.own or found.printed) - {0}
    return status_1(call) if failed == {1} and not _SHELL.search(text[:_HEAD_CHARS]) else None


def _by_flags(values: Sequence[Any], *, shows: bool) -> int | None:
    """What the tool's own objects say of themselves: {"ok": false}, {"error": "no such city"}."""
    said = [value for value in values if isinstance(value, dict)]
    inner = (value.get(name) for value in said for name in _ENVELOPES)
    votes = [_flag(value) for value in (*said, *(one for one in inner if isinstance(one, dict)))]
    if -1 in votes:
        return -1
    return 1 if 1 in votes and not shows else None


def _is_found(text: str, values: Sequence[Any], shapes: frozenset[str]) -> bool:
    """Whether this is a list with something in it, and nothing in it speaks of trouble."""
    is_list = len(values) == 1 and isinstance(values[0], list) and text.rstrip().endswith("]")
    return is_list and any(values[0]) and not shapes & _BAD


def _flag(value: Mapping[str, Any]) -> int | None:
    named = {str(name).lower(): one for name, one in value.items()}
    if any(named.get(name) is False for name in _FALSE) or any(named.get(n) is True for n in _TRUE):
        return -1
    if _code(named) == -1:
        return -1
    error = named.get("error") or named.get("errors")
    if isinstance(error, str | dict | list) and error and str(error).lower() not in ("none", "ok"):
        return -1
    if any(one in ([], {}) for name, one in named.items() if name not in _PROBLEMS):
        return None  # it may have found nothing
    fine = any(str(named.get(name)).lower() in _DONE for name in _SAYS) or _code(named) == 1
    good = fine or any(named.get(name) is True for name in _FALSE) or "error" in named
    return 1 if good else None


def _code(named: Mapping[str, Any]) -> int | None:
    """What a status of HTTP says in an object."""
    said = [str(named.get(name)) for name in _HTTP]
    found = [int(one) for one in said if re.fullmatch(r"\d{3}", one)]
    return next(
        (1 if one < 300 else -1 for one in found if 200 <= one < 300 or 400 <= one < 600), None
    )


def _is_content(text: str, *, searched: bool) -> bool | None:
    """Whether this is what was to be shown and surely so; None where it may be the tool's own
    message, which is short, or begins as an error does."""
    lines = text.strip().splitlines()
    if searched and lines and all(map(_NUMBERED.match, lines)):
        return True
    begins_as_error = _HEAD.match(text[:_HEAD_CHARS]) is not None
    if len(lines) < _LINES and len(text) < _SHORT:
        return True if lines and not begins_as_error and all(map(_PLACED.match, lines)) else None
    if text.startswith("traceback ("):
        return None
    return None if begins_as_error and len(lines) <= _LINES else not begins_as_error


def _guess(shapes: frozenset[str]) -> int | None:
    """By the words alone: errors, then emptiness, then signs of success."""
    if "nothing" in shapes:
        return 0
    if "code" in shapes:
        return None  # the text of a program, which may well speak of errors
    if shapes & {"exception", "failed_count", "flag_bad"}:
        return -1
    if shapes & {"no_error", "flag_good"}:
        return 1
    if shapes & {"error", *_GUESSED_BAD}:
        return -1
    if "waiting" in shapes:
        return 0
    return 1 if shapes & set(_GUESSED_GOOD) else None
