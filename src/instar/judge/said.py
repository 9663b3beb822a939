"""What of a person's words may be an instruction: without greetings, praise, filler and scorn.

A complaint is turned into what it asks for (`complaints.py`). The rest stays in the person's own
words, where it says what should be different, or where nobody asks for anything and it may say what
is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from instar.judge.complaints import asking_rest, complaint
from instar.judge.demonstrations import as_ordered
from instar.judge.lexicon import count, lowered
from instar.judge.orders import Order, sentences
from instar.judge.scorn import bare, scornful
from instar.judge.wishes import asks, read, split, unquoted

_FILLER = re.compile(
    r"^(?:(?:ok(?:ay)?|hm+|um+|uh+|hey|(?:hi|hello)(?! first)|please|pls|sorry|honestly|wow|oh|"
    r"ugh+|lol|argh+|omg|good grief|bitte)\b[\s,.!:;–—-]*"
    # Before a comma these greet, thank or judge; before a word they belong to it: "No lists".
    r"|(?:well|so|yes|no+|nope|nah|look|actually|great|good|nice|cool|lovely|perfect|"
    r"nein|non|nee|nej|nei|não|nie|нет|ні|hayır|"
    r"thanks?(?: you)?|danke(?: dir| schön| sehr)?|merci(?: beaucoup)?|(?:muchas )?gracias|"
    r"grazie(?: mille)?|obrigad[oa])\b\s*(?:[,.!:;–—-]+\s*|$))+",
    re.IGNORECASE,
)
_GRATEFUL = re.compile(r"(?:many |so |ok,? )?(?:thanks?|thank you|danke|merci|gracias|grazie)\b")
_CONTRAST = re.compile(
    r"\b(?:but|however|although|though|except(?: that)?|(?<=, )yet|aber|mais|pero|ma|però|mas|maar|"
    r"ale|ama|но)\b[\s,:]*|(?:但是|不过|ですが|لكن\w*|लेकिन)[\s,,、]*",
    re.IGNORECASE,
)
_NOT_BUT = {
    "ma": re.compile(  # my, in French
        r"\b(?:ma (?:mère|fille|femme|soeur|sœur|question|réponse|phrase|ville|demande|liste|page)|"
        r"je|tu|est|sont|c'est|s'appelle|les|des|du|une|et|pas|qu\w*|dans|avec|sur|elle|née?)\b"
    ),
    "mais": re.compile(  # more, in Portuguese
        r"\bmais (?:curt|long|brev|simpl|clar|formal|um[a ]|detalh|exempl|amig|específic|devagar)"
        r"|\b(?:não|você|uma|por favor|muito|isso|com)\b"
    ),
    "mas": re.compile(  # more, in Spanish without its accent
        r"\bmas (?:cort|larg|brev|simpl|sencill|clar|formal|detall|ejempl|amabl|específic|despacio)"
    ),
    "ama": re.compile(r"\b(?:la|el|il|lo|que|che|su|mi|è|es|os|as)\b"),  # loves
    "ale": re.compile(r"\b(?:the|an?|is|of|and|beer|ginger|pale)\b"),
}
"""Words that are a "but" in one language and something else in another, and by what to tell."""
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
    r"not (?:quite|right|helpful|good)|no,? thank(?:s| you)|really|seriously|what|huh|why|"
    r"almost|nearly|close)\W*$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\W*(?:no+|nope|nah|nein|non|nee|nej|nei|não|nie|нет|ні|hayır)\s*[,.!:;–—-]", re.IGNORECASE
)
_REFERS = re.compile(
    r"(?:that|this)(?:'s| is| was) (?:exactly |all |really |just )*what i"
    r"(?:'m| am|'d| was| want\w*| asked| meant| need\w*| would)\b(?: (?:trying|asking|to|find|out|"
    r"know|looking|for|like|you|about|get|at|learn|wondering))*\W*$"
)
_FRAME = re.compile(
    r"(?:in|as|into|using|with|without) (?!(?:fact|general|short|conclusion|always|"
    r"usual|love|a word|case|that|this|it|you)\b)(?:an? )?[\w°-]+(?: [\w-]+){0,2}\W*$"
)
"""A few words that can only say how it is wanted: "in celsius", "without sugar"."""
_IMPERATIVE = re.compile(
    r"^(?:and |so |now |then |just |maybe |at least )*(?:throw|slip|sprinkle|lighten|loosen|cheer|"
    r"calm|number|split|break|spell|group|rank|expand|elaborate|commit|pick|choose|get|go|try|come|"
    r"rephrase|reword|rewrite|paraphrase|shorten|lengthen|simplify|summari[sz]e|trim|tighten|"
    r"clarify|highlight|underline|capitali[sz]e|provide|offer|consider|remember|assume|treat|limit|"
    r"finish|wrap|tone|dial|imagine|pretend|link|refer)\b"
    r"(?! (?:again|it|that|this|on|away|wrong|over|home|lost|figure|to hell)\b)"
)
"""Verbs that begin an instruction, beside those by which the judge was trained (`wishes.asks`)."""
_NICE = re.compile(
    r"\bwould (?:be|have been) (?:\w+ )?(?:great|nice|good|lovely|helpful|better|perfect|ideal|"
    r"useful)\b|\bcould (?:do with|use|have used) "
)
_PLEASE = re.compile(r"\b(?!(?:yes|no|again|thanks|ok)\b)\w+,? (?:please|pls|plz)\W*$")
_SPELT = re.compile(
    r"\b(one|two|three|four|five|six|ten|\d+)\. ?(sentences?|lines?|words?|paragraphs?)(?=[.!])",
    re.IGNORECASE,
)
_TAIL = re.compile(r"\W*(?:in|for|about|to|just to)\b", re.IGNORECASE)
_SHORT = 3
"""Words up to which sentences that follow one another may be one that was chopped."""
_NO_LISTS = "Do not use lists."
_ASKED_FOR = re.compile(
    r"\W*(?:(?:and|but|now|then|maybe|perhaps|just|same) )*(?:(?:as|in|into|with|using) )?(?:an? )?"
    r"(?P<noun>(?:bulleted |bullet |numbered )?(?:bullet ?points?|bullets|lists?))\W*$"
)
_LITTLE = 12
"""Words of a reply that may be too short for anybody."""
_TELLING = ("length", "format", "tone")
_ORDERING = ("change", "not_asked", "task")
_PRAISING = ("praise", "thanks", "works", "accept")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A sentence that may be an instruction."""

    text: str
    told: bool
    """Whether something is wished in it."""


