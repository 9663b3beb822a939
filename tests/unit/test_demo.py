"""The demo's people, figures, proof and chart; tests/e2e/test_whole_demo.py runs all of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from store_turns import make_turn, user
from typer.testing import CliRunner

from instar.cli import app
from instar.config_load import load_config
from instar.demo.measure import Measured, Reader
from instar.demo.person import Person, load_person, personas
from instar.demo.plot import chart
from instar.demo.proof import Proof, prove
from instar.demo.run import Plan, Report, _agreement, _Show
from instar.demo.talk import Said
from instar.demo.waiting import Background
from instar.errors import ConfigError
from instar.gateway.auth import LOCAL_OWNER
from instar.judge.hints import candidates
from instar.judge.next_state import Case
from instar.record.store import TurnStore
from instar.record.versions import VersionBook
from instar.types import Verdict, Version

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
    with pytest.raises(ConfigError, match=r"me\.py, and there is no such file"):
        load_person("me.py", seed=0)


def test_a_file_that_lacks_something_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "me.py"
    file.write_text("prompts = ['a', 'b', 'c']\n")
    with pytest.raises(ConfigError, match="score, respond"):
        load_person(str(file), seed=0)


BOTH = "def score(p, a): return 1\ndef respond(p, a): return a[9]\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOTH + "prompts = 'tell me'", "list of strings, .* found str"),
        (BOTH + "prompts = None", "found NoneType"),
        (BOTH + "prompts = ['a', 'b', {'c': 1}]", "number 2 is"),
        (BOTH + "prompts = ['a', '', 'c']", "number 1 is ''"),
        (BOTH + "prompts = ['a', 'b', 'c']\nscore = 3", r"must be score\(prompt, answer\)"),
        (BOTH + "prompts = ['a', 'b', 'c']\ndef respond(a): ...", "must be respond"),
        ("raise SystemExit(3)", "does not run: SystemExit"),
    ],
)
def test_a_file_that_says_nonsense_is_an_error_that_names_it(
    tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "me.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        load_person(str(file), seed=0)


def test_a_person_who_fails_in_the_middle_is_named(tmp_path: Path) -> None:
    file = tmp_path / "me.py"
    file.write_text(BOTH + "prompts = ['a', 'b', 'c']")
    with pytest.raises(ConfigError, match=r"respond of .*me\.py failed on 'no': IndexError"):
        load_person(str(file), seed=0).respond("a", "no")


@pytest.mark.parametrize(
    ("name", "returned", "wanted"),
    [
        ("score", "None", "a finite number"),
        ("score", "'0.5'", "a finite number"),
        ("score", "float('nan')", "a finite number"),
        ("score", "[1.0]", "a finite number"),
        ("respond", "None", "a string"),
        ("respond", "b'no'", "a string"),
        ("respond", "0.5", "a string"),
    ],
)
def test_a_person_who_returns_nonsense_is_named_with_what_it_was(
    tmp_path: Path, name: str, returned: str, wanted: str
) -> None:
    file = tmp_path / "me.py"
    file.write_text(f"{BOTH}prompts = ['a', 'b', 'c']\ndef {name}(p, a): return {returned}\n")
    person = load_person(str(file), seed=0)
    function = {"score": person.likes, "respond": person.respond}[name]
    with pytest.raises(ConfigError) as caught:
        function("Why?", "So.")
    said = str(caught.value)
    assert said.startswith(f"{name} of {file} returned {eval(returned)!r} for the prompt 'Why?'")
    assert f"it must return {wanted}" in said


def test_scores_may_be_any_numbers(tmp_path: Path) -> None:
    file = tmp_path / "me.py"
    file.write_text(
        "import numpy, torch\nfrom fractions import Fraction\nprompts = ['a', 'b', 'c']\n"
        "def respond(p, a): return ''\n"
        "found = {'t': True, 'n': numpy.float32(0.5), 'f': Fraction(1, 4), 'b': numpy.bool_(1),\n"
        "         'o': torch.tensor(0.75)}\n"
        "def score(p, a): return found[a]\n"
    )
    person = load_person(str(file), seed=0)
    assert [person.score("a", one) for one in "tnfbo"] == [1.0, 0.5, 0.25, 1.0, 0.75]
    assert person.respond("a", "t") == ""


async def test_a_person_may_take_their_time_and_await_something(tmp_path: Path) -> None:
    file = tmp_path / "me.py"
    file.write_text(
        "import asyncio\nprompts = ['a', 'b', 'c']\ndef score(p, a): return 1\n"
        "async def respond(p, a):\n    await asyncio.sleep(0)\n    return f'{a}? No!'\n"
    )
    assert load_person(str(file), seed=0).respond("a", "So") == "So? No!"


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "beside_the_person.py").write_text("prompts = ['a', 'b', 'c']\n")
    file = tmp_path / "me.py"
    file.write_text(f"from beside_the_person import prompts\n{BOTH}")
    assert sorted((one := load_person(str(file), seed=0)).asked + one.kept) == ["a", "b", "c"]


def test_a_file_may_have_dataclasses_and_draw_its_prompts(tmp_path: Path) -> None:
    file = tmp_path / "me.py"
    file.write_text(
        "from __future__ import annotations\nimport random\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Mood:\n    name: str = 'calm'\n"
        f"{BOTH}prompts = [str(random.random()) for _ in range(4)]"
    )
    assert load_person(str(file), seed=1).asked == load_person(str(file), seed=1).asked


GRADED = """
prompts = ["one", "two", "three"]
def score(prompt, answer): return 0.9 if answer == "good" else 0.2
def respond(prompt, answer): return "Hm."
"""


def graded(folder: Path) -> Person:
    """Somebody's own persona: as few prompts as may be, and never quite content."""
    file = folder / "me.py"
    file.write_text(GRADED)
    return load_person(str(file), seed=0)


