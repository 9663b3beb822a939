"""Scorn: words that mean the opposite of what they say.

Some forms are scorn wherever they stand (`marks`). Others are it only in a reply that is known to
complain (`mocking`): "How original." may be meant. Hints quote neither.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from instar.judge.lexicon import DATA

_WISHED = re.compile(
    r"\b(?:please|pls|plz|bitte|svp|s'il|por favor|per favore|alsjeblieft|graag|proszę|lütfen|"
    r"пожалуйста|instead|next time|from now on|this time|i (?:need|want|meant|prefer)|"
    r"i'd (?:like|prefer|rather)|(?:would|could|should|can|must|is|are|was|has|have|needs?|works?|"
    r"suffices?) (?!you\b|i\b)|enough|better|less|fewer|shorter|longer|simpler|friendlier|warmer|"
    r"clearer|kinder|softer|nicer|more (?:formal|casual|specific|concise|detailed|friendly|"
    r"natural))\b|'s\b"
)
"""What a noun is not mocked with: there it is wished for, or spoken of."""
_BARE = re.compile(r"(?:really|seriously|honestly|again|ugh+|wow|sigh|omg|wtf|why|not)[\s?!.…]*$")


def marked(text: str) -> bool:
    """Whether a lower-case text holds scorn, whatever kind of reply it is."""
    return _any("marks").search(text) is not None


def scornful(text: str) -> bool:
    """Whether a lower-case sentence of a complaint mocks."""
    return marked(text) or _any("mocking").search(text) is not None or _mocks(text)


def lone(text: str) -> bool:
    """Whether a lower-case reply is nothing but words that nobody ever means: "Wow, thanks for
    nothing." """
    return _lone().fullmatch(text) is not None


def bare(text: str) -> bool:
    """Whether it is nothing but an exclamation: "Lovely.", "Seriously?", "How original."."""
    words = len(re.findall(r"\w+", text))
    if not words or words > 4:
        return False
    exclaimed = _exclamation().fullmatch(text.strip()) or _BARE.match(text.strip())
    return exclaimed is not None or scornful(text)


def _mocks(text: str) -> bool:
    """ "Wonderful, another list": praise, and then something that nobody asked for."""
    opened = _opening().match(text)
    return opened is not None and not _WISHED.search(text, opened.end())


@functools.cache
def _any(name: str) -> re.Pattern[str]:
    return re.compile("|".join(rf"(?<!\w)(?:{one})(?!\w)" for one in _data()[name]))


@functools.cache
def _opening() -> re.Pattern[str]:
    data = _data()
    return re.compile(
        rf"\W*(?:(?:{data['before_praise']})\b[\s,.!…]*)*"
        rf"(?:{data['praise']})\b[,.!:…–—-]+ (?:{data['mocked']})\b"
    )


@functools.cache
def _lone() -> re.Pattern[str]:
    said = "|".join(_data()["lone"])
    return re.compile(rf"\W*(?:{_exclamation().pattern})?(?:{said})[\s.!…]*")


@functools.cache
def _exclamation() -> re.Pattern[str]:
    data = _data()
    return re.compile(rf"(?:(?:{data['before_praise']}|{data['praise']})\b[\s,.!…?]*)+")


@functools.cache
def _data() -> Any:
    return json.loads((DATA / "scorn.json").read_text(encoding="utf-8"))
