"""The demo's people and its chart; the whole demo is too slow for a test of every change."""

from __future__ import annotations

import random
from pathlib import Path
from xml.etree import ElementTree

import pytest

from instar.demo.measure import Measured
from instar.demo.person import load_person, personas
from instar.demo.plot import chart
from instar.errors import ConfigError
from instar.judge.hints import candidates
from instar.judge.next_state import Case

WANTED = {
    "brief": ("What is a volcano?", "A volcano is a hill that lets hot rock out."),
    "student": (
        "What is gravity?",
        "I think of it as a pull, since everything that has mass draws all other things to it.",
    ),
    "teacher": ("Write a comment on Mia's drawing of a cat.", "What a lovely cat, Mia, well done!"),
}
ESSAY = "Here are **several** points:\n\n1. One.\n2. Two.\n" + "And much more of it. " * 30


@pytest.mark.parametrize("name", personas())
def test_a_person_is_pleased_by_what_they_want_and_says_what_was_wrong(name: str) -> None:
    person = load_person(name, seed=0)
    assert not set(person.asked) & set(person.kept)
    assert len(person.asked) >= 32
    prompt, answer = WANTED[name]
    assert person.score(prompt, answer) == 1.0
    assert person.score(prompt, ESSAY) == 0.0
    random.seed(0)
    said = {person.respond(prompt, ESSAY) for _ in range(50)}
    assert len(said) >= 3, "one fixed sentence is not how people talk"
    for words in said:
        assert candidates(Case(request=prompt, response=ESSAY, next=words)), words


def test_a_seed_says_which_prompts_are_kept() -> None:
    assert load_person("brief", seed=1).kept == load_person("brief", seed=1).kept
    assert load_person("brief", seed=1).kept != load_person("brief", seed=2).kept


def test_an_unknown_person_is_an_error_that_names_the_known() -> None:
    with pytest.raises(ConfigError, match="brief, student, teacher"):
        load_person("nobody", seed=0)


def test_a_file_that_lacks_something_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "me.py"
    file.write_text("prompts = ['a', 'b', 'c']\n")
    with pytest.raises(ConfigError, match="score, respond"):
        load_person(str(file), seed=0)


def test_the_chart_is_whole_and_shows_what_was_measured() -> None:
    looks = [
        Measured(updates=at, style=style, on_topic=0.9, words=9, answers=())
        for at, style in ((0, 0.0), (8, 0.8))
    ]
    root = ElementTree.fromstring(chart(looks, praised=[0.0, 0.5, 1.0], title="a <title>"))
    lines = [one.attrib["points"].split() for one in root.iter() if one.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [3, 2, 2]
    # From the bottom (0) to four fifths of the way up: 360 - 56 and 248 x 0.8 above it.
    assert [float(point.split(",")[1]) for point in lines[1]] == [304.0, pytest.approx(105.6)]
