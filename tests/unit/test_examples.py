"""Which praised replies a teacher is shown, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from instar.backends.embedded import embedded_model
from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.learn.batches import hinted_prompt
from instar.learn.examples import NEWEST, Example, Examples, example, messages_for, talk_before
from instar.types import Hint, Message, Sampling, Turn, Verdict

TRAINING = TrainingConfig()


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer.from_folder(embedded_model(Path.home() / ".instar"))


def pleased(name: str, request: str = "Why?", reply: str = "So.", **changes: Any) -> Turn:
    turn = Turn(
        id=name,
        owner="anna",
        session="s",
        parent=None,
        extends=False,
        kind="main",
        prompt_ids=(1, 2),
        sampled_ids=(3, 4),
        logprobs=(-1.0, -1.0),
        settings=Sampling(),
        version="base",
        finish="stop",
        messages=({"role": "user", "content": request},),
        reply={"role": "assistant", "content": reply},
        created=0.0,
        verdict=Verdict(score=1),
    )
    return replace(turn, **changes)


CALL: Message = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": None},
        {"verdict": Verdict(score=0)},
        {"verdict": Verdict(score=-1)},
        {"finish": "length"},
        {"kind": "side"},
        {"no_train": True},
        {"sampled_ids": (), "logprobs": ()},
        {"messages": ()},
        {"messages": ({"role": "tool", "content": "ok", "tool_call_id": "1"},)},
        {"reply": CALL},
        {"reply": {"role": "assistant", "content": ""}},
        {"reply": {"role": "assistant", "content": "x" * 1201}},
        {"reply": {"role": "assistant", "content": "Write to ann@example.org."}},
        {"messages": ({"role": "user", "content": "I am ann@example.org, why?"},)},
    ],
)
def test_what_is_no_example(changes: dict[str, Any]) -> None:
    assert example(pleased("a"), TRAINING) == Example(turn="a", request="Why?", reply="So.")
    assert example(pleased("a", **changes), TRAINING) is None


class Told:
    """A reader to whom a reply is likelier by its first token's number after its own request."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self.nothing = renderer.render([{"role": "user", "content": "..."}]).ids
        self.asked = 0

    def logprobs(
        self, prompt: Sequence[int], sampled: Sequence[int], *, weights: str
    ) -> tuple[float, ...]:
        assert weights == "base"
        self.asked += 1
        return (-100.0, -100.0) if tuple(prompt) == self.nothing else (sampled[0] - 100.0,) * 2


def chooser(renderer: ChatRenderer, training: TrainingConfig = TRAINING) -> tuple[Examples, Told]:
    reader = Told(renderer)
    chosen = Examples(reader, renderer=renderer, training=training, longest=999)  # type: ignore[arg-type]
    return chosen, reader


def test_the_better_half_of_what_is_about_its_request_is_shown(renderer: ChatRenderer) -> None:
    examples, reader = chooser(renderer)
    gains = [5, 1, 8, 3, 2, 7, 4, 6]
    turns = [pleased(f"t{gain}", sampled_ids=(gain, 0)) for gain in gains]
    assert [one.turn for one in examples.among(turns)] == ["t5", "t6", "t7", "t8"]
    assert reader.asked == 16
    examples.among(turns)
    assert reader.asked == 16, "the base is asked once of each"


def test_no_reply_is_shown_that_could_answer_anything(renderer: ChatRenderer) -> None:
    examples, _ = chooser(renderer)
    turns = [pleased(f"t{n}", sampled_ids=(gain, 0)) for n, gain in enumerate((0, 0, 0, 0, 3, 0))]
    # A gain of nothing is none, though half of the six may be shown.
    assert [one.turn for one in examples.among(turns)] == ["t4"]
    assert examples.among([]) == []


def test_none_is_shown_while_there_is_no_choice(renderer: ChatRenderer) -> None:
    """Two are wanted, and one more to choose from: the better half of six."""
    examples, _ = chooser(renderer)
    turns = [pleased(f"t{gain}", sampled_ids=(gain, 0)) for gain in range(1, 7)]
    assert examples.among(turns[:5]) == []
    assert [one.turn for one in examples.among(turns)] == ["t4", "t5", "t6"]


