"""Plain orders: what they are about, which of them stand together, and how they are said."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from instar.judge.lexicon import DATA

_COUNTED = re.compile(r" (sentences?|paragraphs?|lines?)\.$")
_FRIENDLY = re.compile(r"\b(?:friendly|warm|kind)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One plain order."""

    text: str
    about: str
    """Orders about the same thing that differ contradict each other."""
    noun: str | None = None
    """What is not to be used; several such orders become one sentence."""
    general: bool = False
    """Gives way to an order about the same that says it exactly."""


def settle(orders: Sequence[Order]) -> tuple[Order, ...]:
    """Each order once, the exact for the general, and none where two contradict."""
    exact = {one.about for one in orders if not one.general}
    short = any(one.general and one.about == "length" for one in orders)
    left = [
        _shortened(one) if short and one.about == "length" else one
        for one in orders
        if not (one.general and one.about in exact)
    ]
    if any(one.about == "length" and "bullet" in one.text for one in left):
        # "What a list. Only three bullets" says all about lists that there is to say.
        left = [one for one in left if one.about != "list"]
    left = list(dict.fromkeys(left))
    texts: dict[str, set[str]] = {}
    for one in left:
        texts.setdefault(one.about, set()).add(one.text + (one.noun or ""))
    kept = [one for one in left if len(texts[one.about]) == 1]
    # One order of orders: the same wishes give the same hint, however they are said.
    return tuple(sorted(kept, key=lambda one: _ranks()[one.about]))


def _shortened(order: Order) -> Order:
    """ "Too long. One sentence, please" asks for a short one."""
    if "short" in order.text:
        return order
    return replace(order, text=_COUNTED.sub(r" short \1.", order.text))


def joined(orders: Sequence[Order], room: int) -> tuple[Order, ...]:
    """Orders that take no more sentences than there is room for, if what is asked of the tone can
    be said with the length: "one short sentence" and "be friendly" are "one short friendly one".
    """
    lengths = [one for one in orders if one.about == "length" and _COUNTED.search(one.text)]
    if len(sentences(orders)) <= room or not lengths:
        return tuple(orders)
    friendly = replace(lengths[0], text=_COUNTED.sub(r" friendly \1.", lengths[0].text))
    length = lengths[0] if _FRIENDLY.search(lengths[0].text) else friendly
    left = [length if one == lengths[0] else one for one in orders if one.about != "warmth"]
    return tuple(left) if len(left) < len(orders) else tuple(orders)


def sentences(orders: Sequence[Order]) -> list[str]:
    """Orders in words; all that is not to be used is one sentence."""
    nouns = [one.noun for one in orders if one.noun]
    said: list[str] = []
    for one in orders:
        if one.noun is None:
            said.append(one.text)
        elif one.noun == nouns[0]:
            listed = ", ".join(nouns[:-1]) + " or " + nouns[-1] if len(nouns) > 1 else nouns[0]
            said.append(one.text.format(listed))
    return said


@functools.cache
def _ranks() -> dict[str, int]:
    about = ("length", "prose", "language", *(one["about"] for one in wish_data()["wishes"]))
    return {name: at for at, name in enumerate(dict.fromkeys(about))}


@functools.cache
def wish_data() -> Any:
    """`data/wishes.json`."""
    return json.loads((DATA / "wishes.json").read_text(encoding="utf-8"))
