"""From what a person said next to an instruction that the teacher is given.

A hint exists only where the next state says what should have been different: "wrong" alone
gives none. The embedded way says common wishes (shorter, no lists, friendlier) as plain orders,
which a small model follows better than a quotation, and keeps the person's own sentences,
without greetings, praise and filler, for all that the orders do not say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from instar.judge.lexicon import lowered
from instar.judge.next_state import Case
from instar.judge.orders import Order, joined, sentences, settle
from instar.judge.said import instructive
from instar.judge.scorn import scornful
from instar.judge.wishes import read, split, unquoted

MAX_SENTENCES = 3
MAX_CHARS = 400
"""Longer words of a person are cut at a sentence: a hint is an instruction, not a letter."""
MOST_READ = 2000
"""Characters at either end of a long message in which wishes are looked for: the rest is pasted."""

ROLE = "You are a helpful assistant."


class Hinter(Protocol):
    """One way to find hints."""

    async def hints(self, case: Case, count: int) -> Sequence[str]:
        """Candidates, the likeliest to serve first; from as many samples as there are votes."""
        ...


class WordHinter:
    """The embedded way: the person's own words, framed; no model is asked."""

    async def hints(self, case: Case, count: int) -> Sequence[str]:
        return candidates(case)


def candidates(case: Case) -> list[str]:
    """Hints for a case that was judged -1, the best first; empty where none is said.

    Example: "Nice, but too long. No lists please, and say why." gives
    "Keep the answer short. Do not use lists. No lists please, and say why.", then the other
    ways to hand over the same words.
    """
    if case.role != "user":
        return []  # what a tool prints is no wish
    words = wish_words(case.next, case.response)
    if words is None:
        return []
    return list(dict.fromkeys(frame(words) for frame in FRAMES.values()))


def wish_words(text: str, response: str = "") -> str | None:
    """The part of a reply that says what should be different, in the person's words; a complaint
    in plain orders."""
    if len(text) > 2 * MOST_READ:
        text = f"{text[:MOST_READ]}\n{text[-MOST_READ:]}"
    return _cut(instructive(text, response))


def told_outright(text: str) -> str | None:
    """The instruction in words that were given as one, outside of the talk.

    It is what the same words in a reply would give, else the words themselves: what a person says
    outright is better than nothing. None where they only mock.
    """
    found = candidates(Case(request="", response="", next=text))
    if found:
        return found[0]
    return _cut([one for one in split(text[:MOST_READ]) if not scornful(lowered(unquoted(one)))])


def _cut(said: Sequence[str]) -> str | None:
    kept = list(said[:MAX_SENTENCES])
    while len(kept) > 1 and len(" ".join(kept)) > MAX_CHARS:
        kept.pop()
    return " ".join(kept)[:MAX_CHARS].strip() or None


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
    plain = sentences(joined(orders, MAX_SENTENCES - len(own)))
    return words if len(plain) + len(own) > MAX_SENTENCES else " ".join([*plain, *own])


def _kept(wanted: Sequence[Order], orders: Sequence[Order]) -> bool:
    about = {one.about for one in orders}
    return all(one.about in about for one in wanted)


FRAMES: dict[str, Callable[[str], str]] = {
    "instruction": instruction,
    "quoted": lambda words: f'The user wants: "{words}" Follow this in every answer.',
    "words": lambda words: words,
}
"""Ways to hand the person's words to a model, the one that mostly serves best first. Which of them
is followed hangs on the words, so the trainer chooses (`learn/wording.py`)."""


def teacher_system(hint: str, system: str | None = None) -> str:
    """The system prompt of a teacher that follows the hint.

    A role comes first: the frozen SmolLM2-135M obeyed "Answer in one short sentence." in 1 of 10
    replies as its whole system prompt, and in 7 of 10 behind "You are a helpful assistant."
    """
    return f"{(system or ROLE).rstrip()} {hint}"
