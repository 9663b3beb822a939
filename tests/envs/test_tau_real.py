"""The real tasks of tau2-bench: what gold and doing nothing earn, by scores that are theirs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from instar.envs import open_environment
from instar.envs.tau.worker_world import VENV, open_world
from instar.envs.tau.world import Action

TASKS = {"airline": (30, 20, 50), "retail": (74, 40, 114), "telecom": (74, 40, 114)}
IDLE = {"airline": 19, "retail": 7, "telecom": 0}
"""Tasks that reward doing nothing."""


@pytest.mark.parametrize("domain", TASKS)
async def test_gold_scores_one_everywhere_and_nothing_what_the_benchmark_gives(domain: str) -> None:
    gold, idle = 0.0, 0.0
    async with open_world(domain, {}) as world:
        about = await world.describe()
        splits = about.splits
        assert tuple(len(splits[one]) for one in ("train", "test", "base")) == TASKS[domain]
        assert not set(splits["train"]) & set(splits["test"])
        assert bool(about.user_tools) == (domain == "telecom")
        for task in splits["base"]:
            scenario = await world.start(task)
            nothing = (await world.score([]))[0]
            assert scenario.idle is (nothing == 1.0)
            idle += nothing
            await world.start(task)
            for action in scenario.gold:
                await world.call(action)
            assert not scenario.needs_judge
            reward, details = await world.score([" ".join(scenario.outputs)])
            assert reward == 1.0, (task, details)
            gold += reward
    assert (gold, idle) == (TASKS[domain][2], IDLE[domain])


@pytest.mark.parametrize("domain", TASKS)
def test_scores_are_those_of_the_packages_own_scorers(domain: str) -> None:
    script = str(Path(__file__).with_name("official_tau.py"))
    found = subprocess.run([VENV, script, domain], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1]) == {
        "compared": 4 * TASKS[domain][2],
        "differ": [],
    }


async def test_tools_say_what_is_wrong_with_a_call() -> None:
    async with open_world("airline", {}) as world:
        await world.start("0")
        for name, given, words in (
            ("fly", {}, "there is no tool fly"),
            ("get_user_details", {}, "required property"),
            ("get_user_details", {"user_id": 7}, "not of type"),
            ("get_user_details", {"user_id": "nobody"}, "not found"),
        ):
            found = await world.call(Action(name=name, arguments=given))
            assert found.startswith("Error: ")
            assert words in found


async def test_worlds_do_not_see_each_others_changes() -> None:
    async with open_world("retail", {}) as one, open_world("retail", {}) as other:
        tasks = (await one.describe()).splits["base"]
        changing = None
        for task in tasks:
            scenario = await one.start(task)
            await other.start(task)
            for action in scenario.gold:
                await one.call(action)
            if (await one.score(list(scenario.outputs)))[0] == 1.0 and not (
                await other.score(list(scenario.outputs))
            )[0]:
                changing = task
                break
        assert changing is not None
        assert (await other.score([]))[0] == 0.0


async def test_the_environment_speaks_of_the_policy_and_ends_on_a_transfer() -> None:
    options = {"domain": "airline", "user": "script", "lines": ["Cancel EHGLP3, please."]}
    async with open_environment("tau", options) as environment:
        messages, tools = await environment.reset("0")
        assert "basic economy" in messages[0]["content"]
        assert len(tools) == 14
        call = {
            "id": "c",
            "function": {"name": "transfer_to_human_agents", "arguments": '{"summary": "x"}'},
        }
        answers, done = await environment.step({"role": "assistant", "tool_calls": [call]})
        assert done, answers
        # Task 0 is one of the nineteen that reward doing nothing.
        assert (await environment.score())[0] == 1.0
