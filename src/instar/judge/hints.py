"""From what a person said next to an instruction that the teacher is given.

A hint exists only where the next state says what should have been different: "wrong" alone
gives none. The embedded way keeps the person's own words, without greetings, praise and filler,
and puts them into a frame that a small model follows; where they ask for something common
(shorter, no lists, friendlier), the same wish is also said plainly, since a small model follows
a plain order better than a quotation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from instar.judge.lexicon import count, lowered, wishes
from instar.judge.next_state import Case

MAX_SENTENCES = 3
MAX_CHARS = 400
"""Longer words of a person are cut at a sentence: a hint is an instruction, not a letter."""

ROLE = "You are a helpful assistant."
_SENTENCE = re.compile(r"[^.!?\n。!?؟।]+(?:[.!?。!?؟।]+[\"'”»)]*|\n|$)")
_FILLER = re.compile(
    r"^(?:(?:ok(?:ay)?|hm+|well|um+|uh+|so|yes|no+|nope|nah|hey|hi|hello|please|pls|sorry|"
    r"thanks?(?: you)?|look|honestly|actually|great|good|nice|cool|lovely|perfect|wow|oh|ugh|"
    r"danke|bitte|nein|merci|non|gracias|no|grazie|obrigado)\b[\s,.!:;–—-]*)+",
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
    """Hints for a case that was judged -1, the best framing first; empty where none is said.

    Example: "Nice, but too long. No lists please." gives
    "Answer in one short sentence. Do not use lists." and frames around those words.
    """
    if case.role != "user":
        return []  # what a tool prints is no wish
    words = wish_words(case.next)
    if words is None:
        return []
    plain = plain_wishes(words)
    # Words that only name a wish that has a plain form lose nothing by it.
    framed = [frame(words) for frame in FRAMES.values()]
    return [plain, *framed] if plain else framed


def wish_words(text: str) -> str | None:
    """The part of a reply that says what should be different, in the person's words."""
    kept: list[str] = []
    for sentence in _SENTENCE.findall(text):
        if (part := _told(sentence.strip())) and len(kept) < MAX_SENTENCES:
            kept.append(part)
    joined = " ".join(kept)
    while len(joined) > MAX_CHARS and len(kept) > 1:
        kept.pop()
        joined = " ".join(kept)
    return joined[:MAX_CHARS].strip() or None


def plain_wishes(words: str) -> str | None:
    """Common wishes in plain orders, at most three; None where nothing common is wished."""
    text = lowered(words)
    found = [order for pattern, order in wishes() if pattern.search(text)]
    return " ".join(list(dict.fromkeys(found))[:MAX_SENTENCES]) or None


FRAMES: dict[str, Callable[[str], str]] = {
    "quoted": lambda words: f'The user wants: "{words}" Follow this in every answer.',
    "always": lambda words: f"Always follow this wish of the user: {words}",
    "bare": lambda words: words,
}
"""Ways to hand the person's words to a model as its instruction."""


def teacher_system(hint: str, system: str | None = None) -> str:
    """The system prompt of a teacher that follows the hint.

    A role comes first: the frozen SmolLM2-135M obeyed "Answer in one short sentence." in 1 of 10
    replies as its whole system prompt, and in 7 of 10 behind "You are a helpful assistant."
    """
    return f"{(system or ROLE).rstrip()} {hint}"


def select_hint(
    candidates: Sequence[str], score: Callable[[str], float], *, bound: float = 2.0
) -> str | None:
    """The candidate under which the teacher changes most without leaving the topic.

    `score` gives the mean per-token KL between the base with and without the hint on the
    sampled reply. Beyond `bound` (nats a token) the teacher speaks of something else; if all
    are beyond it, the mildest is kept.
    """
    if not candidates:
        return None
    scored = [(score(one), one) for one in candidates]
    within = [pair for pair in scored if pair[0] <= bound]
    # The first of equals wins: candidates come best framing first.
    if within:
        return max(within, key=lambda pair: pair[0])[1]
    return min(scored, key=lambda pair: pair[0])[1]


def _told(sentence: str) -> str | None:
    """A sentence without its filler, or None if nothing is wished in it."""
    part = sentence
    if (contrast := _BUT.match(part)) and len(part) - contrast.end() > 6:
        part = part[contrast.end() :]
    part = _FILLER.sub("", part).strip()
    if not part or _EMPTY.match(part):
        return None
    text = lowered(part)
    words = len(_WORD.findall(part))
    telling = _counts(text, _TELLING)
    ordering = _counts(text, _ORDERING)
    blamed = _counts(text, ("negation", "wrong"))
    praised = _counts(text, ("praise", "thanks"))
    # Enough words with a "not" say something of substance: "It's 1789, not 1798".
    if telling or (ordering and words >= 3) or (words >= 4 and blamed):
        return part[:1].upper() + part[1:]
    # Scripts without spaces have no words to count.
    unspaced = len(part) >= 4 and not part.isascii()
    return part if unspaced and not praised and (blamed or ordering) else None


def _counts(text: str, names: Sequence[str]) -> int:
    return sum(count(text, name) for name in names)
