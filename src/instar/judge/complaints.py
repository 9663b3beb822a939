"""What a complaint asks for: the opposite of what it names.

"Oh great, another wall of text", "Bullets again?", "Why is everything in bold?" and "You call that
short?" order nothing, and quoted to a teacher they would say the contrary of what was meant. What
they name too much of becomes an order against it; a complaint of which nothing can be made gives
no order at all.
"""

from __future__ import annotations

import functools
import re

from instar.judge.lexicon import lowered
from instar.judge.orders import Order
from instar.judge.scorn import scornful
from instar.judge.wishes import LONGEST, against, asks, excess, is_negated, read, unquoted

_START = (
    r"\W*(?:(?:and|but|ok|okay|well|hm+|so(?=,))\b[\s,.:…–-]*)*"
    r"(?P<sigh>(?:(?:oh|ugh+|omg|wow|seriously|really|honestly|sigh|argh+|good grief|great|nice|"
    r"lovely|wonderful)\b[\s,.!:…–-]*)*)"
)
_LOUD = (
    r"again|(?:yet )?another|(?:even )?more|so (?:many|much)|(?:all )?(?:those|these)|"
    r"all (?:the|this|that)|such an?|what an?|again with (?:the|these|those|your)|still"
)
_SOME = r"an?|some|\d+|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|fifty|a hundred"
_UNITS = r"words|sentences|paragraphs|pages|lines|steps"
_FILL = (
    r"(?:(?!(?:my|your|our|his|her|their|its|the|no|not|please|only|just|simply|now|then|"
    r"you|i|we|they|he|she|it|this|that|there)\b)"
    r"[\w-]+ ){0,2}?"
)
_FOR_ONE = r"for (?:an?|one|the|yes|my|this)"
_NOISY = re.compile(
    rf"^[\s,.!?…]*(?:again|everywhere|all over|really|seriously|wow|{_FOR_ONE}|to say|just to|"
    r"about|in (?:an?|my|every))\b|\?\W*$"
)
_FOR = re.compile(rf"^[\s,.!?…]*(?:again|{_FOR_ONE}|to \w+|just to|about)\b")
_STATED = re.compile(
    r"\b(?:is|are|was|were|would|should|could|can|will|must|has|have|had|needs?|wants?|wanted|do|"
    r"does|did|please|pls|plz|bitte|instead|better|enough|works?|now|next|without|only)\b|'s\b|n't\b"
)
_RHETORICAL = re.compile(
    r"why (?:on earth |in the world |the hell )?(?:all|the|so many|so much|these|those|always|"
    r"(?:yet )?another|is (?:everything|it all|all of (?:it|this|that)|it|this|that|there) "
    r"(?:(?:all|always|again|still) )*(?:in|an?|full|such|written|formatted|just|only|so|another)|"
    r"are (?:there|these|those|you \w+ing)|"
    r"(?:do|did|would|must|does) (?:you|i|it|we|anyone) "
    r"(?:(?:always|keep|even|ever|still|have to) )*"
    r"(?:us(?:e|ing)|mak(?:e|ing)|writ(?:e|ing)|giv(?:e|ing)|put|putting|add|adding|send|answer|"
    r"reply|format|need|want|read|start|end|turn))\b|what(?:'s| is| are|s) (?:it |up )?with\b"
    r"|how many more\b|(?:does|do|must|has|is) "
    r"(?:this|that|it|everything|every \w+|your answers?|you|they|i|we) "
    r"(?:(?:really|actually|always|all|honestly) )*"
    r"(?:(?:have|got) to (?:be|read)|need|want)\b(?! to\b)"
)
_UNASKED = re.compile(
    r"who (?:asked|wanted|wants|needs|ordered|reads)\b(?! you)|(?:(?:when|where) )?(?:did|have) i "
    r"(?:(?:ever|really|actually|even) )*(?:ask(?:ed)?|order(?:ed)?|request|say|said|mention)\b"
)
_UNDONE = re.compile(
    r"\b(?:remov|delet|dropp?|cut|leav|left|skip|without|instead|n't\b|not\b|no\b)"
)
_CONTRARY = re.compile(
    r"\byou (?:really |seriously |honestly )?(?:call|consider) (?:that|this|it) (?P<a>[^,.!?]+)"
    r"|\bdoes (?:that|this|it) (?:look|sound|read|seem) (?:like )?(?P<b>[^,.!?]+?) to you"
    r"|\bis (?:that|this|it) (?:what you call|your idea of) (?P<c>[^,.!?]+)"
    r"|\b(?:what|which) part of (?P<d>[^,.!?]+?) (?:did|do|don't|didn't|is|was)\b"
    r"|\bsince when (?:is|are|was|were) [^?]*?(?P<e>(?:an?|one|two) \w+|\w+)\?"
    r"|\bopposite of (?P<f>[^,.!?]+)|\bso much for (?:being )?(?P<g>[^,.!?]+)"
    r"|^\W*how (?:very |truly |so )?(?P<h>concise|brief|short|succinct|friendly|specific|simple)"
    r"(?: of you)?[\s.!]*$"
    r"|^\W*(?:(?:oh|wow|well|yeah|sure|great|now),? )*(?:that's|that is|this is|it's) "
    r"(?:so+ |way |really )?much (?P<i>shorter|briefer|clearer|simpler|friendlier|kinder|warmer|"
    r"nicer|plainer|more (?:concise|specific|natural|human|friendly))\W*$"
    r"|^\W*(?P<told>[^,.!?]+), (?:he|she|they|you) (?:says?|said)\b"
)
"""What was asked for and is named because the reply is not so."""
_MISSED = re.compile(
    r"^\W*(?:and |so |but )?why (?:(?:(?:is|are|was|were) there )?(?:no|not(?: just| simply)?)|"
    r"(?:do|did|can|could|would|is|are)(?:n't| (?:you|there) not) (?:(?:you|we|there) )?"
    r"(?:just |simply )?) ?(?P<wish>[^?]+)\?\W*$"
    r"|^\W*(?:(?:what|wait|hey|really|seriously|still)\b[\s,.!?…]*)*(?:no|not (?:one|a single)) "
    r"(?P<none>[^?,]+)\?\W*$"
)
"""What a question finds missing: "Why no examples?", "No emojis?" """
_LITTLE = re.compile(
    rf"^\W*(?:(?:what|wait|really|seriously)\b[\s,.!?…]*)*(?:(?:that|this)(?:'s| is) )?only "
    rf"(?:{_SOME}|one|a single) (?:short |little )?(?:sentence|line|word|paragraph|{_UNITS})\b"
    r"[^?,]*\?\W*$"
)
_SO = re.compile(
    r"^\W*(?:(?:and|but|oh|wow|ugh|well|great|nice|hm+)\b[\s,.!]*)*(?:(?:why|how come) )?"
    r"(?:(?:is|are|was|do you sound) )?"
    r"(?:(?:this|that|it|everything|you|your (?:answers?|tone|replies)) )?(?:always |again |all )?"
    r"so (?P<how>[\w-]+)\W*$"
)
_THING = re.compile(r"\W*(?:an?|another) \w")
_LESS = re.compile(r"\b(?:too|less|fewer|few|enough)\b")
_MARKS = re.compile(r"[\"'“”„«»]")
_CLAUSE = re.compile(r"\s*(?:[,;:–—]| - |\bbut\b)\s*")
_ASKING = re.compile(
    r"^(?:(?:and|so|now|then|just|please|next time|maybe|simply) )*(?:please|give|tell|write|"
    r"answer|reply|say|make|keep|use|explain|show|be|stop|add|include|mention|sort|remove|fix|"
    r"change|put|try|leave|drop|cut|call|start|end|translate|convert|"
    r"(?:can|could|would|will) you)\b"
    r"|^(?:(?:and|but|now|then|just) )*(?:now|then|just) (?:shorter|longer|simpler|friendlier|"
    r"warmer|without|with|in|as|no|less|more)\b"
    r"|\bplease\W*$|^i (?:only |just |really )?(?:asked|want(?:ed)?|need(?:ed)?|meant|said)\b"
)


