"""API keys and passwords in text: by their own form, or by the name that stands before them.

A key is drawn by chance. So where its form alone may be met elsewhere (`sk-loading-animation` is a
class of a web page), enough of it must be neither a word nor a short number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_FORMS = (
    r"[rsp]k_(?:live|test)_[A-Za-z0-9]{10,}",  # Stripe
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",  # AWS
    r"AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}",  # Google
    r"[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}",  # Azure
    r"hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    r"whsec_[A-Za-z0-9+/]{16,}|lin_api_[A-Za-z0-9]{20,}",  # webhooks, Linear
    r"gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{30,}",  # Groq, Replicate
    r"do[opr]_v1_[a-f0-9]{32,}",  # DigitalOcean
    r"(?:xai|pplx)-[A-Za-z0-9]{40,}|tgp_v1_[A-Za-z0-9_-]{30,}",  # xAI, Perplexity, Together
    r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}|dckr_pat_[A-Za-z0-9_-]{20,}",  # Shopify, Docker
)
_WORDY = (
    r"sk-(?:[A-Za-z0-9]+-)*[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, OpenRouter
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}",  # Slack
    r"nvapi-[A-Za-z0-9_-]{20,}",
    r"tskey-(?:[a-z]{2,12}-)?[A-Za-z0-9-]{10,}",  # Tailscale
    r"instar-[A-Za-z0-9_-]{20,}",
)
"""Forms that words with hyphens have as well."""
_KNOWN = re.compile(
    rf"(?<![A-Za-z0-9])(?:(?P<sure>{'|'.join(_FORMS)})|(?P<wordy>{'|'.join(_WORDY)}))"
)

_IS = (
    r"[\"'`]?(?:[ \t]{0,4}(?::=|=>|[:=])|[ \t]{1,4}(?:is|was|ist|lautet|est|es):?(?=[ \t]))"
    r"[ \t]{0,4}[\"'`]?"
)
_NAMED = re.compile(
    r"(?:(?:access|account|api|auth|client|encryption|master|private|secret|service|shared|signing"
    rf"|storage|subscription)[_ -]?key|secret|token){_IS}(?P<key>[A-Za-z0-9_/+=~-]{{16,}})"
    rf"|(?:passw(?:or)?[dt]|pwd|passphrase){_IS}"
    # Not a variable, nor a call; nor what follows in the query of an address.
    r"(?P<password>(?![$%])(?:[^\s\"'`<>(){}\[\],;|\\&]|&(?!\w+=)){8,64}+)(?![(\[{])"
    r"|\b(?:bearer|basic)[ \t]{1,4}(?P<bearer>[A-Za-z0-9_/+=.-]{16,})"
    # postgres://ann:PASSWORD@host
    r"|://[^\s/:@]{0,64}:(?P<login>(?![$%<{\[*])[^\s/:@]{4,64})@",
    re.IGNORECASE,
)

_WORD = re.compile(r"[A-Z]?[a-z]*|[A-Z]*|\d{1,4}")
_NUMBERED = re.compile(r"(?:[A-Z]?[a-z]*|[A-Z]*)\d{0,2}|\d{1,4}")
"""As words stand in a name: `model2`."""
_KEY_PART = 8
_WORDY_PART = 12
"""Fewest characters of a key that are neither words nor short numbers."""


def find_keys(text: str) -> Iterator[tuple[int, int]]:
    """Where keys and passwords stand."""
    for one in _KNOWN.finditer(text):
        if one["sure"] or _strange(one["wordy"]) >= _WORDY_PART:
            yield one.span()
    for one in _NAMED.finditer(text):
        name = one.lastgroup or ""
        value, start = one[name], one.start(name)
        if name == "password":
            value = value.rstrip(".:?")  # of the sentence that it ends
        if _FITS.get(name, _is_key)(value):
            yield start, start + len(value)


def _is_key(value: str) -> bool:
    return _mixed(value) and _strange(value) >= _KEY_PART


def _is_password(value: str) -> bool:
    """People make passwords of a word and a number; with dots and underscores it is a name."""
    word = _NUMBERED if re.search(r"[._]", value) else _WORD
    return len(value) >= 8 and _mixed(value) and _strange(value, word) > 0


_FITS: dict[str, Callable[[str], bool]] = {"password": _is_password, "login": bool}


def _mixed(value: str) -> bool:
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


def _strange(value: str, word: re.Pattern[str] = _NUMBERED) -> int:
    """How many characters stand in parts that are neither words nor short numbers."""
    parts = re.split(r"[^A-Za-z0-9]+", value)
    return sum(len(part) for part in parts if not word.fullmatch(part))
