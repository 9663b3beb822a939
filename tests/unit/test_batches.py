"""Which hint a teacher reads for which turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_turns import make_turn

from instar.backends.embedded import embedded_model
from instar.batch.credit import Judged, credit
from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.learn.batches import hinted_prompt, prepare, settings_of, standing_hint, steps_for
from instar.types import Hint, Turn, Verdict

TRAINING = TrainingConfig()


def told(name: str, hint: str | None, score: Any = None) -> Turn:
    return replace(
        make_turn(name),
        hint=None if hint is None else Hint(text=hint),
        verdict=None if score is None else Verdict(score=score),
        messages=({"role": "user", "content": "Why?"},),
        replies=(),
        tools=(),
    )


def test_the_standing_hint_is_the_most_frequent_and_of_equals_the_newest() -> None:
    assert standing_hint([told("a", None), told("b", None)]) is None
    assert standing_hint([told("a", "x"), told("b", "y"), told("c", "x")]) == "x"
    assert standing_hint([told("a", "x"), told("b", "y")]) == "y"


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer.from_folder(embedded_model(Path.home() / ".instar"))


@pytest.mark.parametrize(
    ("hint", "score", "read"),
    [
        ("Be brief.", -1, "Be brief. Stand."),
        ("Be brief.", None, "Be brief. Stand."),
        (None, 1, "Stand."),
        (None, -1, None),
        (None, 0, None),
        # The person praised what a judge took for corrected.
        ("Be brief.", 1, "Stand."),
    ],
)
def test_what_the_teacher_reads(
    renderer: ChatRenderer, hint: str | None, score: int | None, read: str | None
) -> None:
    ids = hinted_prompt(
        told("a", hint, score), renderer, {}, training=TRAINING, longest=999, standing="Stand."
    )
    if read is None:
        assert ids is None
    else:
        assert ids is not None
        assert f"You are a helpful assistant. {read}" in renderer.tokenizer.decode(
            list(ids), skip_special_tokens=False
        )
    assert hinted_prompt(told("a", None, 1), renderer, {}, training=TRAINING, longest=999) is None


def test_a_hint_is_redacted_as_the_config_says(renderer: ChatRenderer) -> None:
    turn = told("a", "Mention badge X-1234 and ann@example.org.", -1)

    def read(training: TrainingConfig) -> str:
        ids = hinted_prompt(turn, renderer, {}, training=training, longest=999)
        assert ids is not None
        return str(renderer.tokenizer.decode(list(ids), skip_special_tokens=False))

    assert "Mention badge X-1234 and [email]." in read(TRAINING)
    own = TrainingConfig(redact_patterns={"badge": r"X-\d+"})
    assert "Mention badge [badge] and [email]." in read(own)
    assert "ann@example.org" in read(TrainingConfig(redact=["phone"]))


def test_what_is_private_in_a_reply_is_not_trained_and_counted_with_that_of_its_hint() -> None:
    renderer = ChatRenderer.for_bytes()
    said = tuple(renderer.encode("Ask ann@example.org."))
    turn = replace(
        told("a", "Name bob@example.org and +49 30 901820.", -1),
        sampled_ids=said,
        logprobs=(-0.5,) * len(said),
    )
    judged = Judged(turn=turn, hinted_ids=(1, 2))
    prepared = prepare(
        credit([judged], TRAINING.method, settings_of(TRAINING)),
        training=TRAINING,
        renderer=renderer,
        version="base",
        max_tokens=1000,
    )
    assert prepared is not None
    counts = prepared.batch.counts
    assert (counts["redacted_email"], counts["redacted_phone"]) == (2, 1)
    (sample,) = prepared.batch.samples
    hidden = [0.0] * len("ann@example.org")
    for stream in (sample.advantages, sample.distill_weights):
        assert list(stream[4:-1]) == hidden
        assert all((*stream[:4], stream[-1]))


@pytest.mark.parametrize(
    ("scores", "steps"),
    [
        ([-1, -1, -1, -1], 4),
        ([-1, 1, 1, 1], 4),  # a quarter was corrected: all the steps
        ([-1, 1, 1, 1, 1, 1, 1, 1], 2),  # half of that: half of them
        ([-1] + 15 * [1], 1),
        ([-1] + 31 * [1], 0.5),
        ([1, 1, 1, 1], 0.25),
        ([None, 0, 0], 4),  # nobody said anything
        ([None, 0, -1, 1, 1, 1, 1, 1, 1, 1], 2),  # only what was said counts
    ],
)
def test_a_batch_gets_fewer_steps_where_less_was_corrected(
    scores: list[int | None], steps: float
) -> None:
    turns = [told(f"t{at}", None, score) for at, score in enumerate(scores)]
    assert steps_for(turns, TrainingConfig(steps_per_batch=4)) == steps


def test_attempts_at_a_task_always_get_all_steps() -> None:
    praised = replace(told("t1", None, 1), group="g")
    assert steps_for([praised], TrainingConfig(steps_per_batch=3)) == 3
