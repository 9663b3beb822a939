"""What the report shows: whether answers are as wanted, and whether they still answer.

An answer is on topic if the frozen base model, shown the answer, finds the question it was given
for likelier than seven other questions of the same person, or than all there are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from instar.batch.render import ChatRenderer
from instar.demo.person import Person
from instar.errors import EngineError
from instar.train.step import TorchTrainer

_OTHERS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One look at a version, on prompts that were never trained on."""

    updates: int
    style: float
    on_topic: float
    words: float
    answers: tuple[str, ...]


class Reader:
    """The frozen base model as a judge of what an answer is about."""

    def __init__(self, trainer: TorchTrainer, renderer: ChatRenderer) -> None:
        self._trainer = trainer
        self._renderer = renderer
        self._alone: dict[str, float] = {}
        self._stopped = False

    def stop(self) -> None:
        """Let a measurement that runs in a thread end at its next answer."""
        self._stopped = True

    def measure(self, person: Person, answers: Sequence[tuple[str, str]], updates: int) -> Measured:
        return Measured(
            updates=updates,
            style=fmean(person.score(prompt, answer) for prompt, answer in answers),
            on_topic=fmean(self.on_topic(person, prompt, answer) for prompt, answer in answers),
            words=fmean(len(answer.split()) for _, answer in answers),
            answers=tuple(answer for _, answer in answers),
        )

    def on_topic(self, person: Person, prompt: str, answer: str) -> float:
        if self._stopped:
            raise EngineError("the measurement was stopped")
        every = [*person.kept, *person.asked]
        others = [one for one in every if one != prompt]
        chosen = random.Random(prompt).sample(others, min(_OTHERS, len(others)))
        questions = (prompt, *chosen)
        told = self._likelihoods(questions, answer[:400] or "...")
        untold = self._untold(questions)
        gains = [one - other for one, other in zip(told, untold, strict=True)]
        return float(gains[0] == max(gains))

    def _untold(self, questions: Sequence[str]) -> list[float]:
        """How likely the questions are for an answer that says nothing."""
        new = [one for one in questions if one not in self._alone]
        if new:
            self._alone |= dict(zip(new, self._likelihoods(new, "..."), strict=True))
        return [self._alone[one] for one in questions]

    def _likelihoods(self, questions: Sequence[str], answer: str) -> list[float]:
        asked = [{"role": "user", "content": f'Which question does this answer? "{answer}"'}]
        prompt = self._renderer.render(asked).ids
        pairs = [(prompt, self._renderer.encode(one)) for one in questions]
        return [sum(one) for one in self._trainer.each_logprobs(pairs, weights="base")]
