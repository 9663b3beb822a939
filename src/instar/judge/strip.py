"""Takes out of a message what its client put in by itself, so that only people are judged.

For judging only: the model is always shown exactly what its client sent. Each line of the
table is one habit of one client; a message that is nothing but such text becomes empty.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Synthetic(NamedTuple):
    """One kind of text that no person typed."""

    what: str
    pattern: re.Pattern[str]
    keeps: str = ""
    """What stays of a match, as a replacement; a wrapper keeps what it wraps."""


_BLOCK = re.DOTALL
_LINES = re.MULTILINE

SYNTHETIC: tuple[Synthetic, ...] = (
    Synthetic(
        "OpenClaw's internal context",
        re.compile(
            r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?(?:<<<END_OPENCLAW_INTERNAL_CONTEXT>>>|\Z)",
            _BLOCK,
        ),
    ),
    Synthetic("other marked blocks", re.compile(r"<<<BEGIN_([A-Z_]+)>>>.*?<<<END_\1>>>", _BLOCK)),
    Synthetic(
        "a reminder of the client",
        re.compile(r"<(system[-_]reminder)>.*?(?:</\1>|\Z)", _BLOCK),
    ),
    Synthetic(
        "facts about the machine",
        re.compile(
            r"<(environment_context|environment_details|user_instructions|ide_[a-z_]+)>.*?"
            r"(?:</\1>|\Z)",
            _BLOCK,
        ),
    ),
    Synthetic(
        "a queued message, told again after a retry",
        re.compile(
            r"\[Queued user message[^\]]*\]\s*(.*?)\s*"
            r"(?:Continue the current task from the existing transcript.*|\Z)",
            _BLOCK,
        ),
        r"\1",
    ),
    Synthetic(
        "a timestamp before the message",
        re.compile(
            r"^\[(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?"
            r"(?: ?(?:[A-Z]{1,5}|[+-]\d\d:?\d\d|GMT[+-]\d+))?\] ?",
            _LINES,
        ),
    ),
    Synthetic("OpenClaw's runtime line", re.compile(r"^Runtime: agent=.*$\n?", _LINES)),
    Synthetic("training marks", re.compile(r"^\[RL-TRAINING-META\].*$\n?", _LINES)),
    Synthetic("message ids", re.compile(r"^\[message_id: [^\]\n]*\]$\n?", _LINES)),
)


def strip(text: str) -> str:
    """The text without synthetic parts and without white space around it."""
    for one in SYNTHETIC:
        text = one.pattern.sub(one.keeps, text)
    return text.strip()
