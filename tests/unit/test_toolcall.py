"""Tool-call tasks: what they ask for, and what a reply to them is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.envs import open_environment
from instar.envs.toolcall import ToolcallEnvironment, ToolcallOptions
from instar.envs.toolcall_config import load_tools_config
from instar.envs.toolcall_grade import Call, alike, grade, says
from instar.envs.toolcall_skills import SKILLS
from instar.envs.toolcall_tasks import FAMILIES, Task, call_message, make_task
from instar.errors import ConfigError
from instar.types import Message

WANTED = Call("get_weather", {"city": "Oslo"})


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def called(*calls: tuple[str, Any]) -> Message:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"c{n}", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for n, (name, arguments) in enumerate(calls)
        ],
    }


@pytest.mark.parametrize(
    ("reply", "worth"),
    [
        (called(("get_weather", {"city": "Oslo"})), 1.0),
        (called(("get_weather", {"city": " oslo"})), 1.0),
        (called(("get_weather", {"city": "Lima"})), 0.25 + 0.25 + 0.2),
        (called(("get_weather", {"town": "Oslo"})), 0.25 + 0.25),
        (called(("get_weather", {"city": "Oslo", "day": 1})), 0.25 + 0.25 + 0.1 + 0.15),
        (called(("get_rain", {"city": "Oslo"})), 0.25 + 0.2 + 0.3),
        (called(("get_rain", {})), 0.25),
        (called(("get_weather", ["Oslo"])), 0.5),
        (called(("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Oslo"})), 0.5),
        (called(("get_rain", {}), ("get_weather", {"city": "Oslo"})), 0.5),
        (said("It is sunny in Oslo."), 0.0),
        (said(""), 0.0),
        (said("<tool_call>"), 0.05),
        (said("</tool_call>"), 0.0),
        (said("<tool_call>\n{oops}\n</tool_call>"), 0.1),
        (said('<tool_call>\n{"name": "get_weather", "argu'), 0.05 + 0.125),
        (said('<tool_call>\n{"name": "get_weather", oops}\n</tool_call>'), 0.1 + 0.125),
        (said('<tool_call>\n{"name": "get_rain", oops}\n</tool_call>'), 0.1),
    ],
)
def test_what_a_reply_is_worth(reply: Message, worth: float) -> None:
    assert grade(reply, WANTED).total == pytest.approx(worth)


@settings(deadline=None)
@given(st.text())
def test_no_text_is_worth_as_much_as_the_worst_call(text: str) -> None:
    for tried in (text, f"<tool_call>{text}</tool_call>"):
        assert grade(said(tried), WANTED).total < grade(called(("x", {})), WANTED).total


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.text(), st.dictionaries(st.text(), st.integers() | st.text())), min_size=1
    )
)
def test_a_grade_stays_between_0_and_1(calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert 0 <= grade(called(*calls), WANTED).total <= 1


@pytest.mark.parametrize(
    ("found", "wanted", "worth"),
    [
        (5, 5, 1),
        (5.0, 5, 1),
        ("5", 5, 0.5),
        (True, 1, 0),
        (1, True, 0),
        ("five", 5, 0),
        (None, 5, 0),
        ([5], 5, 0),
        (7, "7", 0.5),
        ("New  York", "new york", 1),
        (["a"], ["a"], 1),
        (float("nan"), 5, 0),
        (10**400, "7", 0),
    ],
)
def test_when_values_are_alike(found: Any, wanted: Any, worth: float) -> None:
    assert alike(found, wanted) == worth


@pytest.mark.parametrize(
    ("text", "fact", "stated"),
    [
        ("It is 21 degrees.", "21", True),
        ("It is 21.", "21", True),
        ("It is 210 degrees.", "21", False),
        ("It is 1.21", "21", False),
        ("It is 21.5", "21", False),
        ("It is 21.5.", "21.5", True),
        ("", "21", False),
    ],
)
def test_when_a_fact_is_stated(text: str, fact: str, stated: bool) -> None:
    assert says(text, fact) is stated


def task_of(family: str, split: str, number: int) -> Task:
    return make_task(FAMILIES[family], SKILLS, split=split, seed=f"0:{family}-{split}-{number}")


def requests(split: str) -> set[str]:
    return {
        task_of(family, split, number).messages[-1]["content"]
        for family in FAMILIES
        for number in range(200)
    }


def test_no_request_of_the_test_split_is_trained_on() -> None:
    assert not requests("train") & requests("test")
    assert len(requests("train")) > 600


def test_no_value_and_no_phrase_is_in_both_splits() -> None:
    for skill in SKILLS:
        assert not set(skill.train) & set(skill.test)
        for slot in skill.slots.values():
            assert not set(slot.values("train")) & set(slot.values("test"))
            assert set(slot.values("train")) | set(slot.values("test")) == set(slot.pool)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_task_offers_what_it_wants_and_shows_no_answer(family: str) -> None:
    for split in ("train", "test"):
        for number in range(100):
            task = task_of(family, split, number)
            names = [tool["function"]["name"] for tool in task.tools]
            assert len(names) == FAMILIES[family].tools
            assert len(task.messages) == 2 * FAMILIES[family].examples + 1
            if task.wanted is None:
                continue
            assert task.wanted.name in names
            shown = [json.loads(arguments) for arguments in shown_arguments(task)]
            assert task.wanted.arguments not in shown
            for value in task.wanted.arguments.values():
                assert str(value) in task.messages[-1]["content"]


def shown_arguments(task: Task) -> list[str]:
    return [
        call["function"]["arguments"]
        for message in task.messages
        for call in message.get("tool_calls") or []
    ]


def test_there_are_at_least_twelve_tools() -> None:
    assert len({skill.name for skill in SKILLS}) >= 12


async def test_the_right_reply_scores_1_on_every_task() -> None:
    place = ToolcallEnvironment(ToolcallOptions())
    for split in ("train", "test"):
        for name in (await place.tasks(split))[:120]:
            await place.reset(name)
            task = place._task
            assert task is not None
            reply = said("Hello!") if task.wanted is None else call_message("c", task.wanted)
            messages, done = await place.step(reply)
            if task.result:
                assert not done
                assert messages == [{"role": "tool", "tool_call_id": "c", "content": task.result}]
                _, done = await place.step(said(f"It is {task.fact}."))
            assert done
            assert (await place.score())[0] == pytest.approx(1.0)


async def test_a_wrong_call_gets_no_result_to_repeat() -> None:
    place = ToolcallEnvironment(ToolcallOptions(families=["answer"]))
    await place.reset("answer-train-0")
    assert place._task is not None
    wanted = place._task.wanted
    assert wanted is not None
    messages, done = await place.step(called((wanted.name, {"nothing": 1})))
    assert not done
    assert place._task.fact not in messages[0]["content"]
    await place.step(said("I could not find it."))
    reward, details = await place.score()
    assert details["answer"] == 0
    assert reward == pytest.approx(0.6 * 0.5)


async def test_a_call_instead_of_an_answer_is_no_answer() -> None:
    place = ToolcallEnvironment(ToolcallOptions(families=["answer"]))
    await place.reset("answer-train-0")
    assert place._task is not None
    wanted = place._task.wanted
    assert wanted is not None
    await place.step(call_message("c", wanted))
    _, done = await place.step({**call_message("d", wanted), "content": place._task.fact})
    assert done
    assert (await place.score())[0] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("reply", "worth"),
    [
        (said("Hello!"), 1),
        (said("  "), 0),
        (said("<tool_call>"), 0),
        (called(("get_weather", {})), 0),
    ],
)
async def test_declining_is_saying_something_and_calling_nothing(
    reply: Message, worth: float
) -> None:
    place = ToolcallEnvironment(ToolcallOptions(families=["decline"]))
    await place.reset("decline-train-0")
    await place.step(reply)
    assert (await place.score())[0] == worth


async def test_families_can_be_named_on_a_command_line() -> None:
    async with open_environment("toolcall", {"families": "one, pick", "train": 2}) as place:
        assert await place.tasks("train") == [
            "one-train-0", "pick-train-0", "one-train-1", "pick-train-1"
        ]  # fmt: skip
    with pytest.raises(ConfigError, match="no family 'nine'"):
        async with open_environment("toolcall", {"families": "nine"}):
            pass


FORMS: dict[str, Any] = {
    "openai": [
        {
            "type": "function",
            "function": {
                "name": "ship",
                "description": "Ship a parcel",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "kilos": {"type": "integer", "minimum": 1, "maximum": 30},
                        "fast": {"type": "boolean"},
                    },
                    "required": ["city", "kilos"],
                },
            },
        }
    ],
    "bare": [{"name": "ship", "description": "Ship a parcel.", "parameters": {"city": "string"}}],
    "anthropic": {
        "tools": [
            {
                "name": "ship",
                "input_schema": {
                    "type": "object",
                    "properties": {"to": {"enum": ["a", "b"]}, "tags": {"type": "array"}},
                    "required": ["to", "tags"],
                },
            }
        ]
    },
    "by name": {
        "ship": {
            "description": "Ship {it}",
            "parameters": {
                "box": {"type": "object", "properties": {"w": {"type": "integer"}}},
                "note": {"type": "string", "required": False},
            },
        },
        "now": {"description": "Tell the time"},
    },
}


@pytest.mark.parametrize("form", sorted(FORMS))
async def test_tools_of_a_file_become_tasks_that_can_be_solved(form: str, tmp_path: Path) -> None:
    file = tmp_path / "tools_config.json"
    file.write_text(json.dumps(FORMS[form]), "utf-8")
    place = ToolcallEnvironment(ToolcallOptions(tools_config=file))
    asked: dict[str, set[str]] = {}
    for split in ("train", "test"):
        for name in (await place.tasks(split))[:20]:
            messages, tools = await place.reset(name)
            asked.setdefault(split, set()).add(messages[-1]["content"])
            assert {tool["function"]["name"] for tool in tools} <= {"ship", "now"}
            assert place._task is not None
            assert place._task.wanted is not None
            await place.step(call_message("c", place._task.wanted))
            assert (await place.score())[0] == pytest.approx(1.0)
    assert not asked["train"] & asked["test"]


def test_only_what_a_tool_requires_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "tools_config.json"
    file.write_text(json.dumps(FORMS["openai"]), "utf-8")
    (skill,) = load_tools_config(file)
    assert list(skill.slots) == ["city", "kilos"]
    assert set(skill.slots["kilos"].pool) == set(range(1, 31))
    assert skill.tool["function"]["parameters"]["properties"]["fast"] == {"type": "boolean"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("[]", "lists no tools"),
        ('"x"', "expected a list"),
        ('[{"description": "x"}]', "needs a name"),
        ('[{"name": "a"}, {"name": "a"}]', "twice"),
        ('[{"name": "a", "parameters": {"x": "colour"}}]', "'colour'"),
        (
            '[{"name": "a", "parameters": {"properties": {}, "required": ["x"]}}]',
            "requires x",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "tools_config.json"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=words):
        load_tools_config(file)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_tools_config(tmp_path / "none.json")
