"""Words and shapes that tell how a next state was meant, in the languages people write in.

The frozen model reads English best. `data/lexicon.json` carries what it does not know: how
thanks, corrections and complaints about style are said in other languages, and what errors and
successes of tools look like. Each table becomes a count; the head learns what it is worth.

A fragment is a regular expression over lower-case text. In `words` it is bounded by word edges;
in `parts`, for scripts without spaces between words, and in `tools` it may stand anywhere.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
GROUPS = ("words", "parts", "tools")


@functools.cache
def patterns(group: str) -> dict[str, re.Pattern[str]]:
    """One compiled pattern a table of this group, by the table's name."""
    assert group in GROUPS
    tables: dict[str, list[str]] = _read("lexicon.json")[group]
    if group == "words":
        return {
            name: re.compile(rf"(?<!\w)(?:{'|'.join(fragments)})(?!\w)")
            for name, fragments in tables.items()
        }
    return {
        name: re.compile("|".join(fragments), re.MULTILINE) for name, fragments in tables.items()
    }


@functools.cache
def names(*groups: str) -> tuple[str, ...]:
    """The tables of these groups, each once."""
    return tuple(dict.fromkeys(name for group in groups for name in patterns(group)))


def count(text: str, name: str) -> int:
    """How often a table's words stand in a lower-case text."""
    return sum(
        sum(1 for _ in patterns(group)[name].finditer(text))
        for group in ("words", "parts")
        if name in patterns(group)
    )


def lowered(text: str) -> str:
    """As the patterns expect it."""
    return text.lower().replace("’", "'")


@functools.cache
def _read(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))
