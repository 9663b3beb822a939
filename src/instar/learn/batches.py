"""From judged turns in the store to one Batch: hinted prompts, redaction, credit, merging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from instar.batch.credit import Credit, Credited, CreditSettings, Judged
from instar.batch.merge import merge
from instar.batch.pack import pack
from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.judge.hints import teacher_system
from instar.judge.standing import standing_wishes, with_standing
from instar.learn.examples import Example, talk_before
from instar.record.redact import redact_text, redacted_tokens
from instar.types import Batch, Message, Turn

_MUCH = 0.25
"""Share of corrected replies from which on a batch gets all its steps."""
_LEAST = 0.25
"""How much of a step is made on a batch in which nothing was corrected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A batch, and which turns it uses up: they wait no longer."""

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


def hint_for(turn: Turn, standing: str | None) -> str | None:
    """What the teacher of a turn is told; None where there is nothing to tell.

    `standing` is what the person keeps asking for. It is the hint for a reply that was praised:
    without a teacher there, verdicts alone would go on pulling at replies that are as wanted,
    until nothing is left of them but that. Elsewhere it goes with what was said of the reply.
    """
    # A person who praises what a judge took for corrected is right: no hint of that turn then.
    if turn.verdict is not None and turn.verdict.score > 0:
        return standing
    if turn.hint is None:
        return None
    # Wishes are known by their plain words, however the teacher is told them.
    more = with_standing(turn.hint.text, standing).removeprefix(turn.hint.text)
    return turn.hint.told + more


def wishes_for(turn: Turn, standing: str | None) -> str:
    """The same in plain words."""
    praised = turn.verdict is not None and turn.verdict.score > 0
    if praised or turn.hint is None:
        return standing or ""
    return with_standing(turn.hint.text, standing)


def hinted_prompt(
    turn: Turn,
    renderer: ChatRenderer,
    known: Mapping[str, Turn],
    *,
    training: TrainingConfig,
    longest: int,
    standing: str | None = None,
    examples: Sequence[Example] | None = None,
) -> tuple[int, ...] | None:
    """The turn's prompt as the teacher reads it, or None where there is no hint.

    Between the hint and the history comes what shows it obeyed, and some of the `examples`;
    None shows nothing. With the reply it has at most
    `longest` tokens: the examples stay out where they do not fit, and where the hint alone does
    not, there is no teacher.
    """
    hint = hint_for(turn, standing)
    if hint is None:
        return None
    # What the teacher reads, the policy learns: an address in a hint would be learned with it.
    hint, _ = redact_text(hint, training.redact, patterns=training.redact_patterns)
    shown: list[Message] = []
    if examples is not None:
        wishes = wishes_for(turn, standing)
        shown = talk_before(turn, examples, wishes=wishes, count=training.examples)
    for between in (shown, []) if shown else ([],):
        messages, moved = with_hint(turn.messages, hint)
        messages, moved = [messages[0], *between, *messages[1:]], moved + len(between)
        replies = {at + moved: known[name] for at, name in turn.replies if name in known}
        ids = renderer.render(messages, tools=turn.tools, replies=replies).ids
        if len(ids) + len(turn.sampled_ids) <= longest:
            return ids
    return None


def standing_hint(turns: Sequence[Turn]) -> str | None:
    """What a person keeps asking for in these turns, oldest first."""
    return standing_wishes([turn.hint.text for turn in turns if turn.hint is not None])


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
        loop_tokens=training.loop_tokens,
        truncated=training.truncated,
        max_age=training.max_staleness,
    )


def prepare(
    credited: Credited,
    *,
    training: TrainingConfig,
    renderer: ChatRenderer,
    version: str,
    max_tokens: int,
    longest: int | None = None,
    pass_tokens: int | None = None,
    all_of_it: bool = False,
    merged: bool = True,
) -> Prepared | None:
    """A batch of the first `batch_size` turns with credit; None where nothing can be read.

    A session longer than `max_tokens` is cut, a turn longer than `longest` left out; `pass_tokens`
    is how many are read side by side. `all_of_it` takes every turn, as groups must be, and uses up
    those without credit too; without `merged` no two share a sequence.
    """
    chosen = credited.turns if all_of_it else credited.turns[: training.batch_size]
    counts: Counter[str] = Counter(credited.counts)
    kept = tuple(
        (one, _redacted(one, earned, training, renderer, counts)) for one, earned in chosen
    )
    parts = [
        merge(part, max_tokens=max_tokens, longest=longest)
        for part in ([kept] if merged else zip(kept))
    ]
    samples = pack(
        tuple(sample for part in parts for sample in part.samples),
        max_tokens=min(max_tokens, pass_tokens or max_tokens),
        parts=training.gradient_accumulation_steps,
    )
    counts["cuts"] = sum(part.cuts for part in parts)
    counts["too_long"] = sum(len(part.too_long) for part in parts)
    counts["teacher_too_long"] += sum(one.unread for one, _ in chosen)
    batch = Batch(samples=samples, version=version, rewards=credited.rewards, counts=dict(counts))
    trained = tuple(one.turn for one, _ in chosen)
    used = [turn.id for turn in trained] + (list(credited.silent) if all_of_it else [])
    return Prepared(batch=batch, turns=tuple(used), trained=trained) if batch.turns else None


def steps_for(trained: Sequence[Turn], training: TrainingConfig) -> float:
    """As many steps, or as much of one, as was corrected.

    An optimiser's step is as long for a batch that has little to teach as for any other. Where
    nearly all replies pleased, more of them only lead away from what pleased.
    """
    told = [turn.verdict.score for turn in trained if turn.verdict and turn.verdict.score]
    if not told or any(turn.group is not None for turn in trained):
        return training.steps_per_batch
    corrected = sum(score < 0 for score in told) / len(told)
    return max(_LEAST, training.steps_per_batch * min(1.0, corrected / _MUCH))


def _redacted(
    one: Judged,
    earned: Credit,
    training: TrainingConfig,
    renderer: ChatRenderer,
    counts: Counter[str],
) -> Credit:
    """The credit without that of tokens that spell something private; what is found is counted.

    So is what was found in the turn's hint: the teacher reads that without it already.
    """
    if one.hinted_ids is not None and one.turn.hint is not None:
        hint = one.turn.hint.told
        _, hidden_in_hint = redact_text(hint, training.redact, patterns=training.redact_patterns)
        counts.update({f"redacted_{kind}": count for kind, count in hidden_in_hint.items()})
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
