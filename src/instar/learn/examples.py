"""Replies that a teacher is shown before it reads a request: such as pleased, or such as obey.

A small model does what it is shown better than what it is told. But what is shown is copied, each
oddity of it too: so of the replies that pleased, those are taken that are about what was asked, or
else a person who praises a short "I'm not sure" would soon get nothing else, and that are likely as
they stand. A person may be pleased with more than they wished for, so the last one has the form
that is wished. As long as there are few to choose from, what obeys is shown in their place.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.judge.demonstrations import Demonstration, as_ordered, demonstrations
from instar.judge.next_state import message_text
from instar.record.redact import redact_text
from instar.train.reading import Pair, WeightsReader
from instar.types import Message, Turn

NEWEST = 32
"""Praised replies that are looked at: what pleases may change."""
_LONGEST = 1200
"""Characters of a request or a reply that are still worth the teacher's time."""
_NOTHING = "..."
"""A request that asks for nothing."""
_CHOICE = 2
"""Replies of the wished form that are enough to choose from."""


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
        self._known: dict[str, Seen] = {}

    def among(self, turns: Sequence[Turn]) -> list[Example]:
        """The newest praised turns, the best one last, and none while there is no choice.

        Never is it one that its request does not make likelier.
        """
        found = {turn.id: turn for turn in turns}
        shown = [one for turn in found.values() if (one := example(turn, self._training))]
        shown = shown[-NEWEST:]
        new = [one for one in shown if one.turn not in self._known]
        self._known |= self._read({one: found[one.turn] for one in new})
        self._known = seen = {one.turn: self._known[one.turn] for one in shown}
        if len(shown) // 2 <= self._training.examples:
            return []
        fitting = [one for one in shown if seen[one.turn].about > 0]
        return sorted(fitting, key=lambda one: seen[one.turn].worth)

    def _read(self, new: Mapping[Example, Turn]) -> dict[str, Seen]:
        """What the base says of each; what is too long is about nothing, and so is not shown."""
        seen = {one.turn: Seen(about=0.0, likely=0.0) for one in new}
        read: list[str] = []
        pairs: list[Pair] = []
        for one, turn in new.items():
            prompts = [
                self._renderer.render([{"role": "user", "content": text}]).ids
                for text in (one.request, _NOTHING)
            ]
            if max(map(len, prompts)) + len(turn.sampled_ids) <= self._longest:
                read.append(one.turn)
                pairs += [(ids, turn.sampled_ids) for ids in prompts]
        each = [fmean(one) for one in self._reader.each_logprobs(pairs, weights="base")]
        for name, asked, unasked in zip(read, each[::2], each[1::2], strict=True):
            seen[name] = Seen(about=asked - unasked, likely=asked)
        return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the base says of a praised reply, in nats a token."""

    about: float
    """How much likelier its request makes it."""
    likely: float
    """How likely it is after its request: what is broken is not."""

    @property
    def worth(self) -> float:
        return self.about + self.likely


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


def talk_before(
    turn: Turn, examples: Sequence[Example], *, wishes: str, count: int
) -> list[Message]:
    """So many replies that a teacher is shown, as a talk; the same ones at every call.

    Replies that pleased say what it is about, and the last has the very form that is wished: it
    is one of them if there is a choice, else one that obeys. Until enough have pleased all obey.
    """
    asked = message_text(turn.messages[-1]) if turn.messages else ""
    others = [one for one in examples if one.turn != turn.id and one.request != asked]
    obeying = demonstrations(wishes, count=count, seed=turn.id)
    alike = [one for one in others if as_ordered(one.reply, wishes, roughly=True)]
    if len(alike) < count:
        alike = [] if obeying else others
    if not count or len(alike) < count:
        return _talk(obeying)
    chance = random.Random(turn.id)
    formed = [one for one in alike if as_ordered(one.reply, wishes)]
    if len(formed) >= _CHOICE or not obeying:
        last: Example | Demonstration = chance.choice(_better(formed or alike))
    else:
        last = obeying[0]
    left = [one for one in _better(alike) if one is not last]
    if len(left) < count - 1:
        left = [one for one in alike if one is not last]
    return _talk([*chance.sample(left, count - 1), last])


def _better(ranked: Sequence[Example]) -> Sequence[Example]:
    return ranked[len(ranked) // 2 :]


def _talk(shown: Sequence[Example | Demonstration]) -> list[Message]:
    out: list[Message] = []
    for one in shown:
        out.append({"role": "user", "content": one.request})
        out.append({"role": "assistant", "content": one.reply})
    return out
