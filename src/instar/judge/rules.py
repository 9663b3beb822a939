"""A judge without a model: exit codes, shapes of errors, thumbs and scores.

It speaks only where a rule is sure; everything else is no vote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from instar.judge.lexicon import patterns
from instar.judge.next_state import Case

_BAD = (
    "exit_bad",
    "exception",
    "failed_count",
    "flag_bad",
    "http_bad",
    "denied",
    "missing",
    "down",
)
_GOOD = ("exit_good", "flag_good", "no_error", "http_good", "success")
_THUMB_UP = re.compile(r"^\W*(?:👍|👏|🎉|❤️?|💯|✅|\+1|/good|thumbs up)[\s!️🏻-🏿]*$", re.IGNORECASE)
_THUMB_DOWN = re.compile(r"^\W*(?:👎|❌|-1|/bad|thumbs down)[\s!️🏻-🏿]*$", re.IGNORECASE)
_EXIT = re.compile(
    r"(?:exit(?:ed)?|return(?:ed)?|rc)\W*(?:with\W*)?(?:code|status)?[\s:=]+(-?\d+)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVoter:
    """Always of the same opinion, so it votes once."""

    async def votes(self, case: Case, count: int) -> Sequence[int | None]:
        return (rule_vote(case),)


def rule_vote(case: Case) -> int | None:
    """+1, 0, -1, or None where no rule applies."""
    return tool_vote(case.next) if case.role == "tool" else thumb_vote(case.next)


def thumb_vote(text: str) -> int | None:
    """A reply that is nothing but a thumb."""
    text = text.strip()
    if _THUMB_DOWN.match(text):
        return -1
    return 1 if _THUMB_UP.match(text) else None


def tool_vote(text: str) -> int | None:
    """What became of a call: an exit code decides; then errors, emptiness, signs of success."""
    lowered = text.lower()
    if found := _EXIT.search(lowered):
        return 1 if int(found[1]) == 0 else -1
    shapes = {name for name, one in patterns("tools").items() if one.search(lowered)}
    if "nothing" in shapes:
        return 0
    if "code" in shapes and "exception" not in shapes:
        return None  # the text of a program, which may well speak of errors
    if shapes & {"exception", "failed_count", "flag_bad"}:
        return -1
    if "no_error" in shapes or "flag_good" in shapes:
        return 1
    if shapes & set(_BAD) or "error" in shapes:
        return -1
    if "waiting" in shapes:
        return 0
    return 1 if shapes & set(_GOOD) else None


def is_tool_error(text: str) -> bool:
    """Whether a tool's result tells of a failure; for the report's alarms."""
    return tool_vote(text) == -1
