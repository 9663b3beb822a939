"""Of several ways to say a hint, the one that a teacher follows best.

How well a small model follows an order hangs on how it is put, and on the order. What can be seen
without drawing a reply is how far the teacher's distribution moves on replies that were given: a
wording that moves it little is not followed. One that makes the words of the request less likely
moves it away from what was asked; such a wording is not taken, however far it moves.

Between wordings that move it about as far this says little, and plain orders, which come first, are
obeyed more often; so another one must lead by much (`benchmarks/hints.py` has the figures).
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.judge.next_state import message_text
from instar.learn.batches import hinted_prompt
from instar.train.reading import WeightsReader
from instar.types import Turn

REPLIES = 2
"""Replies on which the ways are compared: the corrected one and another."""
_ASTRAY = 0.2
"""Nats a token that a hint may take from the words of the request."""
_LEAD = 1.5
"""How much further than the first way another one must move the teacher."""
_WORD = re.compile(r"[^\W\d_]{4,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What one way of saying a hint does to the teacher, a mean over replies."""

    moved: float
    """The KL divergence a token from the teacher without it."""
    astray: float
    """By how much it makes the words of the request less likely, in nats a token."""


class Wordings:
    """Chooses once for each set of ways: people say the same things again."""

    def __init__(
        self,
        reader: WeightsReader,
        *,
        renderer: ChatRenderer,
        training: TrainingConfig,
        longest: int,
    ) -> None:
        self._reader = reader
        self._renderer = renderer
        self._training = training
        self._longest = longest
        self._chosen: dict[tuple[str, ...], str] = {}

    def choose(self, turns: Sequence[Turn], known: Mapping[str, Turn]) -> list[Turn]:
        """The turns, their hints said in the best way."""
        return [self._choose(turn, turns, known) for turn in turns]

    def _choose(self, turn: Turn, turns: Sequence[Turn], known: Mapping[str, Turn]) -> Turn:
        if turn.hint is None or len(turn.hint.ways) < 2:
            return turn
        ways = turn.hint.ways
        if ways not in self._chosen:
            others = [one for one in turns if one.id != turn.id and one.hint is not None]
            found = self.compared(ways, [turn, *others][:REPLIES], known)
            self._chosen[ways] = best(ways, found)
        return replace(turn, hint=replace(turn.hint, ways=(self._chosen[ways],)))

    def compared(
        self, ways: Sequence[str], turns: Sequence[Turn], known: Mapping[str, Turn]
    ) -> list[Followed]:
        """What each way does, a mean over these turns; empty where none of them can be read."""
        each = [one for turn in turns if (one := self._on(turn, ways, known))]
        return [
            Followed(moved=fmean(one.moved for one in way), astray=fmean(one.astray for one in way))
            for way in zip(*each, strict=True)
        ]

    def _on(
        self, turn: Turn, ways: Sequence[str], known: Mapping[str, Turn]
    ) -> list[Followed] | None:
        """What each way does on one reply; None where one of them does not fit."""
        told = [self._hinted(turn, way, known) for way in ways]
        prompts = [ids for ids in told if ids is not None]
        if len(prompts) < len(ways) or not turn.sampled_ids:
            return None
        about = asked_for(turn, self._renderer)
        found = self._reader.moved(turn.prompt_ids, turn.sampled_ids, prompts)
        return [
            Followed(moved=one.kl, astray=-fmean(one.gains[at] for at in about) if about else 0.0)
            for one in found
        ]

    def _hinted(self, turn: Turn, way: str, known: Mapping[str, Turn]) -> tuple[int, ...] | None:
        assert turn.hint is not None
        told = replace(turn, verdict=None, hint=replace(turn.hint, text=way, ways=()))
        return hinted_prompt(
            told, self._renderer, known, training=self._training, longest=self._longest
        )


def best(ways: Sequence[str], found: Sequence[Followed]) -> str:
    """The first way, unless it leads the teacher astray or another moves it much further."""
    fine = [pair for pair in zip(found, ways, strict=False) if pair[0].astray <= _ASTRAY]
    if not fine:
        return ways[0]
    furthest, way = max(fine, key=lambda pair: pair[0].moved)
    leads = furthest.moved >= _LEAD * found[0].moved
    return way if leads or found[0].astray > _ASTRAY else ways[0]


def asked_for(turn: Turn, renderer: ChatRenderer) -> list[int]:
    """Which of the reply's tokens belong to words of the request."""
    asked = [message_text(one) for one in turn.messages if one["role"] == "user"]
    words = set(_WORD.findall(asked[-1].lower())) if asked else set()
    decode = getincrementaldecoder("utf-8")("replace").decode
    text, ends = "", [0]
    for token in turn.sampled_ids:
        text += decode(renderer.token_bytes(token))
        ends.append(len(text))
    spans = [one.span() for one in _WORD.finditer(text) if one[0].lower() in words]
    return [
        at
        for at, (start, end) in enumerate(pairwise(ends))
        if any(start < last and first < end for first, last in spans)
    ]