def instructive(text: str, response: str = "") -> list[str]:
    """The sentences that say what should be different, else those that may say what is true.

    The `response` that they are said to tells what is complained of and what is wished for.
    """
    parts = [
        one
        for one in _parts(_joined(split(_SPELT.sub(r"\1 \2", text))), response)
        if not scornful(lowered(unquoted(one.text)))  # it may be so only without its filler
    ]
    kept = [one for one in parts if one.told] or [one for one in parts if _states(one.text)]
    found = [one.text[:1].upper() + one.text[1:] for one in kept]
    return list(dict.fromkeys(found))


def _joined(said: Sequence[str]) -> list[str]:
    """Sentences, those that were chopped as one: "Lists. Again. Lovely." """
    found: list[list[str]] = []
    for sentence in said:
        words = len(_WORD.findall(sentence))
        chopped = bool(found) and all(_is_fragment(one) for one in found[-1])
        joins = _is_fragment(sentence) or (words <= 2 * _SHORT and _TAIL.match(sentence))
        together = " ".join([*found[-1], sentence]) if chopped and joins else ""
        if together and not read(sentence).orders and complaint(together) is not None:
            found[-1].append(sentence)
        else:
            found.append([sentence])
    return [" ".join(one) for one in found]


def _is_fragment(sentence: str) -> bool:
    short = sentence.isascii() and len(_WORD.findall(sentence)) <= _SHORT
    return short and not asks(lowered(sentence))


def _parts(said: Sequence[str], response: str) -> Iterator[Part]:
    for at, sentence in enumerate(said):
        before, after = said[at - 1] if at else "", said[at + 1] if at + 1 < len(said) else ""
        if _REFERS.match(lowered(sentence)):
            if before and complaint(before) is None:
                yield Part(text=_FILLER.sub("", before).strip(), told=True)
                yield Part(text=sentence, told=True)
            continue
        denied = sentence.rstrip().endswith("?") and _DENIED.match(after)
        if denied and complaint(sentence) is None:
            continue  # "In one sentence? No, the long version."
        mocked = any(bare(lowered(one)) for one in (before, after) if one)
        yield from _of(sentence, response, mocked=mocked)


def _of(sentence: str, response: str, *, mocked: bool) -> Iterator[Part]:
    """What a sentence tells: orders that a complaint means, then what it says outright."""
    contrast = _but(sentence)
    pieces = [sentence]
    if contrast is not None:
        before = sentence[: contrast.start()]
        if _is_aside(before) and len(sentence) - contrast.end() > 6:
            pieces = [before, sentence[contrast.end() :]]
    for at, piece in enumerate(pieces):
        orders = complaint(piece, mocked=mocked)
        if response and piece.rstrip().endswith("?"):
            orders = _of_what_is_there(orders, piece, response)
        for one in sentences(orders or ()):
            yield Part(text=one, told=True)
        own = piece if orders is None else asking_rest(piece)
        if at == len(pieces) - 1 and own is not None and (said := _without_filler(own)) is not None:
            yield Part(text=said, told=_told(said))


def _of_what_is_there(
    orders: tuple[Order, ...] | None, piece: str, response: str
) -> tuple[Order, ...] | None:
    """What a question means of this reply.

    Of one with a list "Bullets?" complains; of one that has none it wishes for some. "One
    sentence?" is no wish for what it got.
    """
    asked = _ASKED_FOR.match(lowered(piece))
    if orders is not None and asked is not None and as_ordered(response, _NO_LISTS):
        return read(f"use {asked['noun']} please").orders
    counted = any(one.about == "length" and not one.general for one in read(piece).orders)
    bare = counted and len(_WORD.findall(piece)) <= _SHORT and len(response.split()) <= _LITTLE
    return () if orders is None and bare and as_ordered(response, piece) else orders


def _is_aside(before: str) -> bool:
    """Whether what stands before a "but" only praises, or wishes nothing."""
    text = lowered(before)
    wished = _counts(text, _TELLING) or _counts(text, _ORDERING)
    return bool(_counts(text, _PRAISING) or not wished)


def _without_filler(sentence: str) -> str | None:
    """A sentence without greetings and the like; None if nothing is left."""
    part = _FILLER.sub("", sentence).strip()
    thanked = _GRATEFUL.match(lowered(part)) and not asks(lowered(part))
    return None if not part or thanked or _EMPTY.match(part) else part


def _but(sentence: str) -> re.Match[str] | None:
    """The first word that turns what was said before, in whatever language."""
    text = lowered(sentence)
    for match in _CONTRAST.finditer(sentence):
        otherwise = _NOT_BUT.get(match[0].strip(" ,:").lower())
        if otherwise is None or not otherwise.search(text):
            return match
    return None


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
    if (
        _FRAME.match(text)
        or _NICE.search(text)
        or _PLEASE.search(text)
        or (words >= 2 and _IMPERATIVE.match(text))
    ):
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