def complaint(sentence: str, *, mocked: bool = False) -> tuple[Order, ...] | None:
    """The orders that a complaining or scornful sentence means, () where it tells none.

    None where it is neither, and may be taken as it is. `mocked` says that an exclamation stands
    beside it: "A numbered list. How original."
    """
    if len(sentence) > LONGEST:
        return None
    text = lowered(sentence)
    for match in _CONTRARY.finditer(text):
        wished = next(one for one in match.groups() if one)
        orders = read(f"{_MARKS.sub('', wished).strip()} please").orders
        if orders or match["told"] is None:
            return orders
    text = unquoted(text)
    if scornful(text):
        return against(text)
    if (missed := _MISSED.match(text)) is not None:
        orders = read(f"use {missed['wish'] or missed['none']} please").orders
        return orders or (None if missed["wish"] else ())  # quoted, "No title?" forbids one
    if _LITTLE.match(text):
        return read("too short").orders
    if (how := _SO.match(text)) is not None and (orders := read(f"too {how['how']}").orders):
        return orders
    if _is_rhetorical(text):
        return against(text, owned=True)
    if _states().match(text) and not is_negated(text):
        return against(text, owned=True)
    noun = _of_noun(text, mocked=mocked)
    if noun is None and mocked and _THING.match(text) and not _is_wish(text):
        return ()  # "A vegan recipe with bacon. Excellent."
    return noun


