"""Common wishes about an answer, read from a sentence and said as plain orders.

A small model follows a plain order better than a quotation, but an order that was not meant is
worse than none. So an order is given only where the sentence surely says it: a "no" or "too"
in front of a word turns it off or around, numbers stay as they were said, what describes the
reply ("that was one sentence") asks for nothing, and two orders that contradict each other are
both dropped. `data/wishes.json` holds the ways in which each wish is said.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from instar.judge.lexicon import DATA, lowered


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was understood of one sentence."""

    orders: tuple[Order, ...]
    covered: bool
    """Whether the orders say all that the sentence says."""


Span = tuple[int, int]
_WORD = re.compile(r"[\w'-]+")
_BREAK = re.compile(
    r"[,;:.!?()\n–—。、,;:!?]| - |\b(?:but|aber|mais|pero|però|mas|maar|ale|но)\b|"
    r"\b(?:please|bitte)\b|\binstead\b(?! of)|\brather\b(?! than)|"
    r"\b(?:and|then|so) (?:keep|use|write|make|give|answer|be|say|tell|put|reply|start|show|"
    r"explain|please|just)\b"
)
_END = re.compile(_BREAK.pattern + r"|\b(?:and|that|which|because|so|und|et|y|e|en|i|и)\b")
_DENIED = re.compile(r"(?<!\w)(?:not|never|\w+n't|nicht|pas|niet|nie|não|non|no|не)(?!\w)")
_CLAUSE = re.compile(r"[,;:.!?()\n–—。、,;:!?]| - |\bbut\b")
_DESCRIBES = re.compile(
    r"^\W*(?:(?:that|this|it|your (?:answer|reply)|the (?:answer|reply))"
    r"(?:'s| is| was| has| had|'d)\b|i (?:got|see|found)\b)"
    r"|(?<!can )(?<!could )(?<!would )(?<!will )(?<!if )\byou(?:'ve| have|'re)? "
    r"(?:(?:only|just|always|still|again|even|already) )?(?:gave|wrote|used|answered|made|keep|"
    r"always|still|forgot|left|sent|\w+ing|\w+ed)\b"
    r"|\b(?:missing|wrong|typo|mistake|incorrect)\b"
)
_NUMBER = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|twenty|fifty|a hundred|\d+|"
    r"a few|a couple of|a single|single)"
)
_HOW = (
    r"(?:(?:very|really|short|brief|plain|simple|single|ordinary|normal|complete|full|clear|"
    r"friendly|warm|crisp|easy) )*"
)
_AT_MOST = r"(?:(?:no|not) (?:more|longer) than|at (?:the )?most|max(?:imum)?(?: of)?|up to|under|"
_AT_MOST += r"(?:less|fewer) than|below|within)"
_COUNTED = re.compile(
    rf"(?<![\w-])(?P<most>{_AT_MOST} )?(?:(?:in|to|only|just|with|about) )*"
    rf"(?:(?P<n>{_NUMBER}(?: (?:or|to) {_NUMBER}|-\d+)?) (?P<how>{_HOW})"
    r"(?P<unit>sentences?|lines?|paragraphs?|words?|bullet ?points?|bullets)"
    rf"|(?:(?<=in )a|(?<=just )a|(?<=only )a) (?P<how2>{_HOW})"
    r"(?P<unit2>sentence|line|paragraph|word))"
    r"(?P<max> (?:or (?:less|fewer)|at most|max(?:imum)?|tops))?(?! each\b)(?!\w)"
)
_ONE_SENTENCE = re.compile(
    r"(?<!\w)(?:(?:nur )?(?:in )?einen? (?:einzigen? )?(?P<de>kurzen? )?satz|"
    r"(?:en )?une (?:seule )?phrase(?P<fr> courte)?|"
    r"(?:en )?una (?:sola )?frase(?P<es> (?:corta|breve))?|"
    r"(?:em )?uma (?:só |única )?frase(?P<pt> curta)?|"
    r"(?:in )?(?:één|een enkele) (?P<nl>korte )?zin|"
    r"jedn(?:o|ym) (?P<pl>krótki(?:e|m) )?zdani(?:e|em)|tek (?P<tr>kısa )?cümle\w*|"
    r"одн(?:о|им) (?P<ru>коротк\w+ )?предложени\w+)(?!\w)|一句话?|一文で|جملة واحدة|एक वाक्य"
)
_SENTENCES = re.compile(r"(?<!\w)(?P<how>plain|ordinary|normal|full|complete|simple) sentences")
_WANTED_IN = (
    r"(?:(?:answer|reply|respond|write|speak|say|explain|tell me|want|need|rewrite|translate|"
    r"please|only|always|again|antworte?|schreib\w*|bitte|réponds|écris|responde|escribe|rispondi|scrivi|"
    r"responda|escreva|antwoord|schrijf|odpowiadaj|ответь|пиши)(?: \w+){0,3}? )"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    order: Order
    said: re.Pattern[str] | None
    complaint: re.Pattern[str] | None
    unwanted: re.Pattern[str] | None
    parts: re.Pattern[str] | None


def read(sentence: str) -> Reading:
    """The plain orders in a sentence, and whether they say all of it."""
    text = lowered(sentence)
    found = list(_found(text))
    orders = settle([order for order, _ in found])
    kept = {order.about for order in orders}
    spans = [span for order, spans in found if order.about in kept for span in spans]
    return Reading(orders=orders, covered=bool(orders) and not _rest(text, spans))


def settle(orders: Sequence[Order]) -> tuple[Order, ...]:
    """Each order once, the exact for the general, and none where two contradict."""
    exact = {one.about for one in orders if not one.general}
    short = any(one.general and one.about == "length" for one in orders)
    left = [
        _shortened(one) if short and one.about == "length" else one
        for one in orders
        if not (one.general and one.about in exact)
    ]
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
    return replace(order, text=re.sub(r"(sentences?|paragraphs?)\.$", r"short \1.", order.text))


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


def _found(text: str) -> Iterator[tuple[Order, list[Span]]]:
    strong = _scopes(text, _pattern("negators"))
    scopes = [*strong, *_scopes(text, _pattern("weakeners"))]
    yield from _counts(text, scopes)
    for wish in _wishes():
        for match in _all(wish.said, text):
            if _meant(text, match.span(), scopes):
                yield wish.order, [match.span()]
        for match in _all(wish.complaint, text):
            if not _inside(match.span(), scopes):
                yield wish.order, [match.span()]
        for match in _all(wish.unwanted, text):
            for start, middle, end in strong:
                if middle <= match.start() < end:
                    yield wish.order, [(start, middle), match.span()]
        for match in _all(wish.parts, text):
            yield wish.order, [match.span()]


def _counts(
    text: str, scopes: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[Order, list[Span]]]:
    for match in _COUNTED.finditer(text):
        if _meant(text, match.span(), scopes):
            yield Order(text=_counted(match), about="length"), [match.span()]
    for match in _ONE_SENTENCE.finditer(text):
        if _meant(text, match.span(), scopes):
            short = "short " if any(match.groups()) else ""
            yield Order(text=f"Answer in one {short}sentence.", about="length"), [match.span()]
    counted = [match.span() for match in _COUNTED.finditer(text)]
    for match in _SENTENCES.finditer(text):
        if any(start <= match.start() < end for start, end in counted):
            continue
        if _meant(text, match.span(), scopes):
            order = Order(text=f"Write in {match['how']} sentences.", about="prose", general=True)
            yield order, [match.span()]
    for name, pattern in _languages():
        for match in pattern.finditer(text):
            if _meant(text, match.span(), scopes):
                yield Order(text=f"Answer in {name}.", about="language"), [match.span()]


def _counted(match: re.Match[str]) -> str:
    unit = match["unit"] or match["unit2"]
    number = (match["n"] or "one").replace("a single", "one").replace("single", "one")
    said = (match["how"] or match["how2"] or "").replace("brief", "short").split()
    how = " ".join(word for word in said if word != "single")
    what = " ".join(part for part in (number, how, unit) if part)
    most = "at most " if match["most"] or match["max"] else ""
    return f"{'Use' if most and 'word' in unit else 'Answer ' + _with(unit)} {most}{what}."


def _with(unit: str) -> str:
    return "with" if unit.startswith("bullet") else "in"


def _scopes(text: str, pattern: re.Pattern[str]) -> list[tuple[int, int, int]]:
    """(start, end, end of what it turns around) of each such word."""
    found = []
    for match in pattern.finditer(text):
        stop = _BREAK.search(text, match.end())
        found.append((match.start(), match.end(), stop.start() if stop else len(text)))
    return found


def _inside(span: Span, scopes: Sequence[tuple[int, int, int]]) -> bool:
    """Whether a word before the span turns it around; one within it belongs to what is said."""
    return any(start < span[0] < end for start, _, end in scopes)


def _meant(text: str, span: Span, scopes: Sequence[tuple[int, int, int]]) -> bool:
    """Whether what stands there is wished: not denied, before or behind, and not described."""
    stop = _END.search(text, span[1])
    behind = text[span[1] : stop.start() if stop else len(text)]
    if _DENIED.search(behind):
        return False
    return not _inside(span, scopes) and not _described(text, span[0])


def _described(text: str, at: int) -> bool:
    """Whether the clause says how the reply is and not how it should be."""
    start = max((one.end() for one in _CLAUSE.finditer(text, 0, at)), default=0)
    stop = _CLAUSE.search(text, at)
    return _DESCRIBES.search(text[start : stop.start() if stop else len(text)]) is not None


def _rest(text: str, spans: Sequence[Span]) -> list[str]:
    """Words that say something which no order says."""
    glue = _glue()
    return [
        match[0]
        for match in _WORD.finditer(text)
        if not any(start <= match.start() < end for start, end in spans)
        and match[0].strip("'-") not in glue
    ]


def _all(pattern: re.Pattern[str] | None, text: str) -> Iterator[re.Match[str]]:
    return iter(()) if pattern is None else pattern.finditer(text)


@functools.cache
def _wishes() -> tuple[_Wish, ...]:
    return tuple(
        _Wish(
            order=Order(
                text=one["order"],
                about=one["about"],
                noun=one.get("noun"),
                general=one.get("general", False),
            ),
            said=_bounded(one.get("said")),
            complaint=_bounded(one.get("complaint")),
            unwanted=_bounded(one.get("unwanted")),
            parts=re.compile("|".join(one["parts"])) if "parts" in one else None,
        )
        for one in _data()["wishes"]
    )


@functools.cache
def _ranks() -> dict[str, int]:
    about = ("length", "prose", "language", *(wish.order.about for wish in _wishes()))
    return {name: at for at, name in enumerate(dict.fromkeys(about))}


@functools.cache
def _languages() -> tuple[tuple[str, re.Pattern[str]], ...]:
    before = r"(?:in|into|auf|en|em|in het|op|po|на|w języku)"
    return tuple(
        (
            name,
            re.compile(
                rf"(?<!\w){_WANTED_IN}{before} (?:{said})(?!\w)"
                rf"|(?<!\w){before} (?:{said}),? (?:please|bitte|por favor|per favore)(?!\w)"
                rf"|^\W*(?:{before} )?(?:{said})(?:,? (?:please|bitte|only))?\W*$"
            ),
        )
        for name, said in _data()["languages"].items()
    )


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    found = _bounded(_data()[name])
    assert found is not None
    return found


@functools.cache
def _glue() -> frozenset[str]:
    return frozenset(_data()["glue"].split())


def _bounded(fragments: Sequence[str] | None) -> re.Pattern[str] | None:
    """Any of these between word edges, the longest where several fit."""
    if not fragments:
        return None
    longest = sorted(fragments, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(longest)})(?!\w)")


@functools.cache
def _data() -> Any:
    return json.loads((DATA / "wishes.json").read_text(encoding="utf-8"))
