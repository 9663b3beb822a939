"""Wishes that name an amount or a language: "two short sentences", "under 50 words", "in French".

The number stays as it was said. Whether it was wished at all, `wishes.py` looks at the words
around it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from instar.judge.orders import Order, wish_data

_NUMBER = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|twenty|fifty|a hundred|\d+|"
    r"a few|a couple of|a single|(?<!every )(?<!each )single)"
)
_HOW = (
    r"(?:(?:very|really|short|brief|plain|simple|single|ordinary|normal|complete|full|clear|"
    r"friendly|warm|kind|crisp|easy|small|little|compact|flowing|connected)"
    r"(?:, and | and | but |, | ))*"
)
_AT_MOST = r"(?:(?:no|not) (?:more|longer) than|at (?:the )?most|max(?:imum)?(?: of)?|up to|under|"
_AT_MOST += r"(?:less|fewer) than|below|within)"
_COUNTED = re.compile(
    rf"(?<![\w-])(?:explain (?:(?:it|this|that) )?)?(?P<most>{_AT_MOST} )?"
    r"(?P<least>(?:at (?:the very )?least|no (?:fewer|less) than|a minimum of) )?"
    r"(?:(?:in|to|only|just|with|about) )*"
    rf"(?:(?P<n>{_NUMBER}(?: (?:or|to) {_NUMBER}|-\d+)?) (?P<how>{_HOW})"
    r"(?P<unit>sentences?|lines?|paragraphs?|words?|bullet ?points?|bullets)"
    r"|(?:(?<=in )a|(?<=just )a|(?<=only )a|"
    r"(?:(?<=\bas )|(?<=into ))a(?= (?:\w+ ){0,2}paragraph))"
    rf" (?P<how2>{_HOW})"
    r"(?P<unit2>sentence|line|paragraph|word)(?! or two\b)"
    rf"|an? (?P<how3>{_HOW})(?P<unit3>sentence|line|paragraph|word) or two)"
    r"(?P<max> (?:or (?:less|fewer)|at most|max(?:imum)?|tops))?"
    r"(?! (?:each|summary|summaries|intro|description|comment|per)\b)(?!\w)"
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


def exact(text: str) -> Iterator[tuple[Order, tuple[int, int]]]:
    """Orders that a lower-case text seems to give, and where."""
    counted = list(_COUNTED.finditer(text))
    for match in counted:
        yield Order(text=_counted(match), about="length"), match.span()
    for match in _ONE_SENTENCE.finditer(text):
        short = "short " if any(match.groups()) else ""
        yield Order(text=f"Answer in one {short}sentence.", about="length"), match.span()
    for match in _SENTENCES.finditer(text):
        if not any(one.start() <= match.start() < one.end() for one in counted):
            how = Order(text=f"Write in {match['how']} sentences.", about="prose", general=True)
            yield how, match.span()
    for name, pattern in _languages():
        for match in pattern.finditer(text):
            yield Order(text=f"Answer in {name}.", about="language"), match.span()


def _counted(match: re.Match[str]) -> str:
    unit = match["unit"] or match["unit2"] or f"{match['unit3']}s"
    number = (
        (match["n"] or ("one or two" if match["unit3"] else "one"))
        .replace("a single", "one")
        .replace("single", "one")
    )
    said = (
        (match["how"] or match["how2"] or match["how3"] or "")
        .replace("brief", "short")
        .replace(",", " ")
        .split()
    )
    how = " ".join(word for word in said if word not in ("single", "and", "but"))
    what = " ".join(part for part in (number, how, unit) if part)
    most = "at most " if match["most"] or match["max"] else "at least " if match["least"] else ""
    return f"{'Use' if most and 'word' in unit else 'Answer ' + _with(unit)} {most}{what}."


def _with(unit: str) -> str:
    return "with" if unit.startswith("bullet") else "in"


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
        for name, said in wish_data()["languages"].items()
    )
