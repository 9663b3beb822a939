"""Common wishes about an answer, read from a sentence and said as plain orders.

A small model follows a plain order better than a quotation, but an order that was not meant is
worse than none. So an order is given only where the sentence surely says it: a "no" or "too"
in front of a word turns it off or around, numbers stay as they were said, what describes the
reply ("that was one sentence") asks for nothing, and two orders that contradict each other are
both dropped. `data/wishes.json` holds the ways in which each wish is said.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from instar.judge.exact import exact
from instar.judge.lexicon import lowered
from instar.judge.orders import Order, settle, wish_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was understood of one sentence."""

    orders: tuple[Order, ...]
    covered: bool
    """Whether the orders say all that the sentence says."""


LONGEST = 400
"""Characters of a sentence that is read: a longer one is pasted, or says too much to be sure."""
Span = tuple[int, int]
_SENTENCE = re.compile(r"(?:[^.!?\n。!?؟।]|[.!?](?=\w))+(?:[.!?。!?؟।]+[\"'”»)]*|\n|$)")
_WORD = re.compile(r"[\w'-]+")
_BREAK = re.compile(
    r"[,;:.!?()\n–—。、,;:!?]| - |\b(?:but|aber|mais|pero|però|mas|maar|ale|но)\b|"
    r"\b(?:please|bitte)\b|\binstead\b(?! of)|\brather\b(?! than)|"
    r"\b(?:and|then|so) (?:keep|use|write|make|give|answer|be|say|tell|put|reply|start|show|"
    r"explain|please|just)\b"
)
_END = re.compile(_BREAK.pattern + r"|\b(?:and|that|which|because|so|und|et|y|e|en|i|и)\b")
_QUOTED = re.compile(
    r"\"[^\"\n]{1,200}\"|“[^”\n]{1,200}”|„[^“”\n]{1,200}[“”]|«[^»\n]{1,200}»"
    r"|(?<!\w)'[^'\n]{1,80}'(?!\w)"
)
_WHY = re.compile(r"\W*(?:and |so |but )?why\b")
_OWNERS = r"\b(?:my|your|our|his|her|their|its{}) (?:[\w-]+ )?$"
_OWNER = {False: re.compile(_OWNERS.format("|the")), True: re.compile(_OWNERS.format(""))}
"""Before a noun; "the essay" is the reply, "the list" may be anybody's."""
_DENIED = re.compile(r"(?<!\w)(?:not|never|\w+n't|nicht|pas|niet|nie|não|non|no|не)(?!\w)")
_NOT = r"(?<!\w)(?:not|never|don't|dont|do not|please don't) (?:ever |please )?"
_TWICE = re.compile(_NOT + r"(?:stop|drop|remove|avoid|skip|leave out|omit|quit|forget|lose)(?!\w)")
_AGAIN = re.compile(_NOT + r"$")
"""Denied twice is not denied: "don't drop the examples"."""
_PARTLY = re.compile(r" (?:[a-z]+ )?enough\b| (?:just|only|merely|simply|fewer|less)\b")
"""After a denial that forbids nothing: "not enough emojis", "not just a list"."""
_CLAUSE = re.compile(r"[,;:.!?()\n–—。、,;:!?]| - |\bbut\b")
_SCORNED = re.compile(
    r" ?(?:answers?|replies|responses)? ?(?:is|are|was|were) (?:just |simply |way |far |really )*"
    r"(?:too|hardly|useless|pointless|unhelpful|annoying|boring|rude|silly|ridiculous|nothing)\b"
)
"""What follows an amount that is no wish: "two sentences is too few"."""
_DESCRIBES = re.compile(
    r"^\W*(?:(?:that|this|it|your (?:answer|reply)|the (?:answer|reply))"
    r"(?:'s| is| was| has| had|'d)\b|i (?:got|see|found)\b)"
    r"|(?<!can )(?<!could )(?<!would )(?<!will )(?<!if )\byou(?:'ve| have|'re)? "
    r"(?:(?:only|just|always|still|again|even|already) )?(?:gave|wrote|used|answered|made|keep|"
    r"always|still|forgot|left|sent|\w+ing|\w+ed)\b"
    r"|\b(?:missing|wrong|typo|mistake|incorrect)\b"
)
_ASKS = re.compile(
    r"^(?:please |always |never |just |only |maybe |next time,? |from now on,? )*(?:be|begin|start|"
    r"end|finish|say|speak|talk|write|answer|reply|respond|tell|explain|use|keep|make|put|give|show|"
    r"add|include|mention|name|call|address|focus|stick|sound|act|leave|cut|move|change|replace|"
    r"translate|describe|compare|round|check|cite|quote|ask|stop|avoid|remove|skip|drop|do|don't|"
    r"more|less|fewer|no|not)\b(?! (?:up|that again|it again|me)\b)"
    r"|\bi(?:'d| would)? (?:want|need|like|prefer|expect|meant|wanted|needed|asked for)\b"
    r"|\b(?:should|must|ought to|has to|have to|needs? to|supposed to)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    order: Order
    said: re.Pattern[str] | None
    complaint: re.Pattern[str] | None
    unwanted: re.Pattern[str] | None
    excess: re.Pattern[str] | None
    """What a reply may have too much of; naming it in a complaint means the order."""
    parts: re.Pattern[str] | None


def split(words: str) -> list[str]:
    """Its sentences."""
    found: list[str] = []
    for one in _SENTENCE.findall(words):
        if found and found[-1].rstrip(" ")[-1:] in "\"'”»" and one.strip()[:1].islower():
            found[-1] += one  # 'Drop the "Certainly!" at the start.'
        elif one.strip():
            found.append(one)
    return [one.strip() for one in found]


def read(sentence: str) -> Reading:
    """The plain orders in a sentence, and whether they say all of it."""
    if len(sentence) > LONGEST:
        return Reading(orders=(), covered=False)
    text = lowered(sentence)
    found = list(_found(unquoted(text)))
    orders = settle([order for order, _ in found])
    kept = {order.about for order in orders}
    spans = [span for order, spans in found if order.about in kept for span in spans]
    return Reading(orders=orders, covered=bool(orders) and not _rest(text, spans))


def unquoted(text: str) -> str:
    """A text with blanks for what it quotes: who says "remove 'In conclusion'" names words of the
    reply and wishes nothing by them."""
    return _QUOTED.sub(lambda match: " " * len(match[0]), text)


def against(text: str, *, owned: bool = False) -> tuple[Order, ...]:
    """The orders against all that a lower-case complaint names. "The list" and "my table" may be
    things of the person's own; `owned` says that they are the reply's."""
    found = [
        wish.order
        for wish in _wishes()
        for match in (*_all(wish.excess, text), *_all(wish.complaint, text))
        if owned or not _OWNER[wish.order.about == "length"].search(text, 0, match.start())
    ]
    return settle([*found, *(wish.order for wish in _wishes() for _ in _all(wish.parts, text))])


def is_negated(text: str) -> bool:
    """Whether a word in a lower-case text turns around what follows it."""
    return _pattern("negators").search(text) is not None


@functools.cache
def excess() -> re.Pattern[str]:
    """All that a reply may have too much of."""
    found = [one.excess.pattern for one in _wishes() if one.excess is not None]
    return re.compile("|".join(found))


def asks(text: str) -> bool:
    """Whether a lower-case sentence asks for something, whatever it is."""
    return _ASKS.search(text) is not None


def _found(text: str) -> Iterator[tuple[Order, list[Span]]]:
    denials, weak = (_scopes(text, _pattern(name)) for name in ("negators", "weakeners"))
    strong = [one for one in denials if not _is_undone(text, one[0])]
    scopes = [*strong, *weak]
    for order, span in exact(text):
        if _meant(text, span, scopes):
            yield order, [span]
    for wish in _wishes():
        for match in _all(wish.said, text):
            if _meant(text, match.span(), scopes):
                yield wish.order, [match.span()]
        for match in _all(wish.complaint, text):
            if not _inside(match.span(), [*denials, *weak]):
                yield wish.order, [match.span()]
        # "Why no examples?" wants some.
        for match in _all(None if _WHY.match(text) else wish.unwanted, text):
            for start, middle, end in strong:
                if middle <= match.start() < end and not _PARTLY.match(text, middle):
                    yield wish.order, [(start, middle), match.span()]
        for match in _all(wish.parts, text):
            yield wish.order, [match.span()]


def _scopes(text: str, pattern: re.Pattern[str]) -> list[tuple[int, int, int]]:
    """(start, end, end of what it turns around) of each such word."""
    found = []
    for match in pattern.finditer(text):
        stop = _BREAK.search(text, match.end())
        found.append((match.start(), match.end(), stop.start() if stop else len(text)))
    return found


def _is_undone(text: str, at: int) -> bool:
    """Whether the denial there denies another, or is denied by one."""
    return bool(_TWICE.match(text, at) or _AGAIN.search(text, 0, at))


def _inside(span: Span, scopes: Sequence[tuple[int, int, int]]) -> bool:
    """Whether a word before the span turns it around; one within it belongs to what is said."""
    return any(start < span[0] < end for start, _, end in scopes)


def _meant(text: str, span: Span, scopes: Sequence[tuple[int, int, int]]) -> bool:
    """Whether what stands there is wished: not denied, before or behind, and not described."""
    stop = _END.search(text, span[1])
    behind = text[span[1] : stop.start() if stop else len(text)]
    if _DENIED.search(behind) or _SCORNED.match(behind):
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
            excess=_bounded(one.get("excess", one.get("unwanted"))),
            parts=re.compile("|".join(one["parts"])) if "parts" in one else None,
        )
        for one in wish_data()["wishes"]
    )


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    found = _bounded(wish_data()[name])
    assert found is not None
    return found


@functools.cache
def _glue() -> frozenset[str]:
    return frozenset(wish_data()["glue"].split())


def _bounded(fragments: Sequence[str] | None) -> re.Pattern[str] | None:
    """Any of these between word edges, the longest where several fit."""
    if not fragments:
        return None
    longest = sorted(fragments, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(longest)})(?!\w)")
