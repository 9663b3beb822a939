"""From what a person said next to an instruction that the teacher is given.

A hint exists only where the next state says what should have been different: "wrong" alone
gives none. The embedded way says common wishes (shorter, no lists, friendlier) as plain orders,
which a small model follows better than a quotation, and keeps the person's own sentences,
without greetings, praise and filler, for all that the orders do not say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from instar.judge.lexicon import count, lowered
from instar.judge.next_state import Case
from instar.judge.orders import Order, sentences, settle
from instar.judge.wishes import asks, read, split

MAX_SENTENCES = 3
MAX_CHARS = 400
"""Longer words of a person are cut at a sentence: a hint is an instruction, not a letter."""
MOST_READ = 2000
"""Characters at either end of a long message in which wishes are looked for: the rest is pasted."""

ROLE = "You are a helpful assistant."
_FILLER = re.compile(
    r"^(?:(?:ok(?:ay)?|hm+|um+|uh+|hey|hi|hello|please|pls|sorry|thanks?(?: you)?|honestly|wow|oh|"
    r"ugh|danke|bitte|merci|gracias|grazie|obrigado)\b[\s,.!:;–—-]*"
    # Before a comma these greet or judge; before a word they belong to it: "No lists".
    r"|(?:well|so|yes|no+|nope|nah|look|actually|great|good|nice|cool|lovely|perfect|nein|non)\b"
    r"\s*(?:[,.!:;–—-]+\s*|$))+",
    re.IGNORECASE,
)
_BUT = re.compile(
    r"^.*?\b(?:but|however|although|though|except(?: that)?|aber|mais|pero|ma|però|mas|maar|ale|"
    r"ama|но)\b[\s,:]*|^.*?(?:但是|不过|ですが|لكن|लेकिन)[\s,,]*",
    re.IGNORECASE | re.DOTALL,
)
_EMPTY = re.compile(
    r"^\W*(?:(?:that|this|it|you|your answer|the answer)(?:'s| is| are|'re| was)? ?"
    r"(?:just |still |so |all |totally |completely |simply )?"
    r"(?:wrong|incorrect|bad|false|terrible|useless|nonsense|garbage|off|broken|wrong again|"
    r"not (?:right|correct|true|it|helpful|good))|wrong(?: answer| again)?|try again|do it again|"
    r"(?:please )?redo (?:this|it|that)|again|still broken|same error(?: as before)?|"
    r"(?:it |that |this )?(?:still )?(?:doesn'?t|does not|didn'?t) work|"
    r"(?:that|this|it)(?:'s| is|'?s| was|wasn'?t)? ?(?:not |n't )?(?:at all )?what i "
    r"(?:asked|meant|wanted|said|needed)(?: for)?(?: at all)?|you (?:misunderstood(?: me)?|"
    r"(?:didn'?t|did not) (?:answer|understand)(?: me| my question| the question)?|"
    r"missed the point|made a mistake|keep doing that|always do this|broke it|"
    r"aren'?t listening|'re not listening)|"
    r"(?:das war|das ist) (?:leider )?nicht meine frage|(?:ce n'est|ce n'était) pas ma question|"
    r"no (?:era|es) (?:eso|lo que pedí)|non è quello che ho chiesto|não foi isso que eu pedi|"
    r"这不是我要的|そういう意味ではありません|"
    r"not (?:quite|right|helpful|good)|really|seriously|what|huh|why)\W*$",
    re.IGNORECASE,
)
_TELLING = ("length", "format", "tone")
_ORDERING = ("change", "not_asked", "task")
_PRAISING = ("praise", "thanks", "works", "accept")
_WORD = re.compile(r"\w+")


class Hinter(Protocol):
    """One way to find a hint."""

    async def hint(self, case: Case) -> str | None: ...


class WordHinter:
    """The embedded way: the person's own words, framed; no model is asked."""

    async def hint(self, case: Case) -> str | None:
        found = candidates(case)
        return found[0] if found else None


def candidates(case: Case) -> list[str]:
    """Hints for a case that was judged -1, the best first; empty where none is said.

    Example: "Nice, but too long. No lists please, and say why." gives
    "Keep the answer short. Do not use lists. No lists please, and say why.", then the other
    ways to hand over the same words.
    """
    if case.role != "user":
        return []  # what a tool prints is no wish
    words = wish_words(case.next)
    if words is None:
        return []
    found = [frame(words) for frame in FRAMES.values()]
    return list(dict.fromkeys(one for one in found if one))


