"""BFCL's own gold answers, played through the environment, score what the leaderboard gives."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from toolcall_python import PYTHON

from instar.envs import open_environment
from instar.envs.bfcl import BROKEN, MULTI, REWARD_SILENCE, SINGLE, BfclEnvironment, _is_test
from instar.errors import ConfigError, EnvironmentFailure
from instar.types import Message, Tool

QUIET: Message = {"role": "assistant", "content": "Done."}
GARBAGE: Message = {"role": "assistant", "content": "<tool_call>]{ la la"}


@pytest.fixture
async def place() -> AsyncIterator[BfclEnvironment]:
    async with open_environment("bfcl", {"python": PYTHON}) as opened:
        assert isinstance(opened, BfclEnvironment)
        yield opened


def calling(calls: list[tuple[str, dict[str, Any]]]) -> Message:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"c{n}", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for n, (name, arguments) in enumerate(calls)
        ],
    }


async def play(place: BfclEnvironment, name: str, replies: Iterator[Message]) -> float:
    await place.reset(name)
    for reply in replies:
        if (await place.step(reply))[1]:
            break
    return (await place.score())[0]


def given(found: dict[str, Any], spare: bool) -> dict[str, Any]:
    """One allowed value for each parameter; "" among them is the sign that it may be left out."""
    chosen = {}
    for key, allowed in found.items():
        if not isinstance(allowed, list):
            chosen[key] = allowed
        elif not (spare and "" in allowed) and (some := [one for one in allowed if one != ""]):
            chosen[key] = literal(some[0], spare)
        elif allowed == [""] and not spare:
            chosen[key] = ""
    return chosen


def literal(wanted: Any, spare: bool) -> Any:
    """A value with, in each object within it, one of what is allowed there."""
    if isinstance(wanted, dict):
        return given(wanted, spare)
    return [literal(one, spare) for one in wanted] if isinstance(wanted, list) else wanted


def in_java(value: Any, about: str) -> str:
    """A value as the Java text that the checker reads; its type stands in the description."""
    kind = re.search(r"This is Java (\w+) type", about)
    inner = re.search(r"elements are of type (\w+)", about)
    name = kind[1] if kind else "any"
    if isinstance(value, str):
        return value
    if name in ("ArrayList", "Array"):
        one = inner[1] if inner else "String"
        parts = ", ".join(in_java(each, f"This is Java {one} type") for each in value)
        if name == "Array":
            return f"new {one}[]{{{parts}}}"
        # Only in an ArrayList does the checker take the quotes of a text away.
        parts = ", ".join(f'"{each}"' for each in value) if one == "String" else parts
        return f"new ArrayList<>(Arrays.asList({parts}))" if value else "new ArrayList<>()"
    if name == "HashMap":
        puts = " ".join(f'put("{key}", {json.dumps(one)});' for key, one in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}" if value else "new HashMap<>()"
    return json.dumps(value) + {"long": "L", "float": "f"}.get(name, "")


def in_javascript(value: Any, _about: str) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def single_gold(
    name: str, tools: list[Tool], gold: list[dict[str, Any]], *, spare: bool
) -> Message:
    """A right reply; `spare` leaves out all that may be left out."""
    about = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    write = {"simple_java": in_java, "simple_javascript": in_javascript}.get(name.rsplit("_", 1)[0])
    calls = []
    for one in gold:
        ((function, parameters),) = one.items()
        function = function.replace(".", "_")
        values = given(parameters, spare)
        if write:
            properties = about[function]["properties"]
            values = {
                key: write(value, properties[key]["description"]) for key, value in values.items()
            }
        calls.append((function, values))
    return calling(calls)


def multi_gold(tools: list[Tool], turns: list[list[str]]) -> Iterator[Message]:
    order = {
        tool["function"]["name"]: list(tool["function"]["parameters"]["properties"])
        for tool in tools
    }
    for turn in turns:
        calls = []
        for text in turn:
            call = ast.parse(text, mode="eval").body
            assert isinstance(call, ast.Call)
            assert isinstance(call.func, ast.Name)
            values = [ast.literal_eval(one) for one in call.args]
            arguments = dict(zip(order[call.func.id], values, strict=False))
            arguments |= {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
            calls.append((call.func.id, arguments))
        if calls:
            yield calling(calls)
        yield QUIET


async def names_of(place: BfclEnvironment, category: str) -> list[str]:
    return await place._ids(category)


@pytest.mark.parametrize("category", [one for one in SINGLE if "relevance" not in one])
async def test_gold_calls_score_1_but_for_the_broken_ones(
    place: BfclEnvironment, category: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("instar.envs.bfcl.BROKEN", frozenset())
    wrong = set()
    names = await names_of(place, category)
    for name in names:
        tools = (await place._ask("task", name=name))["tools"]
        gold = await place._ask("gold", name=name)
        replies = [single_gold(name, tools, gold, spare=spare) for spare in (False, True)]
        if not any([await play(place, name, iter([reply])) for reply in replies]):
            wrong.add(name)
    assert wrong == {name for name in BROKEN if name in names}


@pytest.mark.parametrize("category", MULTI)
async def test_gold_conversations_score_1(place: BfclEnvironment, category: str) -> None:
    wrong = []
    for name in await names_of(place, category):
        task = await place._ask("task", name=name)
        later = [tool for tools in task["later"].values() for tool in tools]
        gold = await place._ask("gold", name=name)
        if await play(place, name, multi_gold([*task["tools"], *later], gold)) != 1:
            wrong.append((name, (await place.score())[1]["error"]))
    assert not wrong


@pytest.mark.parametrize("reply", [QUIET, GARBAGE], ids=["quiet", "garbage"])
async def test_saying_nothing_useful_scores_0_but_where_silence_is_right(
    place: BfclEnvironment, reply: Message
) -> None:
    for category in (*SINGLE, *MULTI):
        names = (await names_of(place, category))[:40]
        rewards = [await play(place, name, iter([reply] * 20)) for name in names]
        assert set(rewards) == {1.0 if category in REWARD_SILENCE else 0.0}, category


async def test_a_call_where_silence_is_right_scores_0(place: BfclEnvironment) -> None:
    for category in REWARD_SILENCE:
        for name in (await names_of(place, category))[:20]:
            assert await play(place, name, iter([calling([("anything", {})])])) == 0


async def test_any_call_is_right_where_only_relevance_is_asked(place: BfclEnvironment) -> None:
    name = (await names_of(place, "live_relevance"))[0]
    assert await play(place, name, iter([calling([("anything", {})])])) == 1


async def test_a_turn_that_never_ends_is_cut_and_scores_0(place: BfclEnvironment) -> None:
    name = "multi_turn_base_0"
    call = calling([("ls", {})])
    await place.reset(name)
    steps = 0
    done = False
    while not done:
        messages, done = await place.step(call)
        steps += 1
    assert steps == 21
    assert messages == []
    assert await place.score() == (
        0.0,
        {"category": "multi_turn_base", "valid": False, "error": "multi_turn:force_terminated"},
    )


async def test_calls_act_and_unknown_ones_get_an_error(place: BfclEnvironment) -> None:
    await place.reset("multi_turn_base_0")
    messages, done = await place.step(
        calling([("cd", {"folder": "document"}), ("no_such_tool", {}), ("ls", {})])
    )
    assert not done
    assert [message["tool_call_id"] for message in messages] == ["c0", "c1", "c2"]
    assert json.loads(messages[0]["content"]) == {"current_working_directory": "document"}
    assert "there is no tool no_such_tool" in messages[1]["content"]
    assert "final_report.pdf" in messages[2]["content"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"folder": "document'); __import__('os').system('touch /tmp/instar-escaped') #"},
        {"folder=__import__('os').system('touch /tmp/instar-escaped'), x": 1},
        {"__class__": {"a": [None, True, 1e308 * 10]}},
    ],
)
async def test_no_argument_is_run_as_code(
    place: BfclEnvironment, arguments: dict[str, Any]
) -> None:
    await place.reset("multi_turn_base_0")
    messages, done = await place.step(calling([("cd", arguments)]))
    assert not done
    assert messages
    assert not os.path.exists("/tmp/instar-escaped")  # noqa: PTH110, ASYNC240


async def test_one_attempt_does_not_see_what_another_did(place: BfclEnvironment) -> None:
    for _ in range(2):
        await place.reset("multi_turn_base_0")
        messages, _ = await place.step(calling([("mkdir", {"dir_name": "fresh"})]))
        assert "exists" not in messages[0]["content"]


async def test_a_withheld_tool_is_told_of_when_it_comes(place: BfclEnvironment) -> None:
    _, tools = await place.reset("multi_turn_miss_func_0")
    assert "sort" not in {tool["function"]["name"] for tool in tools}
    messages: list[Message] = []
    for _ in range(3):
        messages, _ = await place.step(QUIET)
    assert '"name": "sort"' in messages[0]["content"]
    answers, _ = await place.step(calling([("sort", {"file_name": "nothing.txt"})]))
    assert "there is no tool" not in answers[0]["content"]


async def test_a_worker_that_hangs_is_a_failure_of_the_world() -> None:
    async with open_environment("bfcl", {"python": PYTHON, "timeout_s": 0.001}) as place:
        with pytest.raises(EnvironmentFailure, match="the worker with bfcl_eval"):
            await place.tasks("train")


async def test_a_new_worker_takes_the_place_of_one_that_died(place: BfclEnvironment) -> None:
    await place.reset("multi_turn_base_0")
    process = place._worker._worker._process
    assert process is not None
    process.kill()
    await process.wait()
    with pytest.raises(EnvironmentFailure, match="gone"):
        await place.step(calling([("ls", {})]))
    assert await play(place, "irrelevance_0", iter([QUIET])) == 1


async def test_a_python_without_the_benchmark_is_named() -> None:
    async with open_environment("bfcl", {"python": "/nowhere/python"}) as place:
        with pytest.raises(EnvironmentFailure, match="/nowhere/python"):
            await place.tasks("train")
    async with open_environment("bfcl", {"python": sys.executable}) as place:
        with pytest.raises(ConfigError, match="make install-toolcall"):
            await place.tasks("train")


async def test_tasks_that_share_a_story_or_a_tool_are_in_one_split(place: BfclEnvironment) -> None:
    test = set(await place.tasks("test"))
    for number in range(200):
        assert len({f"{category}_{number}" in test for category in MULTI}) == 1
    assert _is_test("live_simple_7-4-0")
    assert _is_test("live_simple_8-4-1")
    assert not _is_test("live_simple_4-3-0")
