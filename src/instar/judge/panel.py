"""Votes to verdicts: asks one judge several times and says what they agree on.

A vote is +1, 0, -1 or None (invalid). A tie, too little agreement or no valid vote is *no
verdict*, never 0. A judge that fails or takes too long gives no verdict either; `Opinion.failed`
tells that apart from one that was asked and could not decide, so that a worker asks again later.

    judge = make_judge(config, folder=lambda: embedded_model(home), home=home)
    verdict, hint = await judge.judge(turn)
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast

from instar.config import Config, CustomJudge, LlmJudge, ProbeJudge
from instar.errors import InstarError
from instar.judge.hints import Hinter, WordHinter
from instar.judge.next_state import Case, case_of
from instar.types import Hint, Turn, Verdict

log = logging.getLogger(__name__)

Label = Literal[-1, 0, 1]
HANDOVER_S = 0.5
"""What a judge that keeps the time itself gets, after it, to hand over the votes that came."""


class Voter(Protocol):
    """One kind of judge: says what it thinks of a case, up to `count` times."""

    async def votes(self, case: Case, count: int) -> Sequence[int | None]:
        """At least one vote. Raises if nobody could be asked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What a panel says of one case."""

    label: Label | None
    votes: tuple[int | None, ...] = ()
    hints: tuple[str, ...] = ()
    """Ways to say what should have been different, the best first; the trainer chooses."""
    failed: bool = False
    """Nobody could be asked; that says nothing about the turn."""
    problem: str | None = None
    """Why, where it failed."""

    @property
    def hint(self) -> str | None:
        return self.hints[0] if self.hints else None

    def outcome(self) -> tuple[Verdict | None, Hint | None]:
        """As it is recorded: without a label there is neither."""
        if self.label is None:
            return None, None
        ways = self.hints if len(self.hints) > 1 else ()
        hint = Hint(text=self.hint, ways=ways) if self.hint else None
        return Verdict(score=self.label, votes=self.votes), hint


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelJudge:
    """Satisfies `protocols.Judge` over any kind of voter."""

    voter: Voter
    hinter: Hinter
    count: int = 1
    threshold: float = 0.5
    aggregation: Literal["majority", "mean"] = "majority"
    timeout_s: float = 60.0

    async def judge(self, turn: Turn) -> tuple[Verdict | None, Hint | None]:
        opinion = await self.opinion(turn)
        return (None, None) if opinion is None else opinion.outcome()

    async def opinion(self, turn: Turn) -> Opinion | None:
        """What `judge` says, with its reasons; None where nothing followed the turn."""
        case = case_of(turn)
        return None if case is None else await self.consider(case)

    async def consider(self, case: Case) -> Opinion:
        """Ask, count, and look for a hint. Never raises: a failed judge is no verdict."""
        try:
            async with asyncio.timeout(self.timeout_s + HANDOVER_S):
                votes = tuple(await self.voter.votes(case, self.count))
        except Exception as error:  # any judge may be somebody else's code
            problem = _told(error)
            log.warning("No verdict: %s", problem)
            return Opinion(label=None, votes=(None,) * self.count, failed=True, problem=problem)
        mean = self.aggregation == "mean"
        label = nearest(votes) if mean else tally(votes, threshold=self.threshold)
        return Opinion(label=label, votes=votes, hints=await self._hints(case, label))

    async def _hints(self, case: Case, label: Label | None) -> tuple[str, ...]:
        if label != -1:
            return ()  # only what went wrong can say what should have been different
        try:
            async with asyncio.timeout(self.timeout_s + HANDOVER_S):
                return tuple(await self.hinter.hints(case, self.count))
        except Exception as error:
            log.warning("No hint: %s", _told(error))
            return ()


def _told(error: Exception) -> str:
    """What failed, with its kind where the words are somebody else's: a KeyError's are a name."""
    kind, text = type(error).__name__, str(error)
    return text if isinstance(error, InstarError) else f"{kind}: {text}" if text else kind


def nearest(votes: Sequence[int | None]) -> Label | None:
    """The label nearest to the mean of the valid votes; half-way between two there is none."""
    valid = [vote for vote in votes if vote in (-1, 0, 1)]
    if not valid or 2 * abs(sum(valid)) == len(valid):
        return None
    return cast(Label, round(sum(valid) / len(valid)))


def tally(votes: Sequence[int | None], *, threshold: float = 0.5) -> Label | None:
    """The label that at least `threshold` of the valid votes share, if one leads alone; of 0.5 it
    takes more, for half is no majority."""
    valid = [vote for vote in votes if vote in (-1, 0, 1)]
    if not valid:
        return None
    (first, most), *others = Counter(valid).most_common()
    if others and others[0][1] == most:
        return None
    share = most / len(valid)
    enough = share > threshold if threshold == 0.5 else share >= threshold
    return cast(Label, first) if enough else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a judge may need to come to life."""

    config: Config
    folder: Callable[[], Path]
    """The embedded model's folder, unpacked when it is asked for."""
    home: Path | None = None
    """Where a retrained head and people's calibrations are looked for."""


def make_judge(
    config: Config, *, folder: Callable[[], Path], home: Path | None = None
) -> PanelJudge:
    """The judge that `evaluation.judge` asks for. Raises ConfigError if it cannot be made."""
    evaluation = config.evaluation
    setup = Setup(config=config, folder=folder, home=home)
    voter, hinter = JUDGES[evaluation.judge.type](setup)
    return PanelJudge(
        voter=voter,
        hinter=hinter,
        count=evaluation.num_judges if evaluation.majority_voting else 1,
        threshold=evaluation.consensus_threshold,
        aggregation=config.rollout_config.reward_computation.aggregation,
        timeout_s=evaluation.judge.timeout_s,
    )


def _probe(setup: Setup) -> tuple[Voter, Hinter]:
    from instar.judge.probe import load_probe

    settings = cast(ProbeJudge, setup.config.evaluation.judge)
    probe = load_probe(settings, folder=setup.folder, home=setup.home)
    return probe, WordHinter()


def _llm(setup: Setup) -> tuple[Voter, Hinter]:
    from instar.judge.llm import LlmHinter, LlmVoter, open_endpoint

    config = setup.config
    settings = cast(LlmJudge, config.evaluation.judge)
    model = settings.model or config.evaluation.judge_model
    endpoint = open_endpoint(settings, model=model)
    hints = open_endpoint(settings, model=config.training.hint_extraction_model or model)
    limit = settings.timeout_s
    return LlmVoter(endpoint=endpoint, timeout_s=limit), LlmHinter(endpoint=hints, timeout_s=limit)


def _rules(setup: Setup) -> tuple[Voter, Hinter]:
    from instar.judge.rules import RuleVoter

    return RuleVoter(), WordHinter()


def _custom(setup: Setup) -> tuple[Voter, Hinter]:
    from instar.judge.custom import load_custom

    return load_custom(cast(CustomJudge, setup.config.evaluation.judge)), WordHinter()


JUDGES: dict[str, Callable[[Setup], tuple[Voter, Hinter]]] = {
    "probe": _probe,
    "llm": _llm,
    "rules": _rules,
    "custom": _custom,
}
