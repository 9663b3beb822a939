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
from instar.learn.examples import NEWEST, Example, Examples, example, talk_before
from instar.train.reading import Pair
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

    def each_logprobs(self, pairs: Sequence[Pair], *, weights: str) -> list[tuple[float, ...]]:
        assert weights == "base"
        self.asked += len(pairs)
        return [
            (-100.0, -100.0) if prompt == self.nothing else (sampled[0] - 100.0,) * 2
            for prompt, sampled in pairs
        ]


def chooser(renderer: ChatRenderer, training: TrainingConfig = TRAINING) -> tuple[Examples, Told]:
    reader = Told(renderer)
    chosen = Examples(reader, renderer=renderer, training=training, longest=999)  # type: ignore[arg-type]
    return chosen, reader


def test_what_is_about_its_request_is_ranked(renderer: ChatRenderer) -> None:
    examples, reader = chooser(renderer)
    gains = [5, 1, 8, 3, 2, 7, 4, 6]
    turns = [pleased(f"t{gain}", sampled_ids=(gain, 0)) for gain in gains]
    assert [one.turn for one in examples.among(turns)] == [f"t{n}" for n in range(1, 9)]
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
    assert len(examples.among(turns)) == 6


def test_a_broken_reply_is_not_shown_though_its_request_explains_it(renderer: ChatRenderer) -> None:
    """The first is explained best and the least likely: 9 - 70 nats, against 2 - 7 and less."""
    examples, reader = chooser(renderer)
    said = {(9, 0): (-70.0, -79.0)} | {(n, 0): (-7.0 - n, -9.0 - n) for n in range(5)}
    reader.each_logprobs = lambda pairs, weights: [  # type: ignore[method-assign]
        (said[sampled][prompt == reader.nothing],) for prompt, sampled in pairs
    ]
    turns = [pleased(f"t{ids[0]}", sampled_ids=ids) for ids in said]
    ranked = examples.among(turns)
    assert [one.turn for one in ranked] == ["t9", "t4", "t3", "t2", "t1", "t0"]
    apart = [replace(one, request=f"q{one.turn}", reply=f"a{one.turn}") for one in ranked]
    for name in "abcdefgh":
        assert set(shown_to(pleased(name, "q"), apart, wishes="")) <= {"at0", "at1", "at2"}


def test_only_the_newest_are_looked_at(renderer: ChatRenderer) -> None:
    examples, reader = chooser(renderer)
    turns = [pleased(f"t{n}", sampled_ids=(5, 0)) for n in range(NEWEST + 10)]
    found = examples.among([*turns, turns[0], pleased("x", verdict=None)])
    assert len(found) == NEWEST and reader.asked == 2 * NEWEST
    assert all(int(one.turn[1:]) >= 10 for one in found)


NAMED = [Example(turn=f"t{n}", request=f"q{n}", reply=f"a{n}") for n in range(6)]


def shown_to(turn: Turn, examples: Sequence[Example], *, wishes: str, count: int = 2) -> list[str]:
    talk = talk_before(turn, examples, wishes=wishes, count=count)
    assert [one["role"] for one in talk] == ["user", "assistant"] * (len(talk) // 2)
    assert talk == talk_before(turn, examples, wishes=wishes, count=count), "the same each time"
    return [str(one["content"]) for one in talk if one["role"] == "assistant"]


def test_a_turn_is_shown_neither_itself_nor_its_own_request() -> None:
    own = pleased("t0", "q1")
    assert set(shown_to(own, NAMED[:4], wishes="")) == {"a2", "a3"}
    assert shown_to(own, NAMED[:4], wishes="", count=3) == [], "too few of them are none"
    assert shown_to(own, NAMED[:4], wishes="", count=0) == []


def test_the_better_half_is_shown() -> None:
    for name in "abcdefgh":
        assert set(shown_to(pleased(name, "q"), NAMED, wishes="")) <= {"a3", "a4", "a5"}


@pytest.mark.parametrize(
    ("wishes", "pleased_before", "obeying"),
    [
        ("Keep the answer short.", 4, [False, False]),
        ("Keep the answer short.", 2, [False, False]),
        ("Keep the answer short.", 1, [True, True]),
        ("Answer with two bullet points.", 4, [True, True]),
        ("Answer with nine bullet points.", 4, [False, False]),
        ("Say it like my uncle.", 4, [False, False]),
        ("Say it like my uncle.", 1, []),
    ],
)
def test_what_obeys_is_shown_until_enough_has_pleased(
    wishes: str, pleased_before: int, obeying: list[bool]
) -> None:
    found = shown_to(pleased("x", "q"), NAMED[:pleased_before], wishes=wishes)
    assert [not one[1:].isdigit() for one in found] == obeying
    assert not shown_to(pleased("x", "q"), NAMED, wishes=wishes, count=0)


def test_the_last_one_has_the_form_that_is_wished() -> None:
    """Who asks for one sentence may be pleased with two, and a teacher shown two writes three."""
    longer = [replace(one, reply=f"{one.reply} is. It is so.") for one in NAMED]
    wish = "Answer in one short sentence."
    first, last = shown_to(pleased("x", "q"), longer, wishes=wish)
    assert first in [one.reply for one in longer[3:]] and last.count(".") == 1
    assert last not in [one.reply for one in longer]
    short = [replace(one, turn=f"{one.turn}s", reply=f"{one.reply} is.") for one in NAMED]
    first, last = shown_to(pleased("x", "q"), [*longer, *short[:3]], wishes=wish)
    assert last in [one.reply for one in short[1:3]]


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