def test_a_broken_reply_is_not_shown_though_its_request_explains_it(renderer: ChatRenderer) -> None:
    """The first is explained best and the least likely: 9 - 70 nats, against 2 - 7 and less."""
    examples, reader = chooser(renderer)
    said = {(9, 0): (-70.0, -79.0)} | {(n, 0): (-7.0 - n, -9.0 - n) for n in range(5)}
    reader.logprobs = lambda prompt, sampled, weights: (  # type: ignore[method-assign]
        (said[tuple(sampled)][tuple(prompt) == reader.nothing],)
    )
    turns = [pleased(f"t{ids[0]}", sampled_ids=ids) for ids in said]
    assert [one.turn for one in examples.among(turns)] == ["t2", "t1", "t0"]


def test_only_the_newest_are_looked_at(renderer: ChatRenderer) -> None:
    examples, reader = chooser(renderer)
    turns = [pleased(f"t{n}", sampled_ids=(5, 0)) for n in range(NEWEST + 10)]
    found = examples.among([*turns, turns[0], pleased("x", verdict=None)])
    assert len(found) == NEWEST // 2 and reader.asked == 2 * NEWEST
    assert all(int(one.turn[1:]) >= 10 for one in found)


def test_a_turn_is_shown_neither_itself_nor_its_own_request() -> None:
    shown = [Example(turn=f"t{n}", request=f"q{n}", reply=f"a{n}") for n in range(4)]
    own = pleased("t0", "q1")
    found = messages_for(own, shown, 2)
    assert {one["content"] for one in found} == {"q2", "a2", "q3", "a3"}
    assert [one["role"] for one in found] == ["user", "assistant"] * 2
    assert found == messages_for(own, shown, 2), "the same at every call"
    assert messages_for(own, shown, 3) == [], "too few of them are none"
    assert messages_for(own, shown, 0) == []


@pytest.mark.parametrize(
    ("wishes", "pleased_before", "obeying", "pleasing"),
    [
        ("Keep the answer short.", 4, 0, 2),
        ("Keep the answer short.", 2, 0, 2),
        ("Keep the answer short.", 1, 2, 0),
        ("Answer with two bullet points.", 4, 2, 0),
        ("Answer with nine bullet points.", 4, 0, 2),
        ("Say it like my uncle.", 4, 0, 2),
        ("Say it like my uncle.", 1, 0, 0),
    ],
)
def test_what_pleased_is_shown_if_it_has_the_form_that_is_wished(
    wishes: str, pleased_before: int, obeying: int, pleasing: int
) -> None:
    shown = [Example(turn=f"t{n}", request=f"q{n}", reply=f"a{n}") for n in range(pleased_before)]
    talk = talk_before(pleased("x", "q"), shown, wishes=wishes, count=2)
    replies = [str(one["content"]) for one in talk if one["role"] == "assistant"]
    assert [one[0] == "a" and one[1:].isdigit() for one in replies] == (
        [False] * obeying + [True] * pleasing
    )
    assert not talk_before(pleased("x", "q"), shown, wishes=wishes, count=0)


def test_examples_come_between_the_hint_and_the_history(renderer: ChatRenderer) -> None:
    shown = [Example(turn=f"t{n}", request=f"ask {n}", reply=f"say {n}") for n in range(2)]
    told = pleased("x", "How?", verdict=Verdict(score=-1), hint=Hint(text="Mention Bob."))
    ids = hinted_prompt(told, renderer, {}, training=TRAINING, longest=999, examples=shown)
    assert ids is not None
    text = renderer.tokenizer.decode(list(ids), skip_special_tokens=False)
    places = [text.index(one) for one in ("Mention Bob.", "ask 0", "say 0", "How?")]
    assert places == sorted(places) and text.index("say 1") < places[-1]
    none = TrainingConfig(examples=0)
    alone = hinted_prompt(told, renderer, {}, training=none, longest=999, examples=shown)
    assert alone == hinted_prompt(told, renderer, {}, training=TRAINING, longest=999)
    # What is too long with the examples is read without, and not at all if that is too long.
    assert alone is not None
    for longest, expected in (
        (len(ids) + len(told.sampled_ids), ids),
        (len(ids) + len(told.sampled_ids) - 1, alone),
        (len(alone) + len(told.sampled_ids), alone),
        (len(alone) + len(told.sampled_ids) - 1, None),
    ):
        found = hinted_prompt(
            told, renderer, {}, training=TRAINING, longest=longest, examples=shown
        )
        assert found == expected
