"""From judged turns in the store to one Batch: hinted prompts, redaction, credit, merging."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from instar.batch.credit import Credit, CreditSettings, Judged, credit
from instar.batch.merge import merge
from instar.batch.pack import pack
from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.judge.hints import teacher_system
from instar.judge.standing import standing_wishes, with_standing
from instar.learn.examples import Example, messages_for
from instar.record.redact import redact_text, redacted_tokens
from instar.types import Batch, Message, Turn

_MUCH = 0.25
"""Share of corrected replies from which on a batch gets all its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A batch, and which turns it used up: those without anything to learn from, too."""

    batch: Batch
    turns: tuple[str, ...]
    trained: tuple[Turn, ...] = ()
    """Those with something to learn from."""


def with_hint(messages: Sequence[Message], hint: str) -> tuple[list[Message], int]:
    """The history with a hint in its system message, and by how much positions moved."""
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        content = first.get("content") or ""
        if isinstance(content, list):
            content = "\n".join(part.get("text", "") for part in content)
        return [{**first, "content": teacher_system(hint, content)}, *messages[1:]], 0
    return [{"role": "system", "content": teacher_system(hint)}, *messages], 1


def hinted_prompt(
    turn: Turn,
    renderer: ChatRenderer,
    known: Mapping[str, Turn],
    *,
    training: TrainingConfig,
    standing: str | None = None,
    examples: Sequence[Example] = (),
) -> tuple[int, ...] | None:
    """The turn's prompt as the teacher reads it, or None where there is no hint.

    `standing` is what the person keeps asking for. It is the hint for a reply that was praised:
    without a teacher there, verdicts alone would go on pulling at replies that are as wanted,
    until nothing is left of them but that. Elsewhere it goes with what was said of the reply.
    Some of the `examples` come between the hint and the history.
    """
    praised = turn.verdict is not None and turn.verdict.score > 0
    # A person who praises what a judge took for corrected is right: no hint of that turn then.
    hint = standing
    if not praised:
        hint = None if turn.hint is None else with_standing(turn.hint.text, standing)
    if hint is None:
        return None
    # What the teacher reads, the policy learns: an address in a hint would be learned with it.
    hint, _ = redact_text(hint, training.redact, patterns=training.redact_patterns)
    messages, moved = with_hint(turn.messages, hint)
    shown = messages_for(turn, examples, training.examples)
    messages, moved = [messages[0], *shown, *messages[1:]], moved + len(shown)
    replies = {at + moved: known[name] for at, name in turn.replies if name in known}
    return renderer.render(messages, tools=turn.tools, replies=replies).ids


def standing_hint(turns: Sequence[Turn]) -> str | None:
    """What a person keeps asking for in these turns, oldest first."""
    return standing_wishes([turn.hint.text for turn in turns if turn.hint is not None])


def teaches(one: Judged) -> bool:
    """Whether there is something to learn from a turn, be it praise, blame or a hint."""
    verdict = one.turn.verdict
    return one.hinted_ids is not None or (verdict is not None and verdict.score != 0)


def settings_of(training: TrainingConfig) -> CreditSettings:
    return CreditSettings(
        gamma=training.gamma,
        gae_lambda=training.gae_lambda,
        advantage=training.advantage,
        binary_weight=training.binary_weight,
        opd_weight=training.opd_weight,
        step_weight=training.step_weight,
        group_scale=training.group_scale,
        opd=training.opd,
        opd_clip=training.opd_clip,
        truncated=training.truncated,
        max_age=training.max_staleness,
    )


def prepare(
    judged: Sequence[Judged],
    *,
    training: TrainingConfig,
    renderer: ChatRenderer,
    version: str,
    at_least: int,
    max_tokens: int,
    pass_tokens: int | None = None,
    all_of_it: bool = False,
    merged: bool = True,
) -> Prepared | None:
    """A batch of `batch_size` turns with credit, or of those there are if at least `at_least`.

    A session longer than `max_tokens` is cut; `pass_tokens` is how many are read side by side.
    `all_of_it` takes every turn, as groups must be; without `merged` no two share a sequence.
    """
    credited = credit(judged, training.method, settings_of(training))
    size = len(credited.turns) if all_of_it else training.batch_size
    chosen = credited.turns[:size]
    if len(chosen) < max(1, at_least):
        return None
    last = chosen[-1][0].turn.id if len(chosen) == size and not all_of_it else None
    used = _up_to(judged, last)
    counts: Counter[str] = Counter(credited.counts)
    kept = tuple(
        (one, _redacted(one, earned, training, renderer, counts)) for one, earned in chosen
    )
    parts = [merge(part, max_tokens=max_tokens) for part in ([kept] if merged else zip(kept))]
    samples = pack(
        tuple(sample for part in parts for sample in part.samples),
        max_tokens=min(max_tokens, pass_tokens or max_tokens),
        parts=training.gradient_accumulation_steps,
    )
    counts["cuts"] = sum(part.cuts for part in parts)
    counts["too_long"] = sum(len(part.too_long) for part in parts)
    batch = Batch(samples=samples, version=version, rewards=credited.rewards, counts=dict(counts))
    trained = tuple(one.turn for one, _ in chosen)
    return Prepared(batch=batch, turns=used, trained=trained) if batch.turns else None


def steps_for(trained: Sequence[Turn], training: TrainingConfig) -> int:
    """Fewer steps where less was corrected.

    An optimiser's step is as long for a batch that has little to teach as for any other. Where
    nearly all replies pleased, more of them only lead away from what pleased.
    """
    told = [turn.verdict.score for turn in trained if turn.verdict and turn.verdict.score]
    if not told or any(turn.group is not None for turn in trained):
        return training.steps_per_batch
    corrected = sum(score < 0 for score in told) / len(told)
    return max(1, math.ceil(training.steps_per_batch * min(1.0, corrected / _MUCH)))


def _up_to(judged: Sequence[Judged], last: str | None) -> tuple[str, ...]:
    names = [one.turn.id for one in judged]
    return tuple(names if last is None else names[: names.index(last) + 1])


def _redacted(
    one: Judged,
    earned: Credit,
    training: TrainingConfig,
    renderer: ChatRenderer,
    counts: Counter[str],
) -> Credit:
    """The credit without that of tokens that spell something private."""
    found = redacted_tokens(
        one.turn.sampled_ids,
        renderer.tokenizer,
        training.redact,
        patterns=training.redact_patterns,
    )
    if not found.tokens:
        return earned
    counts.update({f"redacted_{kind}": count for kind, count in found.counts.items()})
    hidden = set(found.tokens)

    def without(stream: Sequence[float]) -> tuple[float, ...]:
        return tuple(0.0 if at in hidden else value for at, value in enumerate(stream))

    return replace(
        earned,
        advantages=without(earned.advantages),
        distill_weights=without(earned.distill_weights),
    )
