"""Tells what a person said from what their client put in by itself, so that only people are judged.

For judging and for recognising only: the model is always shown exactly what its client sent.
Each line of the tables is one habit of one client. SYNTHETIC is text around what was said;
ERRANDS are whole messages by which a client asks the model for something on its own account.
A message that is nothing but such text becomes empty.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Synthetic(NamedTuple):
    """One kind of text that no person typed."""

    what: str
    mark: str
    """Text without this has none of it: looking for it is quicker than matching."""
    pattern: re.Pattern[str]
    keeps: str = ""
    """What stays of a match, as a replacement; a wrapper keeps what it wraps."""


_BLOCK = re.DOTALL
_LINES = re.MULTILINE

SYNTHETIC: tuple[Synthetic, ...] = (
    Synthetic(
        "OpenClaw's internal context",
        "<<<BEGIN_OPENCLAW",
        re.compile(
            r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?(?:<<<END_OPENCLAW_INTERNAL_CONTEXT>>>|\Z)",
            _BLOCK,
        ),
    ),
    Synthetic(
        "other marked blocks",
        "<<<BEGIN_",
        re.compile(r"<<<BEGIN_([A-Z_]+)>>>.*?<<<END_\1>>>", _BLOCK),
    ),
    Synthetic(
        "a reminder of the client",
        "<system",
        re.compile(r"<(system[-_]reminder)>.*?(?:</\1>|\Z)", _BLOCK),
    ),
    Synthetic(
        "facts about the machine",
        "<",
        re.compile(
            r"<(environment_context|environment_details|user_instructions|ide_[a-z_]+)>.*?"
            r"(?:</\1>|\Z)",
            _BLOCK,
        ),
    ),
    Synthetic(
        "a queued message, told again after a retry",
        "[Queued user message",
        re.compile(
            r"\[Queued user message[^\]]*\]\s*(.*?)\s*"
            r"(?:Continue the current task from the existing transcript.*|\Z)",
            _BLOCK,
        ),
        r"\1",
    ),
    Synthetic(
        "a timestamp before the message",
        "[",
        re.compile(
            r"^\[(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?"
            r"(?: ?(?:[A-Z]{1,5}|[+-]\d\d:?\d\d|GMT[+-]\d+))?\] ?",
            _LINES,
        ),
    ),
    Synthetic(
        "OpenClaw's runtime line", "Runtime: agent=", re.compile(r"^Runtime: agent=.*$\n?", _LINES)
    ),
    Synthetic(
        "the summary that stands for a compacted history",
        "The conversation history before this point",
        re.compile(
            r"\AThe conversation history before this point was compacted into the following "
            r"summary:.*?(?:</summary>|\Z)",
            _BLOCK,
        ),
    ),
    Synthetic(
        "training marks", "[RL-TRAINING-META]", re.compile(r"^\[RL-TRAINING-META\].*$\n?", _LINES)
    ),
    Synthetic("message ids", "[message_id: ", re.compile(r"^\[message_id: [^\]\n]*\]$\n?", _LINES)),
    Synthetic(
        "files that aider adds by itself because the reply named them",
        "I added these files to the chat: ",
        re.compile(
            r"\AI added these files to the chat: .*?\nLet me know if there are others we should "
            r"add\.",
            _BLOCK,
        ),
    ),
    *(
        Synthetic(
            "aider's reminder of the form of edits, after the last message",
            mark,
            re.compile(rf"(?:\A|\n\n){re.escape(mark)}.*\Z", _BLOCK),
        )
        for mark in (
            "To suggest changes to a file you MUST return the entire content of the updated file.",
            "# *SEARCH/REPLACE block* Rules:\n\nEvery *SEARCH/REPLACE block* must use this format:",
            "# File editing rules:\n\nReturn edits similar to unified diffs",
            "# V4A Diff Format Rules:\n\nYour entire response containing the patch MUST",
        )
    ),
)


ERRANDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("heartbeat", re.compile(r"Follow the heartbeat monitor scratch|Read HEARTBEAT\.md if ")),
    ("memory flush", re.compile(r"Pre-compaction memory flush\b")),
    ("announcement of a sub-agent", re.compile(r"A background task completed\b")),
    ("sub-agent", re.compile(r"\[Subagent Context\]")),
    ("summary", re.compile(r"You are performing a CONTEXT CHECKPOINT COMPACTION\b")),
    (
        "summary",
        re.compile(
            r"(?:CRITICAL: Respond with TEXT ONLY.{0,2000}?)?"
            r"Your task is to create a detailed summary of (?:the|this) conversation\b",
            _BLOCK,
        ),
    ),
)
"""How such a message begins, once the synthetic text around it is gone."""


OWN_TALK = re.compile(
    r"I switched to a new code base\. Please don't consider the above files"
    r"|Here are summaries of some files present in my git repository\."
    r"|Here are some READ ONLY files, provided for your reference\."
    r"|I have \*added these files to the chat\*"
    r"|I am not sharing any files that you can edit yet\.\Z"
    r"|Don't try and edit any existing code without asking me to add the files"
    r"|I committed the changes with git hash \w+ & commit msg:"
)
"""How a message begins with which a client talks to itself: aider writes the answer, too."""

OWN_PAIRS = frozenset(
    (said, "Ok.") for said in ("I updated the files.", "I edited the files myself.")
)
"""The same for messages that a person may well write: only with aider's answer are they its own."""


SUMMARIES = re.compile(
    r"\s*(?:<[\w-]+>\s*)?(?:"
    r"The conversation history before this point"  # OpenClaw
    r"|This session is being continued from a previous conversation"  # Claude Code
    r"|Another language model started to solve this problem"  # codex
    r"|(?:# )?(?:Here is (?:a|the) )?(?:[Cc]onversation [Ss]ummary|[Ss]ummary of (?:the|our) )"
    r")"
)
"""How a message begins that stands for all that was said before it."""


def is_summary(text: str) -> bool:
    """Whether a client put this in the place of the conversation so far."""
    return SUMMARIES.match(text) is not None


def unwrap(text: str) -> str:
    """The text without what stands around what was said."""
    for one in SYNTHETIC:
        if one.mark in text:
            text = one.pattern.sub(one.keeps, text)
    return text.strip()


def errand(text: str) -> str | None:
    """What a client asks for with this unwrapped text; None where a person speaks."""
    return next((what for what, begins in ERRANDS if begins.match(text)), None)


def talks_to_itself(text: str, answer: str = "") -> bool:
    """Whether this message, and the assistant's after it, are both the client's own."""
    return OWN_TALK.match(text) is not None or (text, answer) in OWN_PAIRS


def strip(text: str) -> str:
    """What a person said, and nothing else; empty where no person spoke."""
    text = unwrap(text)
    return "" if errand(text) or talks_to_itself(text) else text
