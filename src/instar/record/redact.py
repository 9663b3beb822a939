"""Secrets and personal data in text: where they are, of which kind, how many.

Tokens are what is trained, and tokens are never rewritten. So nothing is replaced in a reply:
`redacted_tokens` says which of its sampled tokens spell something private, and the trainer
leaves those out of the loss. What is read by a model and not trained, such as a hint, is text:
there `redact_text` puts `[email]` in the place of an address.

Card and IBAN numbers are checked by their check digits, phone numbers (`redact_phones.py`) and
keys (`redact_keys.py`) by their form and by what stands before them, so that order numbers, dates,
prices and names stay.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from tokenizers import Tokenizer

from instar.config_training import RedactKind
from instar.record.redact_keys import find_keys
from instar.record.redact_phones import find_phones
from instar.text import TextDecoder

KINDS: tuple[RedactKind, ...] = get_args(RedactKind)


class Span(NamedTuple):
    """Something private: characters start to end, and its kind."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """What was found in a reply."""

    tokens: tuple[int, ...]
    """Positions of the tokens to leave out of the loss, in order."""
    counts: dict[str, int] = field(default_factory=dict)
    """Findings by kind."""


_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?P<what>[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?)-----"
    # Without its end the block runs to the end of the text: a reply may be cut.
    r"(?:.*?-----END (?P=what)-----|.*\Z)",
    re.DOTALL,
)
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}")
# Letters of any script: names have umlauts, and Chinese has no blank before an address.
_EMAIL = re.compile(
    r"(?<![\w.+%-])[^\W_][\w.%+-]{0,63}@"
    r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.)+[^\W\d_]{2,24}(?![\w@])"
)
_DIGITS = re.compile(r"(?<![A-Za-z0-9_.,-])\d(?:[ -]?\d){12,18}(?![A-Za-z0-9_]|[.,-]\d)")
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?: ?[A-Za-z0-9]){11,30}(?![A-Za-z0-9])")


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others, as on payment cards."""
    total = 0
    for place, char in enumerate(reversed(digits)):
        value = int(char) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def mod97(text: str) -> bool:
    """Whether an IBAN's check digits are right (ISO 13616)."""
    moved = text[4:] + text[:4]
    return int("".join(str(int(char, 36)) for char in moved)) % 97 == 1


def _is_card(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    return len(set(digits)) > 1 and digits[0] in "23456" and luhn(digits)


def _ibans(text: str) -> Iterator[tuple[int, int]]:
    """An IBAN may be followed by a word, which the pattern cannot tell from its groups."""
    at = 0
    while found := _IBAN.search(text, at):
        raw, at = found.group(), found.start() + 1
        for end in range(len(raw), 14, -1):
            plain = raw[:end].replace(" ", "")
            whole = end == len(raw) or raw[end] == " "
            if whole and 15 <= len(plain) <= 34 and mod97(plain.upper()):
                at = found.start() + end
                yield found.start(), at
                break


Finder = Callable[[str], Iterator[tuple[int, int]]]


def _by(pattern: re.Pattern[str], fits: Callable[[str], bool] = bool) -> Finder:
    def find(text: str) -> Iterator[tuple[int, int]]:
        return (one.span() for one in pattern.finditer(text) if fits(one.group()))

    return find


_FINDERS: dict[RedactKind, Finder] = {
    "private_key": _by(_PRIVATE_KEY),
    "jwt": _by(_JWT),
    "api_key": find_keys,
    "email": _by(_EMAIL),
    "iban": _ibans,
    "card": _by(_DIGITS, _is_card),
    "phone": find_phones,
}
"""In order of trust: where two overlap, the first one names what it is."""


def redacted_spans(
    text: str, kinds: Sequence[str] = KINDS, *, patterns: Mapping[str, str] | None = None
) -> list[Span]:
    """What is private in a text, in order and without overlaps.

    `patterns` adds kinds of one's own: a name and a regular expression each.

    Example: redacted_spans("Write to ann@example.org.") == [(9, 24, "email")]
    """
    finders = {kind: find for kind, find in _FINDERS.items() if kind in kinds}
    own = {name: _by(re.compile(pattern)) for name, pattern in (patterns or {}).items()}
    taken: list[Span] = []
    for kind, find in (*own.items(), *finders.items()):
        for start, end in find(text):
            if start < end and all(end <= one.start or one.end <= start for one in taken):
                taken.append(Span(start, end, kind))
    return sorted(taken)


def redact_text(
    text: str, kinds: Sequence[str] = KINDS, *, patterns: Mapping[str, str] | None = None
) -> tuple[str, dict[str, int]]:
    """The text with `[kind]` in place of each finding, and how many there were of each kind."""
    spans = redacted_spans(text, kinds, patterns=patterns)
    for span in reversed(spans):
        text = f"{text[: span.start]}[{span.kind}]{text[span.end :]}"
    return text, dict(Counter(span.kind for span in spans))


def redacted_tokens(
    ids: Sequence[int],
    tokenizer: Tokenizer,
    kinds: Sequence[str] = KINDS,
    *,
    patterns: Mapping[str, str] | None = None,
) -> Redaction:
    """Which of these tokens spell something private, wholly or in part."""
    text, ranges = token_ranges(ids, tokenizer)
    spans = redacted_spans(text, kinds, patterns=patterns)
    hit = [
        at
        for at, (start, end) in enumerate(ranges)
        if any(start < span.end and span.start < end for span in spans)
    ]
    return Redaction(tokens=tuple(hit), counts=dict(Counter(span.kind for span in spans)))


def token_ranges(ids: Sequence[int], tokenizer: Tokenizer) -> tuple[str, list[tuple[int, int]]]:
    """The text of these tokens, and the characters that each had a part in.

    Tokens that share a character, as bytes of it, all get the whole character.
    """
    decoder = TextDecoder(tokenizer)
    text, ranges, waiting = "", [], 0
    for token in ids:
        waiting += 1
        if part := decoder.push([token]):
            ranges += [(len(text), len(text) + len(part))] * waiting
            text, waiting = text + part, 0
    rest = decoder.flush()
    ranges += [(len(text), len(text) + len(rest))] * waiting
    return text + rest, ranges
