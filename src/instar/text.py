"""Sampled ids to text, a few tokens at a time, and the search for stop strings in it.

Used on both sides of the engine's wall: the gateway streams text to clients, an engine ends
a reply where a stop string is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import DecodeStream
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel


class TextDecoder:
    """Decodes one reply as it grows; a character split over tokens waits for its last one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []
        self._emitted = 0

    def push(self, ids: Sequence[int]) -> str:
        self._ids.extend(ids)
        step = self._stream.step
        text = "".join(part for i in ids if (part := step(self._tokenizer, i)) is not None)
        self._emitted += len(text)
        return text

    def flush(self) -> str:
        """What is still held back: an incomplete character, shown as U+FFFD."""
        whole: str = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        rest, self._emitted = whole[self._emitted :], len(whole)
        return rest


class StopScanner:
    """Passes text on until one of the stop strings is complete, and holds back its beginning.

    Example: with stop "END", pushing "the E" gives "the " and pushing "ND of" gives "" and
    sets `hit`.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> str:
        if self.hit is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            # The one that is complete first, however the text was cut into pieces.
            at, self.hit = min(found, key=lambda pair: (pair[0] + len(pair[1]), pair[0]))
            out, self._held = self._held[:at], ""
            return out
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out

    def flush(self) -> str:
        out, self._held = self._held, ""
        return out


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` may be the beginning of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


def byte_tokenizer(special: Sequence[str] = ("<|im_start|>", "<|im_end|>")) -> Tokenizer:
    """A tokenizer with one token a byte, for engines without a model and for tests."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    return tokenizer


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes of one token, also where they are only a part of a character."""
    text: str = tokenizer.decode([token], skip_special_tokens=False)
    if "\ufffd" not in text:
        return text.encode()
    named = tokenizer.id_to_token(token) or ""
    table = _byte_table()
    return bytes(table[char] for char in named) if set(named) <= table.keys() else text.encode()


@cache
def _byte_table() -> dict[str, int]:
    """How byte-level tokenizers write a byte: printable ones as themselves, others shifted."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(shifted)}