def asking_rest(sentence: str) -> str | None:
    """The last clauses of a scornful sentence, where they ask for something outright: "another
    list, just give me one line"."""
    at = [one.end() for one in _CLAUSE.finditer(sentence)]
    for start in at:
        rest = sentence[start:]
        if _ASKING.search(lowered(rest)) and not scornful(lowered(rest)):
            return rest
    return None


def _is_rhetorical(text: str) -> bool:
    if not text.rstrip().endswith("?"):
        return False
    match = re.match(rf"{_START}(?:{_UNASKED.pattern})", text)
    if match is not None:
        return not _UNDONE.search(text, match.end())
    match = re.match(rf"{_START}(?:{_RHETORICAL.pattern})", text)
    found = match is not None and excess().search(text, match.start()) is not None
    return found and not _UNDONE.search(text)


def _of_noun(text: str, *, mocked: bool) -> tuple[Order, ...] | None:
    """A noun without a verb: too much of it where it is said loudly, nothing where it is not."""
    match = _noun().match(text)
    if match is None or _is_wish(text):
        return None
    before = text[: match.start("noun")]
    if is_negated(before) or _LESS.search(before):
        return None
    counted = match["counted"] is not None
    tail = match["tail"]
    loud = mocked or match["loud"] is not None or match["sigh"] != ""
    if loud or (_FOR if counted else _NOISY).search(tail):
        return against(text, owned=True)
    bare = not counted and not re.search(r"\w", tail)
    return () if bare and not read(text).orders else None


def _is_wish(text: str) -> bool:
    """Whether a verb or a "please" makes more of it than a noun."""
    return _STATED.search(text) is not None or asks(text)


@functools.cache
def _noun() -> re.Pattern[str]:
    return re.compile(
        rf"^{_START}(?:(?P<loud>{_LOUD}) )?(?:(?:{_SOME}) )?{_FILL}"
        rf"(?P<noun>(?P<counted>{_UNITS})|{excess().pattern})(?!\w)(?P<tail>.*)$",
        re.DOTALL,
    )


@functools.cache
def _states() -> re.Pattern[str]:
    """ "That is a list", "I still see bullets", "The asterisks are annoying" """
    noun = rf"(?:{excess().pattern})"
    it = r"(?:it|that|this|yours|(?:the|your) (?:answer|reply))(?:'s| is| was)"
    still = r"(?: (?:still|just|again|only|yet|basically|literally|now|actually|like|full of))*"
    did = r"(?:see|are|is|used|wrote|gave|sent|made|keep using|keep making)"
    where = r"(?: (?:again|in it|in there|everywhere|anyway|now|though))*\W*$"
    verb = r"(?:is|are|looks?|makes?|hurts?|drives?|don't|doesn't|ha(?:ve|s) to|must|needs? to)"
    bad = (
        r"(?:annoying|ugly|unreadable|unnecessary|useless|pointless|terrible|awful|distracting|"
        r"hard to read|my eyes hurt|me (?:mad|crazy|sick)|my eyes|render(?: here)?|go|stop)"
    )
    return re.compile(
        rf"^{_START}(?:{it}{still}(?: an?| another)? {_FILL}{noun}{where}"
        rf"|(?:i|there|you|we) (?:still |just |again |only )*{did}(?: me| us)?(?: still)?"
        rf"(?: an?| another| some| more)? {_FILL}{noun}{where}"
        rf"|(?:all )?(?:the |these |those |your |such )?(?:[\w-]+ )?{noun}(?: at the end)? {verb} "
        rf"(?:\w+ ){{0,3}}?{bad}\W*$)"
    )
