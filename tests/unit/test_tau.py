"""tau's own parts: the shop, its customers, and what a reply of the agent means."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from instar.envs import open_environment
from instar.envs.tau import TauEnvironment, user_maker
from instar.envs.tau import users as tau_users
from instar.envs.tau.shop import DATABASE, TASKS, TOOLS, Shop, act
from instar.envs.tau.users import LlmUser, RuleUser, ScriptUser
from instar.envs.tau.worker_world import open_world
from instar.envs.tau.world import STOP, TRANSFER, Action, Scenario
from instar.envs.worker import Worker
from instar.errors import ConfigError, EnvironmentFailure, ReplyError
from instar.types import Message

ECHO = """
import json, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "hang":
        time.sleep(1000)
    if asked["do"] == "die":
        sys.exit("I am dying")
    if asked["do"] == "noise":
        print("what foreign code prints")
    if asked["do"] == "fail":
        print(json.dumps({"id": asked["id"], "error": "no such thing"}), flush=True)
        continue
    print(json.dumps({"id": asked["id"], "ok": asked.get("say")}), flush=True)
"""


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def called(name: str, **given: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(given)}
    return {"id": "c1", "type": "function", "function": function}


def calling(name: str, **given: Any) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": [called(name, **given)]}


def shop(*lines: str) -> TauEnvironment:
    options = {"user": "script", "lines": list(lines)} if lines else {}
    return TauEnvironment(Shop(), user_maker(options, "shop"))


@pytest.mark.parametrize("task", TASKS)
async def test_gold_scores_one_on_every_task_and_nothing_else_by_accident(task: str) -> None:
    world = Shop()
    scenario = await world.start(task)
    for action in scenario.gold:
        assert not (await world.call(action)).startswith("Error")
    assert (await world.score(list(scenario.outputs)))[0] == 1.0
    await world.start(task)
    # Doing nothing is right where the rules of the shop do not allow what is asked for.
    refused = scenario.gold[-1].name == "get_booking" and not scenario.outputs
    assert scenario.idle is refused
    assert (await world.score([]))[0] == float(refused)
    await world.start(task)
    await world.call(Action(name="cancel_booking", arguments={"booking_id": "B159"}))
    cancels = Action(name="cancel_booking", arguments={"booking_id": "B159"})
    assert (await world.score(list(scenario.outputs)))[0] == float(cancels in scenario.gold)


async def test_splits_share_no_task_and_both_have_refusals() -> None:
    splits = (await Shop().describe()).splits
    assert len(splits["train"]) == 48
    assert len(splits["test"]) == 24
    assert not set(splits["train"]) & set(splits["test"])
    for split in splits.values():
        assert any(TASKS[name].gold[-1].name == "get_booking" for name in split)
        assert any(TASKS[name].gold[-1].name == "cancel_booking" for name in split)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("fly", {}, "there is no tool fly"),
        ("get_booking", {}, "takes the texts booking_id"),
        ("get_booking", {"booking_id": 7}, "takes the texts booking_id"),
        ("get_booking", {"booking_id": "B1", "more": "x"}, "takes the texts booking_id"),
        ("get_booking", {"booking_id": "B1"}, "no booking B1"),
        ("get_price", {"kind": "jet"}, "no such kind"),
    ],
)
def test_wrong_calls_are_answered_and_change_nothing(
    name: str, given: dict[str, Any], words: str
) -> None:
    db = {key: dict(one) for key, one in DATABASE.items()}
    found = act(db, Action(name=name, arguments=given))
    assert found.startswith("Error: ")
    assert words in found
    assert db == DATABASE


async def test_a_tool_call_is_answered_and_a_message_goes_to_the_user() -> None:
    environment = shop("I want a helmet on B150.", "Thanks.", f"Bye {STOP}")
    messages, tools = await environment.reset("shop-0")
    assert [one["role"] for one in messages] == ["system", "user"]
    assert "Spoke & Co" in messages[0]["content"]
    # The template says how to call; the prompt names no tags that might be others.
    assert "<tool" not in messages[0]["content"]
    assert tools == list(TOOLS)
    (answer,), done = await environment.step(calling("get_booking", booking_id="B150"))
    assert answer["role"] == "tool"
    assert answer["tool_call_id"] == "c1"
    assert json.loads(answer["content"]) == DATABASE["B150"]
    assert not done
    (answer,), done = await environment.step(said("Here it is."))
    assert (answer, done) == ({"role": "user", "content": "Thanks."}, False)
    assert (await environment.score())[0] == 0.0
    _, done = await environment.step(said("Bye."))
    assert done


async def test_only_the_first_of_several_calls_is_made_and_the_others_are_told() -> None:
    environment = shop("hello")
    await environment.reset("shop-0")
    reply = calling("cancel_booking", booking_id="B150")
    reply["tool_calls"].append(called("cancel_booking", booking_id="B151"))
    answers, _ = await environment.step(reply)
    assert len(answers) == 2
    assert "not made" in answers[1]["content"]
    second, _ = await environment.step(calling("get_booking", booking_id="B151"))
    assert json.loads(second[0]["content"])["status"] == "booked"


@pytest.mark.parametrize(
    "text",
    ["", "   ", '<tool_call>\n{"name": "get_booking"', "Sure. <tool_call>nonsense</tool_call>"],
)
async def test_half_a_tool_call_never_reaches_the_user(text: str) -> None:
    environment = shop("hello", "the user must not be asked")
    await environment.reset("shop-0")
    with pytest.raises(ReplyError, match="no message to the user"):
        await environment.step(said(text))


@pytest.mark.parametrize("arguments", ["{", "[1]", "7", '"x"'])
async def test_arguments_that_are_no_object_are_told_to_the_model(arguments: str) -> None:
    environment = shop("hello")
    await environment.reset("shop-0")
    reply = calling("get_booking")
    reply["tool_calls"][0]["function"]["arguments"] = arguments
    (answer,), done = await environment.step(reply)
    assert answer["content"] == "Error: the arguments are no JSON object"
    assert not done


async def test_handing_over_ends_the_conversation() -> None:
    environment = shop("hello")
    await environment.reset("shop-4")
    assert TASKS["shop-4"].gold[-1].name == TRANSFER
    _, done = await environment.step(calling(TRANSFER, summary="a refund"))
    assert done
    assert await environment.score() == (
        1.0,
        {"done": True, "database": True, "missing": [], "transferred": True},
    )


async def test_what_was_not_finished_earns_nothing() -> None:
    environment = shop("hello", "and?")
    refused = next(name for name, one in TASKS.items() if one.gold[-1].name == "get_booking")
    await environment.reset(refused)
    await environment.step(said("I cannot do that."))
    assert await environment.score() == (0.0, {"done": False, "idle": True})


async def test_the_rule_user_says_what_it_is_asked_for() -> None:
    scenario = TASKS["shop-5"]
    user = RuleUser(scenario)
    assert await user.first() == "Hello, I would like to cancel my booking."
    facts = scenario.facts
    known = f"It is {facts['booking']}, and my phone number is {facts['phone']}."
    assert await user.reply("Which booking is it?") == known
    assert await user.reply("May I have your phone number?") == known
    assert await user.reply("Shall I cancel it?") == "Yes, please."
    assert await user.reply("Lovely weather.") == "Can you do that for me?"
    assert STOP in await user.reply("Your booking is cancelled.")
    bored = RuleUser(scenario)
    replies = [await bored.reply("hm") for _ in range(3)]
    assert STOP in replies[-1]
    assert STOP not in replies[0]


async def test_a_script_that_is_over_ends_the_conversation() -> None:
    user = ScriptUser(["one"])
    assert (await user.first(), await user.reply("x")) == ("one", STOP)


async def test_a_model_plays_the_customer_and_may_use_its_phone() -> None:
    seen: list[list[Message]] = []
    used: list[tuple[str, dict[str, Any]]] = []
    answers: list[Message] = [
        {"role": "assistant", "content": "My phone is broken."},
        {"role": "assistant", "tool_calls": [called("check_sim")]},
        {"role": "assistant", "content": f"It works now. {STOP}"},
    ]

    async def complete(history: list[Message], tools: Any) -> Message:
        seen.append(list(history))
        return answers[len(seen) - 1]

    async def use(name: str, given: dict[str, Any]) -> str:
        used.append((name, given))
        return "the SIM is fine"

    scenario = Scenario(task="t", instruction="You are Zoe. Your phone is broken.")
    user = LlmUser(scenario, complete, guidelines="Be short.", tools=TOOLS, use=use)
    assert await user.first() == "My phone is broken."
    assert "You are Zoe" in seen[0][0]["content"]
    assert STOP in await user.reply("Please look at your SIM.")
    assert used == [("check_sim", {})]
    assert seen[2][-1] == {"role": "tool", "tool_call_id": "c1", "content": "the SIM is fine"}


@pytest.mark.parametrize("content", [None, "", "  "])
async def test_a_customer_that_says_nothing_is_nobody_elses_fault(content: str | None) -> None:
    async def complete(history: list[Message], tools: Any) -> Message:
        return {"role": "assistant", "content": content}

    user = LlmUser(Scenario(task="t", instruction=""), complete, guidelines="")
    with pytest.raises(EnvironmentFailure, match="said nothing"):
        await user.first()


async def test_an_endpoint_is_asked_as_openai_is_and_its_failure_is_the_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if len(asked) > 1:
            return httpx.Response(500)
        message = {"role": "assistant", "content": "hello", "tool_calls": None}
        return httpx.Response(200, json={"choices": [{"message": message}]})

    real = httpx.AsyncClient

    def client(**options: Any) -> httpx.AsyncClient:
        return real(transport=httpx.MockTransport(answer), **options)

    monkeypatch.setattr(tau_users.httpx, "AsyncClient", client)
    options = {"user": "llm", "user_url": "http://users/v1/", "user_model": "m"}
    user = user_maker(options, "airline")(
        Scenario(task="t", instruction="You are Zoe."), Shop(), await Shop().describe()
    )
    assert await user.first() == "hello"
    assert str(asked[0].url) == "http://users/v1/chat/completions"
    assert asked[0].headers["x-no-train"] == "1"
    assert json.loads(asked[0].content)["model"] == "m"
    with pytest.raises(EnvironmentFailure, match="cannot be asked"):
        await user.reply("x")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"domain": "bakery"}, "no domain 'bakery'"),
        ({"domian": "shop"}, "no option 'domian'"),
        ({"user": "cat"}, "one of rule, script"),
        ({"user": "llm"}, "user_url"),
        ({"user": "llm", "user_url": "http://x", "user_key": "HOME"}, "user_key is HOME"),
    ],
)
async def test_wrong_options_say_what_is_known(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        async with open_environment("tau", options):
            pass


async def test_unknown_environments_and_splits_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no environment 'chess'; known are .*tau"):
        open_environment("chess")
    async with open_environment("tau") as environment:
        with pytest.raises(ConfigError, match="no split 'dev'"):
            await environment.tasks("dev")
        with pytest.raises(ConfigError, match="no task"):
            await environment.reset("shop-999")


def test_importing_tau_leaves_the_environment_alone() -> None:
    """It must not set a key of the person to something else, nor load heavy packages."""
    code = (
        "import os, sys; before = dict(os.environ); import instar.envs.tau.agent; "
        "assert dict(os.environ) == before; "
        "assert not {'litellm', 'torch', 'inspect_ai', 'tau_bench'} & set(sys.modules)"
    )
    env = {**os.environ, "GEMINI_API_KEY": "mine", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    file = tmp_path / "echo.py"
    file.write_text(ECHO)
    return file


async def test_a_worker_answers_many_at_once_and_noise_is_no_answer(echo: Path) -> None:
    worker = Worker([sys.executable, str(echo)], timeout_s=20)
    assert await worker.ask("noise", say=1) == 1
    asked = [worker.ask("say", say=n) for n in range(50)]
    assert await asyncio.gather(*asked) == list(range(50))
    with pytest.raises(EnvironmentFailure, match="no such thing"):
        await worker.ask("fail")
    assert await worker.ask("say", say="still here") == "still here"
    await worker.close()


async def test_a_worker_that_hangs_or_dies_is_said_to_and_started_again(echo: Path) -> None:
    worker = Worker([sys.executable, str(echo)], timeout_s=0.5, name="echo")
    with pytest.raises(EnvironmentFailure, match=r"echo did not answer hang within 0\.5 s"):
        await worker.ask("hang")
    worker._timeout_s = 20
    assert await worker.ask("say", say=2) == 2
    with pytest.raises(EnvironmentFailure, match=r"echo is gone.*I am dying"):
        await worker.ask("die")
    assert await worker.ask("say", say=3) == 3
    assert worker.generation == 3
    await worker.close()
    missing = Worker(["/no/such/python"])
    with pytest.raises(EnvironmentFailure, match="cannot be started"):
        await missing.ask("say")


SIERRA = """
from types import SimpleNamespace as Made

