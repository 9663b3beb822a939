"""What can be read off the words alone: counts of telling words, shapes and overlaps.

In comes a `Case`, out goes a fixed-length list of numbers, named by `NAMES`. Everything is
looked for in the whole next state, so that an error at the end of a long tool result counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from instar.judge.lexicon import count, lowered, names, patterns
from instar.judge.next_state import Case
from instar.judge.scorn import marked
from instar.judge.tool_results import readings
from instar.judge.wishes import asks, read, split

CAP = 3
"""A word said more often than this says no more."""

_GROUPS = names("words", "parts")
_OPENING = 24
"""Characters in which a word counts as the reply's beginning."""
_WORD = re.compile(r"\w+")
_NEGATED_BY = re.compile(r"[ ']?(?:\w+ ){0,2}")
"""What may stand between a negation and the praise that it turns into blame."""
_NEGATED_AFTER = re.compile(r" ?(?:değil|नहीं|nahi\w*|ない|ません|ではない|じゃない)")
_CLEARED = re.compile(
    r"(?<!\w)(?:no|not a single|nothing|zero|without|never|isn't|doesn't|didn't|can't|couldn't|"
    r"don't)\W+(?:\w+\W+){0,3}?"
    r"(?:mistakes?|errors?|problems?|issues?|warnings?|complaints?|complain|wrong|bugs?|broken|"
    r"crash\w*|miss|change|fault|better|happen)"
)
_BLAMING = ("excess", "negation", "wrong", "complaint", "not_working", "not_asked")
_READ, _PARTS = 600, 4
"""Characters and sentences in which a wish is looked for."""
_STOP = frozenset(
    """the a an of to in is are was it i you and or for on with my me do how what be can this
    that at as""".split()  # noqa: SIM905
)

NAMES: tuple[str, ...] = (
    *(f"count:{name}" for name in _GROUPS),
    *(f"opening:{name}" for name in _GROUPS),
    *(f"tool:{name}" for name in names("tools")),
    *("praise_then_contrast", "negated_praise", "cleared", "scorn", "praise_only", "wrong_only"),
    *("length", "is_short", "is_tiny", "question_end", "questions", "exclamations", "dots", "caps"),
    *(
        "same_request",
        "same_response",
        "request_in_next",
        "asked_back",
        "is_tool",
        "digits",
        "newlines",
    ),
    *("latin", "cased_start"),
    *("orders", "asks", "praise_first", "praise_later", "blame_first", "blame_then_ask"),
)


def features(case: Case) -> list[float]:
    """One number for each of `NAMES`."""
    text = lowered(case.next)
    counts = {name: _count(name, text) for name in _GROUPS}
    if case.role == "tool":
        # Words of praise or blame in a file that was read say nothing about the reading.
        counts = dict.fromkeys(counts, 0.0)
    opening = text[:_OPENING]
    values = [
        *counts.values(),
        *(0.0 if case.role == "tool" else min(_count(name, opening), 1.0) for name in _GROUPS),
        *_tool_shapes(case),
        *_combinations(text, counts),
        *_shape(case.next),
        *_overlaps(case),
        *((0.0,) * 6 if case.role == "tool" else _sentences(text)),
    ]
    assert len(values) == len(NAMES)
    return values


def _count(name: str, text: str) -> float:
    return float(min(count(text, name), CAP))


def _tool_shapes(case: Case) -> Iterator[float]:
    found = readings(case) if case.role == "tool" else []
    for name in names("tools"):
        yield float(any(name in one.shapes for one in found))


def _combinations(text: str, counts: dict[str, float]) -> tuple[float, ...]:
    praised = counts["praise"] + counts["thanks"] + counts["works"] + counts["emoji_up"] > 0
    blamed = counts["wrong"] + counts["not_working"] + counts["not_asked"] + counts["complaint"] > 0
    return (
        float(praised and counts["contrast"] > 0),
        float(_praise_is_negated(text)),
        float(_CLEARED.search(text) is not None),
        float(marked(text)),
        float(praised and not blamed and not counts["contrast"]),
        float(blamed and not praised),
    )


def _praise_is_negated(text: str) -> bool:
    """Whether a word of praise has a "not" before it, or behind it as some languages have."""
    negations = [
        found.end()
        for group in ("words", "parts")
        for found in patterns(group)["negation"].finditer(text)
    ]
    for group in ("words", "parts"):
        for praise in patterns(group)["praise"].finditer(text):
            if _NEGATED_AFTER.match(text, praise.end()):
                return True
            start = praise.start()
            if any(at <= start and _NEGATED_BY.fullmatch(text, at, start) for at in negations):
                return True
    return False


def _shape(text: str) -> tuple[float, ...]:
    words = _WORD.findall(text)
    letters = [one for one in text if one.isalpha()]
    return (
        math.log1p(len(text)) / 5,
        float(len(words) <= 4),
        float(len(words) <= 1),
        float(text.rstrip().endswith(("?", "?", "؟"))),
        float(min(sum(text.count(mark) for mark in "??؟"), CAP)),
        float(min(text.count("!") + text.count("!"), CAP)),
        float("..." in text or "…" in text),
        sum(one.isupper() for one in letters) / max(1, len(letters)),
    )


def _overlaps(case: Case) -> tuple[float, ...]:
    request, response, following = (
        _content(one) for one in (case.request, case.response, case.next)
    )
    letters = [one for one in case.next if one.isalpha()]
    return (
        _share(request & following, request | following),
        _share(response & following, response | following),
        _share(request & following, request),
        float(case.response.rstrip().endswith(("?", "?", "؟"))),
        float(case.role == "tool"),
        float(any(one.isdigit() for one in case.next)),
        math.log1p(case.next.count("\n")) / 3,
        sum(one < "ɐ" for one in letters) / max(1, len(letters)),
        float(case.next[:1].isupper()),
    )


def _sentences(text: str) -> tuple[float, ...]:
    """Where praise, blame and wishes stand: "Too neat. Write nice, plain text" praises nothing."""
    parts = split(text[:_READ])[:_PARTS]
    if not parts:
        return (0.0,) * 6
    first, later = parts[0], " ".join(parts[1:])
    orders = sum(len(read(one).orders) for one in parts)
    asked = [asks(one) for one in parts]
    blamed = any(count(first, name) for name in _BLAMING)
    return (
        float(min(orders, CAP)),
        float(sum(asked)),
        float(count(first, "praise") > 0),
        float(count(later, "praise") > 0),
        float(blamed),
        float(blamed and (any(asked) or orders > 0)),
    )


def _content(text: str) -> set[str]:
    return {word for word in _WORD.findall(text.lower()) if word not in _STOP and len(word) > 1}


def _share(part: set[str], whole: set[str]) -> float:
    return len(part) / max(1, len(whole))
