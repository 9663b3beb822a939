"""A judge without a model: exit codes, shapes of errors, thumbs and what is as plain as those.

It speaks only where a rule is sure; everything else is no vote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from instar.judge.demonstrations import as_ordered
from instar.judge.lexicon import count, lowered
from instar.judge.next_state import Case
from instar.judge.scorn import lone
from instar.judge.tool_results import all_told, readings
from instar.judge.wishes import LONGEST, read, split

_UP = "👍👏🎉💯✅👌🙌🙏💪🥳😍🤩😊😀😃😄😁😘🤗⭐🌟🔥❤♥💖💙💚💛💜🧡💕🫶🤝🏆"
_DOWN = "👎❌😡😠🤬😤😒🙄🤦💩🖕🤮"
_THUMB = r"^[\s>*_\"'(]*(?:(?:[{}]|{})[\s!.*_\"')\u200d\ufe0f🏻-🏿♀♂]*)+$"
_THUMB_UP = re.compile(_THUMB.format(_UP, r"\+1|/good|thumbs up"), re.IGNORECASE)
_THUMB_DOWN = re.compile(_THUMB.format(_DOWN, "-1|/bad|thumbs down"), re.IGNORECASE)
_NO = re.compile(
    r"\W*(?:nein|nee|nej|nei|nie|ne|non|não|нет|ні|hayır|nem|ei|όχι|không|bukan|tidak|לא|لا|नहीं|"
    r"いいえ|いや|不|不是|不对|아니요?)\s*[,!.:،、，。…–—-]+\s*(?=\w)"
)
"""Other languages' "no" before more words; English is what the frozen model reads best."""
_NOT_SO = re.compile(
    r"\W*no\s*[,!.…–—-]+\s*(?:(?:much|even|way|still|a bit) )?"
    r"(?:(?:short|long|brief|simpl|clear|warm|friendli|kind|plain|soft|quick|clean|nic|light|strict)e?r"
    r"|(?:more|less|fewer) (?!questions|for now|thank|than )\w+|not (?:like )?(?:that|this|so)\b"
    r"|i (?:said|meant|wanted|asked|told you))\b"
)
"""English "no" before what the reply should have been."""
_NO_HARM = re.compile(r"\b(?:probl[eèé]e?m\w*|alles|allt|alt)\b")
_MORE = "example"
"""What an order is about that asks for more, and for nothing else."""
_PLEASED = ("thanks", "praise", "works", "accept", "emoji_up", "pause")
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
        plain = plain_vote(case)
        if plain is not None or not case.results:
            return plain
    vote = all_told(readings(case))
    # The person has the last word: an error that they may have called fine is no sure thing.
    return None if case.role == "user" and _against(vote, case.next) else vote


def plain_vote(case: Case) -> int | None:
    """A person's reply that leaves nothing to guess; None for all others."""
    text = lowered(case.next.strip())
    if _THUMB_DOWN.match(text) or lone(text):
        return -1
    # Who was asked something may say no, or how they like it.
    if not case.response.rstrip().endswith(("?", "？", "؟")) and (
        _refuses(text) or _orders(case.response, text)
    ):
        return -1
    return 1 if _THUMB_UP.match(text) else None


def _refuses(text: str) -> bool:
    """Whether a reply is told "no" and how else, with no friendly word."""
    if not (_NO.match(text) or _NOT_SO.match(text)) or _NO_HARM.search(text):
        return False
    return not any(count(text, name) for name in _PLEASED)


def _orders(response: str, text: str) -> bool:
    """Whether nothing is said but how a reply should be, where this one may not be so.

    "Just one sentence, as it should be" is no order to one sentence, and who asks for an example
    wants more.
    """
    if len(text) > LONGEST or text.rstrip(" \"')").endswith("?") or _against(-1, text):
        return False
    said = [read(sentence) for sentence in split(text)]
    orders = [order for one in said for order in one.orders]
    if not orders or not all(one.covered for one in said):
        return False
    if any(one.about == _MORE for one in orders):
        return False
    counted = any(one.about == "length" or one.noun == "lists" for one in orders)
    return not (counted and as_ordered(response, text))


def _against(vote: int | None, words: str) -> bool:
    """Whether words of the person may say the opposite."""
    text = lowered(words)
    return any(count(text, name) for name in _AGAINST.get(vote or 0, ()))
