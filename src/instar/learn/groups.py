"""From attempts at tasks to turns with what they earned, and what the gate wants to know."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from statistics import fmean

from instar.batch.credit import CreditSettings, Judged, binary
from instar.config import TrainingConfig
from instar.ids import share_of
from instar.publish.gate import Tried
from instar.record.attempts import AttemptBook
from instar.train.step import TorchTrainer
from instar.types import Attempt, Turn

TurnsOf = Callable[[str, str], Awaitable[list[Turn]]]
"""(owner, session): its turns."""

HELD_OUT = "held_out"
"""What becomes of attempts at tasks that are never trained on."""


def is_held_out(group: Sequence[Attempt], share: float) -> bool:
    """By the task: a task that is held out is so in every run."""
    return share_of(f"{group[0].environment}/{group[0].task}") < share


async def ready_groups(
    attempts: AttemptBook,
    owner: str,
    *,
    wanted: int,
    training: TrainingConfig,
    passed: Collection[str] = (),
) -> list[list[Attempt]] | None:
    """Groups for one update; those at held-out tasks are put aside for the gate.

    Those named in `passed` are left where they are.
    """
    limit = 4 * wanted + len(passed)
    found = await attempts.groups(owner, limit=limit, judged=training.step_weight > 0)
    found = [group for group in found if group[0].group not in passed]
    kept = [group[0].group for group in found if is_held_out(group, training.holdout_share)]
    if kept:
        await attempts.set_used(owner, kept, HELD_OUT)
    ready: list[list[Attempt]] = []
    for group in found:
        if group[0].group not in kept and sum(map(len, ready)) < wanted:
            ready.append(group)
    if not ready:
        return None
    oldest = min(one.created for group in ready for one in group)
    late = time.time() - oldest >= training.max_wait_s
    # A round is as many whole groups as fit into it; those put aside were part of it.
    aside = await attempts.held_since(owner, HELD_OUT)
    enough = sum(map(len, ready)) + aside > wanted - len(ready[0])
    return ready if late or enough else None


async def judged_groups(
    owner: str,
    groups: Sequence[Sequence[Attempt]],
    *,
    turns_of: TurnsOf,
    ages: Mapping[str, int],
) -> list[Judged]:
    """The turns of attempts that count: what the environment spoiled is in no loss or mean."""
    found = []
    for group in groups:
        for attempt in group:
            if attempt.reward is None:
                continue
            known = {turn.id: turn for turn in await turns_of(owner, attempt.session)}
            turns = [known[name] for name in attempt.turns if name in known]
            found += [
                with_outcome(turn, attempt, age=ages.get(own_version(turn), 0)) for turn in turns
            ]
    return found


def own_version(turn: Turn) -> str:
    """The owner's name of the version, without the owner's."""
    return turn.version.rpartition("/")[2]


def with_outcome(turn: Turn, attempt: Attempt, *, age: int = 0) -> Judged:
    return Judged(
        turn=turn, group=attempt.group, attempt=attempt.session, reward=attempt.reward, age=age
    )


def tried(
    trainer: TorchTrainer,
    judged: Sequence[Judged],
    *,
    longest: int,
) -> list[Tried]:
    """How likely the trained weights make turns of held-out attempts, by what those earned.

    Turns longer than `longest` are left out.
    """
    worth = binary(judged, CreditSettings())
    told = [
        (one, worth[one.turn.id])
        for one in judged
        if one.turn.id in worth
        and any(worth[one.turn.id].advantages)
        and len(one.turn.ids) <= longest
    ]
    each = trainer.each_logprobs([(one.turn.prompt_ids, one.turn.sampled_ids) for one, _ in told])
    return [
        Tried(
            turn=one.turn.id,
            group=one.group or "",
            advantage=credit.advantages[0],
            reply_logprob=fmean(found),
        )
        for (one, credit), found in zip(told, each, strict=True)
    ]
