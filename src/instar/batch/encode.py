"""Template text to ids, each stretch of it tokenised once.

A template puts special tokens around what a person wrote. Theirs are broken up before (`guard`),
so that only the template's become tokens of that kind.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

# One text comes at a time: to hand it to a pool of threads takes longer than it gains.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Noncharacters: they are valid UTF-8, yet no text of a person contains them.
_GUARD = "\ufdd0"
_RESERVED = re.compile("[\ufdd0-\ufdd3]")
"""With those that `marks` uses."""


class TextEncoder:
    """Ids of text, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, *, cache_chars: int) -> None:
        self._tokenizer = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True
        added = tokenizer.get_added_tokens_decoder()
        self._special = {token.content: i for i, token in added.items() if token.special}
        self._split = _alternatives(self._special)
        self._cache = _TextCache(cache_chars)
        self.splits = True
        """Text is cut at special tokens; else all of it is tokenised every time."""

    def settle(self, text: str) -> None:
        """Split only if, for a text like this, that gives what tokenising the whole gives."""
        whole = self._tokenizer.encode(text, add_special_tokens=False).ids
        self.splits = tuple(whole) == self._encode_split(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of template text. What a person wrote never becomes a special token."""
        if self.splits:
            return self._encode_split(text)
        return _ids(self._tokenizer, text.replace(_GUARD, ""))

    def guard(self, text: str) -> str:
        """Break up special tokens in a person's text, so that they stay text."""
        if _RESERVED.search(text):
            text = _RESERVED.sub("\ufffd", text)
        if self._split is None:
            return text
        return self._split.sub(lambda hit: hit[0][0] + _GUARD + hit[0][1:], text)

    def guard_all(self, value: Any) -> Any:
        """The same for every text within a value."""
        if isinstance(value, str):
            return self.guard(value)
        if isinstance(value, dict):
            return {self.guard(name): self.guard_all(one) for name, one in value.items()}
        return [self.guard_all(one) for one in value] if isinstance(value, list) else value

    def _encode_split(self, text: str) -> tuple[int, ...]:
        out: list[int] = []
        for part in self._split.split(text) if self._split else [text]:
            special = self._special.get(part)
            if special is not None:
                out.append(special)
            elif part:
                out.extend(self._encode_part(part))
        return tuple(out)

    def _encode_part(self, part: str) -> tuple[int, ...]:
        found = self._cache.get(part)
        if found is None:
            found = _ids(self._plain, part.replace(_GUARD, ""))
            self._cache.put(part, found)
        return found


class _TextCache:
    """Least recently used ids of texts, bounded by the texts' length."""

    def __init__(self, chars: int) -> None:
        self._limit, self._size = chars, 0
        self._entries: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        # Long histories are rendered in threads.
        self._lock = threading.Lock()

    def get(self, text: str) -> tuple[int, ...] | None:
        with self._lock:
            found = self._entries.get(text)
            if found is not None:
                self._entries.move_to_end(text)
            return found

    def put(self, text: str, ids: tuple[int, ...]) -> None:
        with self._lock:
            if text not in self._entries:
                self._size += len(text)
            self._entries[text] = ids
            while self._size > self._limit:
                old, _ = self._entries.popitem(last=False)
                self._size -= len(old)


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    # Of all ways to ask, the quickest; unlike `encode` it lets other threads run meanwhile.
    (found,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return tuple(found.ids)


def _alternatives(special: Mapping[str, int]) -> re.Pattern[str] | None:
    if not special:
        return None
    longest_first = sorted(special, key=len, reverse=True)
    return re.compile("(" + "|".join(re.escape(text) for text in longest_first) + ")")
