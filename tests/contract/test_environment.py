"""What every environment promises, whatever world it opens. A new one joins by its line here.

Those that need software of their own are left out where it is not installed;
`make test-toolcall` installs it.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_swe import small_tasks
from toolcall_python import PYTHON

from instar.envs import ENVIRONMENTS, bwrap, open_environment
from instar.errors import ConfigError, EnvironmentFailure, InstarError, ReplyError
from instar.protocols import Environment
from instar.types import Message, Tool

NEEDS_PYTHON = ("bfcl", "interpreter")
"""These want the Python of a virtual environment of their own."""
SANDBOXED = ("interpreter", "swe", "terminal")
HERE = sorted(name for name in ENVIRONMENTS if PYTHON or name not in NEEDS_PYTHON)
TASKS = 3
"""How many tasks of each split are looked at."""
NOTHING: Message = {"role": "assistant", "content": "I do not know."}


@cache
def swe_tasks() -> str:
    """A file of small tasks, since none come with instar."""
    folder = tempfile.TemporaryDirectory(prefix="instar-swe-")
    atexit.register(folder.cleanup)
    return str(small_tasks(Path(folder.name)))


def options_of(name: str) -> dict[str, Any]:
    if name in SANDBOXED and (bwrap.find_bwrap() is None or shutil.which("git") is None):
        pytest.skip(f"{name} needs git and a sandbox. {bwrap.HINT}")
    if name == "swe":
        return {"tasks": swe_tasks()}
    return {"python": PYTHON} if name in NEEDS_PYTHON else {}


@pytest.fixture(params=HERE)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    options_of(found)
    return found


@pytest.fixture
async def place(name: str) -> AsyncIterator[Environment]:
    async with open_environment(name, options_of(name)) as opened:
        yield opened


async def end(place: Environment, reply: Message = NOTHING) -> int:
    """Say the same thing until the attempt is over; how many steps that took."""
    for steps in range(1, 200):
        _, done = await place.step(reply)
        if done:
            return steps
    raise AssertionError("an agent that only says it does not know is never told to stop")


def check_messages(messages: list[Message]) -> None:
    assert messages
    assert messages[-1]["role"] in ("user", "tool")
    for message in messages:
        assert message["role"] in ("system", "user", "assistant", "tool")
        for call in message.get("tool_calls") or []:
            assert call["type"] == "function"
            assert call["id"]
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
        if not message.get("tool_calls"):
            assert isinstance(message["content"], str | list)
        if message["role"] == "tool":
            assert message["tool_call_id"]


def check_tools(tools: list[Tool]) -> None:
    names = [tool["function"]["name"] for tool in tools]
    assert len(set(names)) == len(names)
    for tool in tools:
        assert tool["type"] == "function"
        assert isinstance(tool["function"].get("description", ""), str)
        schema = tool["function"].get("parameters") or {"type": "object", "properties": {}}
        assert schema["type"] == "object"
        assert set(schema.get("required", ())) <= set(schema["properties"])


async def test_tasks_are_stable_and_splits_share_none(name: str, place: Environment) -> None:
    train, test = await place.tasks("train"), await place.tasks("test")
    assert train
    assert test
    assert len(set(train)) == len(train)
    assert len(set(test)) == len(test)
    assert not set(train) & set(test)
    assert await place.tasks("train") == train
    async with open_environment(name, options_of(name)) as other:
        assert await other.tasks("train") == train
        assert await other.tasks("test") == test


async def test_an_unknown_split_or_task_is_refused(place: Environment) -> None:
    with pytest.raises(ConfigError):
        await place.tasks("validation")
    with pytest.raises(ConfigError):
        await place.reset("there is no such task")


async def test_reset_gives_a_conversation_and_tools(place: Environment) -> None:
    for split in ("train", "test"):
        for task in (await place.tasks(split))[:TASKS]:
            messages, tools = await place.reset(task)
            check_messages(messages)
            check_tools(tools)
            json.dumps([messages, tools])


async def test_the_same_task_begins_the_same_way(name: str, place: Environment) -> None:
    task = (await place.tasks("train"))[0]
    first = await place.reset(task)
    await end(place)
    assert await place.reset(task) == first
    async with open_environment(name, options_of(name)) as other:
        assert await other.reset(task) == first


async def test_an_attempt_ends_and_is_scored(place: Environment) -> None:
    for split in ("train", "test"):
        for task in (await place.tasks(split))[:TASKS]:
            await place.reset(task)
            await end(place)
            reward, details = await place.score()
            assert 0 <= reward <= 1
            assert isinstance(details, Mapping)
            json.dumps(dict(details))
            assert await place.score() == (reward, details)


async def test_step_after_the_end_raises(place: Environment) -> None:
    await place.reset((await place.tasks("train"))[0])
    await end(place)
    with pytest.raises(InstarError):
        await place.step(NOTHING)


async def test_nothing_can_be_done_before_reset(place: Environment) -> None:
    with pytest.raises(EnvironmentFailure):
        await place.step(NOTHING)
    with pytest.raises(EnvironmentFailure):
        await place.score()


async def test_a_strange_reply_is_the_models_fault_and_not_the_worlds(place: Environment) -> None:
    """Whatever a model may say is at most a ReplyError: any other is left out of the loss."""
    call = {"id": "x", "type": "function", "function": {"name": "no_such", "arguments": "{}"}}
    odd: list[Message] = [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "<tool_call>{"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": "\x00\ud800" * 3},
    ]
    task = (await place.tasks("train"))[0]
    for reply in odd:
        await place.reset(task)
        with suppress(ReplyError):
            _, done = await place.step(reply)
            if not done:
                await end(place)
        assert 0 <= (await place.score())[0] <= 1


async def test_two_places_share_nothing(name: str, place: Environment) -> None:
    one, two = (await place.tasks("train"))[:2]
    async with open_environment(name, options_of(name)) as other:
        await place.reset(one)
        await other.reset(two)
        steps = await end(place)
        reward = await place.score()
        # The other place is still in the middle of its own task.
        assert await end(other) >= 1
        await place.reset(one)
        assert await end(place) == steps
        assert await place.score() == reward


async def test_closing_leaves_no_process_behind(name: str) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    async with open_environment(name, options_of(name)) as opened:
        await opened.reset((await opened.tasks("train"))[0])
        await opened.step(NOTHING)
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before


async def test_an_unknown_option_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match="no_such_option"):
        async with open_environment(name, {**options_of(name), "no_such_option": 1}):
            pass


def test_an_unknown_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="known are"):
        open_environment("no-such-world")
