"""A judge without a model: exit codes, shapes of errors, thumbs and scores.

It speaks only where a rule is sure; everything else is no vote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from instar.judge.lexicon import count, lowered
from instar.judge.next_state import Case
from instar.judge.tool_results import all_told, readings

_THUMB_UP = re.compile(r"^\W*(?:👍|👏|🎉|❤️?|💯|✅|\+1|/good|thumbs up)+[\s!️🏻-🏿]*$", re.IGNORECASE)
_THUMB_DOWN = re.compile(r"^\W*(?:👎|❌|-1|/bad|thumbs down)+[\s!️🏻-🏿]*$", re.IGNORECASE)
_AGAINST = {
    -1: ("thanks", "praise", "works", "accept", "emoji_up"),
    1: ("wrong", "not_working", "not_asked", "complaint", "emoji_down", "emoji_scorn"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVoter:
    """Always of the same opinion, so it votes once."""

    async def votes(self, case: Case, count: int) -> Sequence[int | None]:
        return (rule_vote(case),)


def rule_vote(case: Case) -> int | None:
    """+1, 0, -1, or None where no rule applies."""
    if case.role == "user":
        thumb = thumb_vote(case.next)
        if thumb is not None or not case.results:
            return thumb
    vote = all_told(readings(case))
    # The person has the last word: an error that they may have called fine is no sure thing.
    return None if case.role == "user" and _against(vote, case.next) else vote


def thumb_vote(text: str) -> int | None:
    """A reply that is nothing but a thumb."""
    text = text.strip()
    if _THUMB_DOWN.match(text):
        return -1
    return 1 if _THUMB_UP.match(text) else None


def _against(vote: int | None, words: str) -> bool:
    """Whether words of the person may say the opposite of what the tools say."""
    text = lowered(words)
    return any(count(text, name) for name in _AGAINST.get(vote or 0, ()))