print("foreign code prints")

class Environment:
    def __init__(self, index):
        gold = Made(name="return", kwargs={"item": index})
        self.task = Made(instruction="Return it.", actions=[gold], outputs=["7"])
        self.tasks, self.tools_map, self.actions = [self.task] * 3, {"return": None}, []
        self.wiki, self.tools_info = "Be kind.", []

    def step(self, action):
        self.actions.append(action)
        return Made(observation=f"{action.name} done")

    def calculate_reward(self):
        done = [one.name for one in self.actions]
        info = Made(model_dump=lambda: {"done": done})
        return Made(reward=float(done == ["return", "respond"]), info=info)

def get_env(domain, user, model, split, task_index):
    return Environment(task_index)
"""


async def test_a_package_of_sierras_is_played_in_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tau_bench"
    (package / "envs").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "envs" / "__init__.py").write_text(SIERRA)
    (package / "types.py").write_text(
        "from types import SimpleNamespace as Action\nRESPOND_ACTION_NAME = 'respond'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with open_world("tau_bench/retail", {"python": sys.executable}) as world:
        about = await world.describe()
        assert (about.policy, about.splits["test"]) == ("Be kind.", ["test-0", "test-1", "test-2"])
        scenario = await world.start("test-2")
        assert scenario.gold == (Action(name="return", arguments={"item": 2}),)
        assert (scenario.idle, scenario.needs_judge) == (False, False)
        assert await world.call(scenario.gold[0]) == "return done"
        assert await world.score(["7"]) == (1.0, {"done": ["return", "respond"]})
        await world.close()
        with pytest.raises(EnvironmentFailure, match="KeyError"):
            await world.call(scenario.gold[0])
