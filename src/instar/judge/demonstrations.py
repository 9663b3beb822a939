"""What obeying an order looks like: short talks that a teacher is shown until it has better ones.

A small model does what it is shown better than what it is told. Nothing that this person praised
can be shown before they have praised something; without it, a teacher that is asked for two bullet
points goes on writing paragraphs, and nothing is ever praised. `data/demonstrations.json` holds
requests of everyday use with replies that obey plain orders. How long a reply is, and whether it
is a list, is counted here; what cannot be counted is written beside it.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from instar.judge.lexicon import DATA
from instar.judge.orders import Order, settle
from instar.judge.wishes import read, split

_SHORT, _USUAL = 30, 35
"""Words of a short reply at most, and of one at least whose length nobody spoke of."""
_SAID_WITH = (
    (re.compile(r"\b(?:friendly|warm|kind)\b"), "Be warm and friendly."),
    (re.compile(r"\bbullet"), "Answer with bullet points."),
    (re.compile(r"\bbullet"), "Answer with a list."),
)
"""What an order about the length asks for besides: "one friendly sentence", "three bullets"."""
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {word: number for number, word in enumerate(_WORDS, 1)} | {
    "twenty": 20,
    "fifty": 50,
    "a hundred": 100,
    "a couple of": 2,
    "a few": 3,
}
_NUMBER = rf"(?:\d+|{'|'.join(_NUMBERS)})"
_AMOUNT = re.compile(
    rf"\b(?P<how>at most |at least )?(?P<low>{_NUMBER})(?:(?: or | to |-)(?P<high>{_NUMBER}))?"
    r" (?:\w+ )*?(?P<unit>sentence|line|paragraph|word|bullet)"
)
_BULLET = re.compile(r"^(?:[-*•]|\d+\.) ", re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A request and a reply that obeys some orders."""

    request: str
    reply: str
    obeys: frozenset[str]
    """Those that cannot be counted."""

    def amount(self, unit: str) -> int:
        """How many sentences, lines, paragraphs, words or bullets it has."""
        if unit == "bullet":
            return len(_BULLET.findall(self.reply))
        if unit == "line":
            return self.reply.count("\n") + 1
        if unit == "paragraph":
            return self.reply.count("\n\n") + 1
        return len((_SENTENCE_END.findall if unit == "sentence" else str.split)(self.reply))


def demonstrations(hint: str, *, count: int, seed: str) -> list[Demonstration]:
    """So many that obey a hint's orders, the same ones for the same `seed`; none if too few do."""
    orders = _orders(hint)
    ranked: dict[int, list[Demonstration]] = {}
    for one in _bank().shown:
        if (obeyed := _obeyed(one, orders)) is not None:
            ranked.setdefault(obeyed, []).append(one)
    fitting: list[Demonstration] = []
    for rank in sorted((rank for rank in ranked if rank > 0), reverse=True):
        fitting += ranked[rank]
        if len(fitting) >= count:
            break
    if not count or len(fitting) < count:
        return []
    return random.Random(seed).sample(fitting, count)


def as_ordered(reply: str, hint: str, *, roughly: bool = False) -> bool:
    """Whether a reply is as long as a hint orders, and no list where none is wanted: what can be
    counted of a hint's orders. `roughly`, it is only a list where one is wished and none else."""
    one = Demonstration(request="", reply=reply, obeys=frozenset())
    orders = _orders(hint)
    if roughly:
        orders = tuple(one for one in orders if one.about != "length" or "bullet" in one.text)
    return _has_form(one, orders)


@functools.lru_cache(maxsize=64)
def _orders(hint: str) -> tuple[Order, ...]:
    return settle([order for sentence in split(hint) for order in read(sentence).orders])


def _has_form(one: Demonstration, orders: Sequence[Order]) -> bool:
    if one.amount("bullet") and any(order.noun == "lists" for order in orders):
        return False
    return all(_is_as_long(one, order.text) for order in orders if order.about == "length")


def _obeyed(one: Demonstration, orders: Sequence[Order]) -> int | None:
    """How many orders it obeys; None where it breaks one, or does what is odd if nobody asked."""
    bank = _bank()
    asked = {order.text for order in orders if order.noun is None}
    asked |= {more for text in asked for part, more in _SAID_WITH if part.search(text)}
    odd = (one.obeys - asked) & bank.only_if_asked
    if odd or any(asked & bank.against.get(name, set()) for name in one.obeys):
        return None
    if not _has_form(one, orders):
        return None
    lengths = [order for order in orders if order.about == "length"]
    if not lengths and not one.obeys & bank.only_if_asked and one.amount("word") < _USUAL:
        return None
    plain = [
        order
        for order in orders
        if order.noun or order.about == "prose" or order.text in bank.all_obey
    ]
    return len(one.obeys & asked) + len(lengths) + len(plain)


def _is_as_long(one: Demonstration, order: str) -> bool:
    found = _AMOUNT.search(order.lower())
    if found is None:
        return order == "Keep the answer short." and one.amount("word") <= _SHORT
    low, high = _number(found["low"]), _number(found["high"] or found["low"])
    amount = one.amount(found["unit"])
    if found["how"] == "at least ":
        return amount >= low
    if found["how"] or found["unit"] == "word":  # nobody counts words so closely
        return amount <= high
    short = "short" not in order or one.amount("word") <= _SHORT
    return low <= amount <= high and short


def _number(said: str) -> int:
    return _NUMBERS[said] if said in _NUMBERS else int(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bank:
    shown: tuple[Demonstration, ...]
    only_if_asked: frozenset[str]
    """Orders whose obeying is odd where nobody gave them."""
    all_obey: frozenset[str]
    """Orders that each reply obeys which is not said to be against them."""
    against: dict[str, set[str]]
    """Orders that one who obeys this one breaks."""


@functools.cache
def _bank() -> _Bank:
    found: Any = json.loads((DATA / "demonstrations.json").read_text(encoding="utf-8"))
    return _Bank(
        shown=tuple(
            Demonstration(request=one["request"], reply=one["reply"], obeys=frozenset(one["obeys"]))
            for one in found["shown"]
        ),
        only_if_asked=frozenset(found["only_if_asked"]),
        all_obey=frozenset(found["all_obey"]),
        against={name: set(orders) for name, orders in found["against"].items()},
    )
