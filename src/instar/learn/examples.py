"""Praised replies that a teacher is shown before it reads a request.

A small model does what it is shown better than what it is told. But what is shown is copied: of
the replies that pleased, those are taken that are about what was asked, or else a person who
praises a short "I'm not sure" would soon get nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.judge.next_state import message_text
from instar.record.redact import redact_text
from instar.train.reading import WeightsReader
from instar.types import Message, Turn

NEWEST = 32
"""Praised replies that are looked at: what pleases may change."""
_LONGEST = 1200
"""Characters of a request or a reply that are still worth the teacher's time."""
_NOTHING = "..."
"""A request that asks for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A request and the reply to it that pleased."""

    turn: str
    request: str
    reply: str


class Examples:
    """Chooses among praised turns; what the frozen base says of one is asked once."""

    def __init__(
        self,
        reader: WeightsReader,
        *,
        renderer: ChatRenderer,
        training: TrainingConfig,
        longest: int,
    ) -> None:
        """`longest` is how many tokens can be read."""
        self._reader = reader
        self._renderer = renderer
        self._training = training
        self._longest = longest
        self._known: dict[str, float] = {}

    def among(self, turns: Sequence[Turn]) -> list[Example]:
        """Those of the newest praised turns, oldest first, that are the most about their request.

        It takes the better half, and never one that its request does not make likelier.
        """
        found = {turn.id: turn for turn in turns}
        shown = [one for turn in found.values() if (one := example(turn, self._training))]
        shown = shown[-NEWEST:]
        for one in shown:
            if one.turn not in self._known:
                self._known[one.turn] = self._about(one, found[one.turn])
        self._known = about = {one.turn: self._known[one.turn] for one in shown}
        fitting = sorted((one for one in shown if about[one.turn] > 0), key=lambda o: about[o.turn])
        return fitting[-max(self._training.examples + 1, len(shown) // 2) :]

    def _about(self, one: Example, turn: Turn) -> float:
        """How much likelier the request makes the reply, in nats a token."""
        prompts = [
            self._renderer.render([{"role": "user", "content": text}]).ids
            for text in (one.request, _NOTHING)
        ]
        if max(map(len, prompts)) + len(turn.sampled_ids) > self._longest:
            return 0.0  # and so it is not shown
        asked, unasked = (
            self._reader.logprobs(prompt, turn.sampled_ids, weights="base") for prompt in prompts
        )
        return fmean(asked) - fmean(unasked)


def example(turn: Turn, training: TrainingConfig) -> Example | None:
    """What a turn shows; None where it did not please or is not fit to be shown."""
    if turn.verdict is None or turn.verdict.score <= 0 or turn.finish != "stop":
        return None
    if turn.kind != "main" or turn.no_train or turn.has_images or not turn.sampled_ids:
        return None
    if not turn.messages or turn.messages[-1]["role"] != "user" or turn.reply.get("tool_calls"):
        return None
    request, reply = message_text(turn.messages[-1]), message_text(turn.reply)
    if not request or not reply or max(len(request), len(reply)) > _LONGEST:
        return None
    # What the teacher reads, the policy learns.
    for text in (request, reply):
        if redact_text(text, training.redact, patterns=training.redact_patterns)[0] != text:
            return None
    return Example(turn=turn.id, request=request, reply=reply)


def messages_for(turn: Turn, examples: Sequence[Example], count: int) -> list[Message]:
    """Some examples as a talk before the turn's own, the same at every call; none if too few."""
    asked = message_text(turn.messages[-1]) if turn.messages else ""
    others = [one for one in examples if one.turn != turn.id and one.request != asked]
    if not count or len(others) < count:
        return []
    out: list[Message] = []
    for one in random.Random(turn.id).sample(others, count):
        out.append({"role": "user", "content": one.request})
        out.append({"role": "assistant", "content": one.reply})
    return out
