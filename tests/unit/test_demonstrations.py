"""What a teacher is shown until somebody has praised something."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.judge.demonstrations import Demonstration, _bank, as_ordered, demonstrations
from instar.judge.orders import wish_data

ORDERS = {one["order"] for one in wish_data()["wishes"]}


def shown(hint: str, seed: str = "a", count: int = 2) -> list[Demonstration]:
    return demonstrations(hint, count=count, seed=seed)


@pytest.mark.parametrize(
    ("hint", "form"),
    [
        ("Answer in one short sentence.", r"[^.!?]+[.!?]"),
        ("Answer in one short friendly sentence.", r"[^.!?]+!"),
        ("Answer with three bullet points.", r"- .+\n- .+\n- .+"),
        ("Answer with two or three bullets.", r"- .+(?:\n- .+){1,2}"),
        ("Answer with at most 3 bullets. Begin with the answer itself.", r"- .+(?:\n- .+){0,2}"),
        ("End with a question.", r".+[.!] [^.!?]+\?"),
        ("Explain it with a comparison.", r".*\b(?:like|[Ii]magine)\b.*"),
        ("Use the person's name.", r".*\b(?:Paul|Maria|Leon)\b.*"),
        ("Answer with a table.", r"\|.+"),
        ("Write plain text without Markdown.", r"[^*#|\n]{200,}"),
        ("Do not use lists, bold or headings.", r"[^*#|\n]{200,}"),
        ("Write in plain sentences.", r"[^*#|\n]{200,}"),
    ],
)
def test_what_is_shown_obeys(hint: str, form: str) -> None:
    for seed in map(str, range(20)):
        found = shown(hint, seed)
        assert len(found) == 2
        for one in found:
            assert re.fullmatch(form, one.reply, re.DOTALL), one.reply


@pytest.mark.parametrize("most", [5, 12, 30])
def test_words_are_counted(most: int) -> None:
    for one in shown(f"Use at most {most} words."):
        assert len(one.reply.split()) <= most


@pytest.mark.parametrize(
    ("hint", "reply", "ordered"),
    [
        ("Answer in one sentence.", "So it is.", True),
        ("Answer in one sentence.", "So it is. And so it goes.", False),
        ("Answer in one short sentence.", "So " * 31 + "it is.", False),
        ("Answer in at least two sentences.", "So it is. And so it goes. On.", True),
        ("Answer with two bullets.", "- one\n- two", True),
        ("Answer in 5 words.", "So it is.", True),
        ("Use at most five words.", "So it is, and so it goes.", False),
        ("Use at least five words.", "So it is.", False),
        ("Answer in detail.", "So it is.", False),
        ("Answer with two bullets.", "One and two.", False),
        ("Do not use lists.", "1. one\n2. two", False),
        ("Be warm and friendly.", "Go away.", True),
        ("", "- one", True),
    ],
)
def test_the_form_is_counted(hint: str, reply: str, ordered: bool) -> None:
    assert as_ordered(reply, hint) is ordered


@pytest.mark.parametrize(
    "hint",
    [
        "",
        "Say it in the voice of my late uncle.",
        "Answer in detail.",
        "Answer in at least twenty sentences.",
        "Answer with nine bullets.",
    ],
)
def test_nothing_is_shown_for_what_nothing_obeys(hint: str) -> None:
    assert shown(hint) == []


def test_as_many_as_are_asked_for_and_the_same_at_every_call() -> None:
    assert shown("Keep the answer short.", count=0) == []
    assert shown("Keep the answer short.", "x") == shown("Keep the answer short.", "x")
    assert len({shown("Keep the answer short.", str(at))[0].request for at in range(40)}) > 5


def test_an_odd_form_is_only_shown_to_those_who_asked() -> None:
    for seed in map(str, range(40)):
        for one in shown("Answer in two or three sentences.", seed):
            assert not one.reply.endswith("?")
            assert not one.reply.startswith(("-", "1.", "Hello"))


def test_of_two_wishes_both_are_shown() -> None:
    for one in shown("Keep the answer short. End with a question."):
        assert one.reply.endswith("?")
        assert len(one.reply.split()) <= 30


def test_the_data_speaks_of_orders_that_there_are() -> None:
    bank = _bank()
    named = bank.only_if_asked | bank.all_obey | bank.against.keys()
    assert named.union(*bank.against.values(), *(one.obeys for one in bank.shown)) <= ORDERS
    for order in bank.only_if_asked:
        assert sum(order in one.obeys for one in bank.shown) >= 2, order
    assert len({one.request for one in bank.shown}) == len(bank.shown)


@given(
    st.lists(st.sampled_from(sorted(text for text in ORDERS if "{}" not in text)), max_size=3),
    st.integers(0, 3),
)
def test_any_orders_give_all_or_none(orders: list[str], count: int) -> None:
    found = shown(" ".join(orders), count=count)
    assert len(found) in (0, count)
    assert len(set(found)) == len(found)