class Likelihoods:
    """A model that finds the first question likeliest once it has read an answer."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def each_logprobs(
        self, pairs: list[tuple[str, str]], *, weights: str
    ) -> list[tuple[float, ...]]:
        assert weights == "base"
        self.asked.append([question for _, question in pairs])
        return [
            (0.0,) if '"..."' in prompt else (-0.5, 0.5 - at)
            for at, (prompt, _) in enumerate(pairs)
        ]


def reader_of(model: Likelihoods) -> Reader:
    renderer: Any = SimpleNamespace(
        render=lambda messages: SimpleNamespace(ids=messages[0]["content"]), encode=lambda one: one
    )
    trainer: Any = model
    return Reader(trainer, renderer)


def test_an_answer_is_compared_with_the_questions_there_are(tmp_path: Path) -> None:
    model, person = Likelihoods(), graded(tmp_path)
    assert reader_of(model).on_topic(person, "one", "an answer") == 1.0
    assert sorted(model.asked[0]) == ["one", "three", "two"]


def test_of_many_questions_the_same_seven_are_taken(tmp_path: Path) -> None:
    model, person = Likelihoods(), load_person("brief", seed=0)
    prompt = person.kept[0]
    reader_of(model).on_topic(person, prompt, "an answer")
    others = [one for one in (*person.kept, *person.asked) if one != prompt]
    assert model.asked[0] == [prompt, *random.Random(prompt).sample(others, 7)]


async def test_the_judge_is_measured_on_its_own_verdicts_alone(
    store: TurnStore, tmp_path: Path
) -> None:
    person = graded(tmp_path)

    async def turn(name: str, answer: str, verdict: Verdict) -> Said:
        reply = {"role": "assistant", "content": answer}
        recorded = make_turn(
            name, owner=LOCAL_OWNER, session=name, messages=(user("one"),), reply=reply
        )
        await store.record(recorded)
        await store.set_verdict(name, verdict, None)
        return Said(prompt="one", answer=answer)

    said = [
        await turn("a", "good", Verdict(score=1)),
        await turn("b", "bad", Verdict(score=-1)),
        await turn("c", "bad", Verdict(score=-1)),
        await turn("d", "bad", Verdict(score=1)),
        await turn("lie", "good", Verdict(score=-1, source="person")),
    ]
    assert await _agreement(store, person, said) == 0.75


class Answers:
    """A gateway whose every version answers with its own name."""

    def __init__(self, book: VersionBook) -> None:
        self.book = book
        self.asked: list[str | None] = []
        self.told: list[int] = []

    async def answer(self, prompt: str, *, likeliest: bool, version: str | None = None) -> str:
        self.asked.append(version)
        return version or await self.book.live_name(LOCAL_OWNER)

    async def feedback(self, turn: str, score: int) -> None:
        self.told.append(score)


async def trained(book: VersionBook, *, accepted: bool) -> str:
    """A new version, live or rejected."""
    name = await book.reserve(LOCAL_OWNER)
    parent = await book.live_name(LOCAL_OWNER)
    await book.add(
        Version(name=name, owner=LOCAL_OWNER, parent=parent, state="candidate", folder=name)
    )
    await book.note_gate(LOCAL_OWNER, name, {"accepted": accepted})
    if accepted:
        await book.promote(LOCAL_OWNER, name)
    return name


async def proof_of(
    store: TurnStore, person: Person, kept: dict[str, tuple[str, ...]]
) -> tuple[Proof, Answers]:
    client: Any = Answers(VersionBook(store))

    async def talk() -> Sequence[Said]:
        return [Said(prompt="one", answer=answer) for answer in ("good", "bad")]

    async def learned() -> None:
        await trained(client.book, accepted=False)

    async def swapped() -> None:
        return None

    found = await prove(
        store, client, person, talk=talk, learned=learned, swapped=swapped, kept=kept
    )
    return found, client


async def test_a_rollback_is_compared_also_after_a_rejected_update(
    store: TurnStore, tmp_path: Path
) -> None:
    person, book = graded(tmp_path), VersionBook(store)
    accepted = [await trained(book, accepted=True) for _ in range(3)]
    await trained(book, accepted=False)
    found, client = await proof_of(store, person, {accepted[2]: (accepted[2],)})
    assert (found.back_to, found.same, found.poisoned.state) == (accepted[1], True, "rejected")
    assert client.asked == [accepted[1], None]
    assert client.told == [-1, 1]  # the lie: 0.9 pleased


async def test_what_was_kept_is_not_asked_for_again(store: TurnStore, tmp_path: Path) -> None:
    book = VersionBook(store)
    first, _ = [await trained(book, accepted=True) for _ in range(2)]
    found, client = await proof_of(store, graded(tmp_path), {first: ("something else",)})
    assert (found.back_to, found.same, client.asked) == (first, False, [None])


async def test_without_an_accepted_version_there_is_nothing_to_roll_back(
    store: TurnStore, tmp_path: Path
) -> None:
    found, _ = await proof_of(store, graded(tmp_path), {})
    assert (found.back_to, found.same) == (None, None)


def report(*gates: dict[str, Any]) -> Report:
    versions = tuple(
        Version(
            name=f"v{at}", owner=LOCAL_OWNER, parent="base", state="retired", folder="", gate=gate
        )
        for at, gate in enumerate(gates)
    )
    return Report(
        persona="me",
        seed=0,
        looks=(),
        versions=versions,
        judge_agreement=None,
        kept=(),
    )


def test_a_chart_that_could_not_be_drawn_is_said_before_all_else(tmp_path: Path) -> None:
    argv = ["demo", "--persona", "nobody", "--plot", str(tmp_path / "none" / "demo.svg")]
    found = CliRunner().invoke(app, argv)
    assert found.exit_code == 2
    assert "cannot be written: there is no folder" in found.output


def test_the_base_has_kept_all_that_it_knew() -> None:
    rejected = {"accepted": False, "retention": 0.5}
    assert report(rejected).retention == 1.0
    assert report({"accepted": True, "retention": 0.9}, rejected).retention == 0.9


async def test_somebody_whose_words_say_nothing_is_not_listened_to_for_ever(
    store: TurnStore, tmp_path: Path
) -> None:
    now = 0.0

    class Talks:
        async def converse(self, prompt: str, respond: Any) -> Said:
            nonlocal now
            now += 200
            return Said(prompt=prompt, answer="a", reply=respond(prompt, "a"))

    async def signs() -> object:
        return None

    background = Background(tmp_path, signs, clock=lambda: now)
    config = load_config(None, ["training.batch_size=2"]).config
    nobody: Any = None
    client: Any = Talks()
    show = _Show(
        *(config, graded(tmp_path), client, store, nobody, Plan(), lambda *_: None, background)
    )
    with pytest.raises(ConfigError, match=r"6 conversations.*'Hm\.'.*respond\(\)"):
        await show._talk("talking", 0.0)


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


def test_scores_of_any_size_stay_on_the_chart() -> None:
    looks = [
        Measured(updates=at, style=style, on_topic=0.9, words=9, answers=())
        for at, style in ((0, -3.0), (8, 10.0))
    ]
    text = chart(looks, title="mine")
    root = ElementTree.fromstring(text)
    lines = [one.attrib["points"].split() for one in root.iter() if one.tag.endswith("polyline")]
    assert [float(point.split(",")[1]) for point in lines[0]] == [304.0, 56.0]
    assert ">10.0</text>" in text