def wish_words(text: str) -> str | None:
    """The part of a reply that says what should be different, in the person's words."""
    if len(text) > 2 * MOST_READ:
        text = f"{text[:MOST_READ]}\n{text[-MOST_READ:]}"
    parts = [part for sentence in split(text) if (part := _part(sentence))]
    # Where nobody asks for anything, what is left over may say what is true: "It is Canberra."
    kept = [one for one in parts if _told(one)] or [one for one in parts if _states(one)]
    kept = [one[:1].upper() + one[1:] for one in kept][:MAX_SENTENCES]
    while len(kept) > 1 and len(" ".join(kept)) > MAX_CHARS:
        kept.pop()
    return " ".join(kept)[:MAX_CHARS].strip() or None


def plain_wishes(words: str) -> str | None:
    """Common wishes in plain orders, at most three; None where nothing common is wished."""
    readings = [read(one) for one in split(words)]
    orders = settle([order for reading in readings for order in reading.orders])
    return " ".join(sentences(orders)[:MAX_SENTENCES]) or None


def instruction(words: str) -> str:
    """Plain orders for what they cover and the person's own sentences for the rest."""
    said = split(words)
    readings = [read(one) for one in said]
    orders = settle([order for reading in readings for order in reading.orders])
    # A sentence whose order was dropped again, for it contradicts another, speaks for itself.
    own = [
        sentence
        for sentence, reading in zip(said, readings, strict=True)
        if not reading.covered or not _kept(reading.orders, orders)
    ]
    # What is said in words that are kept need not be said twice, if there is no room for it.
    must = [one for reading in readings if reading.covered for one in reading.orders]
    spare = [one for one in orders if one not in must]
    while spare and len(sentences(orders)) + len(own) > MAX_SENTENCES:
        orders = tuple(one for one in orders if one != spare[-1])
        spare.pop()
    plain = sentences(orders)
    return words if len(plain) + len(own) > MAX_SENTENCES else " ".join([*plain, *own])


def _kept(wanted: Sequence[Order], orders: Sequence[Order]) -> bool:
    about = {one.about for one in orders}
    return all(one.about in about for one in wanted)


FRAMES: dict[str, Callable[[str], str | None]] = {
    "instruction": instruction,
    "plain": plain_wishes,
    "quoted": lambda words: f'The user wants: "{words}" Follow this in every answer.',
    "always": lambda words: f"Always follow this wish of the user: {words}",
    "bare": lambda words: words,
}
"""Ways to hand the person's words to a model, the best first (docs/learning.md says why)."""


def teacher_system(hint: str, system: str | None = None) -> str:
    """The system prompt of a teacher that follows the hint.

    A role comes first: the frozen SmolLM2-135M obeyed "Answer in one short sentence." in 1 of 10
    replies as its whole system prompt, and in 7 of 10 behind "You are a helpful assistant."
    """
    return f"{(system or ROLE).rstrip()} {hint}"


def _part(sentence: str) -> str | None:
    """A sentence without its filler and the praise before a "but"; None if nothing is left."""
    part = sentence
    if (contrast := _BUT.match(part)) and len(part) - contrast.end() > 6:
        before = lowered(part[: contrast.end()])
        wished = _counts(before, _TELLING) or _counts(before, _ORDERING)
        if _counts(before, _PRAISING) or not wished:
            part = part[contrast.end() :]
    part = _FILLER.sub("", part).strip()
    return None if not part or _EMPTY.match(part) else part


def _told(part: str) -> bool:
    """Whether something is wished in it."""
    text = lowered(part)
    words = len(_WORD.findall(part))
    telling = _counts(text, _TELLING)
    ordering = _counts(text, _ORDERING)
    blamed = _counts(text, ("negation", "wrong"))
    praised = _counts(text, ("praise", "thanks"))
    # Enough words with a "not" say something of substance: "It's 1789, not 1798".
    if telling or (ordering and words >= 3) or (words >= 4 and blamed):
        return True
    if (words >= 2 and asks(text)) or read(part).orders:
        return True
    # Scripts without spaces have no words to count.
    unspaced = len(part) >= 4 and not part.isascii()
    return bool(unspaced and not praised and (blamed or ordering))


def _states(part: str) -> bool:
    """Whether it could say what is right where nothing is asked for."""
    text = lowered(part)
    unhappy = ("praise", "thanks", "complaint", "pause", "not_working")
    return len(_WORD.findall(part)) >= 3 and "?" not in part and not _counts(text, unhappy)


def _counts(text: str, names: Sequence[str]) -> int:
    return sum(count(text, name) for name in names)
