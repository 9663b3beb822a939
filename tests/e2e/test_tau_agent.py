"""The trainable agent through a gateway: one test for each way its forerunner went wrong."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gate import BYTES, END, Gate, gate
from worlds import client_of, perfect

from instar.envs import open_environment
from instar.envs.client import Reply
from instar.envs.tau import TauEnvironment
from instar.envs.tau.agent import InteractionResult, Status, TrainableAgent, one_sequence
from instar.envs.tau.shop import TASKS, TOOLS, Shop
from instar.envs.tau.sierra import SierraEnvironment
from instar.envs.tau.users import ScriptUser
from instar.envs.tau.world import STOP
from instar.errors import ConfigError, EnvironmentFailure

HELMET = 2
"""shop-2 wants a helmet: two calls and a message."""


async def solve(opened: Gate, index: int = HELMET, **more: Any) -> InteractionResult:
    client = client_of(opened)
    agent = TrainableAgent(client=client, decode=BYTES_decode)
    try:
        async with open_environment("tau") as environment:
            return await agent.asolve(environment, task_index=index, **more)
    finally:
        await client.close()


def BYTES_decode(ids: Any) -> str:
    return str(BYTES.decode(list(ids), skip_special_tokens=False))


def text_of(result: InteractionResult, value: int) -> str:
    """The text of the tokens after the prompt whose mask is `value`."""
    after = result.tokens[len(result.tokens) - result.response_length :]
    return BYTES_decode([t for t, m in zip(after, result.loss_mask, strict=True) if m == value])


async def test_tokens_are_the_engines_and_the_mask_is_what_it_sampled(tmp_path: Path) -> None:
    """Bugs 1, 2, 3 and 6: lost generation prompts, re-tokenised text, a newline that was never
    sampled, and no log-probs to notice any of it by."""
    async with gate(tmp_path, perfect("shop-2")) as opened:
        result = await solve(opened)
        turns = await opened.turns(result.session)
        assert result.status is Status.COMPLETED
        assert result.reward == 1.0
        assert tuple(result.tokens) == turns[-1].ids
        # Each prompt that the engine had is a prefix: the generation prompts are all there.
        for turn in turns:
            assert tuple(result.tokens[: len(turn.ids)]) == turn.ids
        assert sum(result.loss_mask) == sum(len(turn.sampled_ids) for turn in turns)
        lines = [BYTES_decode(turn.sampled_ids) for turn in turns]
        assert text_of(result, 1) == "".join(lines)
        assert lines[-1] == "It is done." + END
        assert result.response_length == len(result.tokens) - len(turns[0].prompt_ids)
        assert text_of(result, 0).count("<|im_start|>assistant\n") == 2
        assert all(len(turn.logprobs) == len(turn.sampled_ids) for turn in turns)
        # Bug 19: the tools are in every prompt, wherever the template puts them.
        assert all(turn.tools == TOOLS for turn in turns)
        assert result.prompt == BYTES_decode(turns[0].prompt_ids)
        assert result.response == "It is done."
        assert [one["role"] for one in result.messages] == [
            *("system", "user", "assistant", "tool", "assistant", "tool", "assistant", "user"),
        ]


async def test_a_cut_reply_is_truncated_and_nothing_is_made_up(tmp_path: Path) -> None:
    """Bug 4: half a tool call went to the customer, with an end that nobody sampled."""
    async with gate(tmp_path, perfect("shop-2")) as opened:
        result = await solve(opened, sampling_params={"max_new_tokens": 20})
        (turn,) = await opened.turns(result.session)
        assert result.status is Status.TRUNCATED
        assert result.reward == 0.0
        assert turn.finish == "length"
        assert text_of(result, 1) == BYTES_decode(turn.sampled_ids)
        assert END not in text_of(result, 1)
        assert result.messages[-1]["role"] == "assistant"


async def test_a_template_that_rewrites_history_is_said_and_not_mixed_up() -> None:
    """Bug 5: where earlier thinking is dropped, the tokens of that turn are no longer there."""
    first = Reply(
        message={}, finish="stop", turn="1", tokens=3, version="", prompt_ids=(1, 2),
        sampled_ids=(7, 8, 9),
    )  # fmt: skip
    second = Reply(
        message={}, finish="stop", turn="2", tokens=1, version="", prompt_ids=(1, 2, 9, 4),
        sampled_ids=(5,),
    )  # fmt: skip
    prompt, tokens, mask, left_out = one_sequence([first, second])
    assert (prompt, tokens, mask, left_out) == ((1, 2), [1, 2, 9, 4, 5], [0, 0, 0, 0, 1], 1)
    assert one_sequence([]) == ((), [], [], 0)


@dataclass
class Blocking:
    """Sierra's interface: everything blocks, and the customer is asked inside of it."""

    barrier: threading.Barrier | None = None
    fails: str = ""
    tasks: list[int] = field(default_factory=lambda: [0, 1])
    wiki: str = "Be kind."
    tools_info: list[Any] = field(default_factory=list)
    acted: list[Any] = field(default_factory=list)

    def reset(self, task_index: int) -> Any:
        self._maybe("reset")
        return SimpleNamespace(observation="Hello.", info={"task": task_index})

    def step(self, action: Any) -> Any:
        self._maybe("step")
        self.acted.append(action)
        if self.barrier is not None:
            self.barrier.wait(20)
        return SimpleNamespace(observation="###STOP###", reward=1.0, done=True, info={"n": 1})

    def _maybe(self, what: str) -> None:
        if self.fails == what:
            raise ConnectionError("the customer's model did not answer")


def sierra(env: Blocking) -> SierraEnvironment:
    return SierraEnvironment(env, make_action=lambda **given: given)


async def test_blocking_environments_run_at_once(tmp_path: Path) -> None:
    """Bug 7: each waited for all others. Here each waits for the other: one thread would hang."""
    barrier = threading.Barrier(2)
    async with gate(tmp_path, [{"text": "Hello."}] * 2) as opened:
        client = client_of(opened)
        agent = TrainableAgent(client=client, step_timeout_s=20)
        results = await asyncio.gather(
            *(agent.asolve(sierra(Blocking(barrier)), task_index=n) for n in range(2))
        )
        await client.close()
    assert [one.status for one in results] == [Status.COMPLETED] * 2
    assert [one.reward for one in results] == [1.0] * 2
    assert [one.info["task"] for one in results] == [0, 1]


@pytest.mark.parametrize("where", ["reset", "step"])
async def test_a_failed_customer_aborts_one_attempt_and_blames_nobody(
    tmp_path: Path, where: str
) -> None:
    """Bugs 8, 9 and 10: it killed the run, or became a reward of 0 under a status of text."""
    async with gate(tmp_path, [{"text": "Hello."}]) as opened:
        client = client_of(opened)
        agent = TrainableAgent(client=client)
        result = await agent.asolve(sierra(Blocking(fails=where)), task_index=0)
        await client.close()
    assert result.status is Status.ABORTED
    assert isinstance(result.status, Status)
    assert result.status.value == "aborted"
    assert result.reward is None
    assert "did not answer" in result.info["why"]


async def test_attempts_keep_their_group_and_never_share_a_session(tmp_path: Path) -> None:
    """Bug 11: all samples of a task had one index."""
    async with gate(tmp_path, [{"text": "It is done."}] * 2) as opened:
        client = client_of(opened)
        agent = TrainableAgent(client=client, group="g1")
        async with open_environment("tau") as environment:
            one = await agent.asolve(environment, task_index=HELMET)
            two = await agent.asolve(environment, task_index=HELMET)
        await client.close()
        assert one.session != two.session
        assert {turn.group for turn in await opened.all_turns()} == {"g1"}


async def test_the_test_split_is_played_where_it_is_asked_for(tmp_path: Path) -> None:
    """Bug 12: evaluation ran on training tasks."""
    async with gate(tmp_path, [{"text": "It is done."}] * 2) as opened:
        result = await solve(opened, 0, rollout_args={"split": "test"})
        assert "/shop-48/" in result.session
        result = await solve(opened, 0)
        assert "/shop-0/" in result.session


async def test_a_full_context_ends_in_good_order(tmp_path: Path) -> None:
    """Bug 13: there was no budget, and the engine's refusal killed the run."""
    long = [{"tool_calls": [{"name": "get_price", "arguments": {"kind": "city"}}]}] * 50
    async with gate(tmp_path, long, engine__context=3000) as opened:
        result = await solve(opened)
        assert result.status is Status.TRUNCATED
        assert "context holds 3000" in result.info["why"]
        assert len(result.tokens) <= 3000
        assert result.reward == 0.0


async def test_malformed_calls_are_the_models_fault_and_stay_from_the_customer(
    tmp_path: Path,
) -> None:
    """Bug 14: raw markup was read out to the customer."""
    heard: list[str] = []

    class Listening(ScriptUser):
        async def reply(self, text: str) -> str:
            heard.append(text)
            return STOP

    async with gate(tmp_path, [{"text": '<tool_call>\n{"name": "get_boo'}]) as opened:
        client = client_of(opened)
        environment = TauEnvironment(Shop(), lambda *_: Listening(["hello"]))
        result = await TrainableAgent(client=client).asolve(environment, task_index=0)
        await client.close()
        assert (result.status, result.reward) == (Status.FAILED, 0.0)
        assert heard == []
        # It is trained all the same: those tokens were sampled and they failed.
        assert sum(result.loss_mask) > 0


async def test_a_second_call_in_one_reply_is_neither_made_nor_drawn(tmp_path: Path) -> None:
    """Bug 15: calls that were never made stayed in the history and were trained."""
    two = {
        "tool_calls": [
            {"name": "get_price", "arguments": {"kind": "city"}},
            {"name": "get_price", "arguments": {"kind": "road"}},
        ]
    }
    async with gate(tmp_path, [two, {"text": "It costs 18."}]) as opened:
        result = await solve(opened)
        first = (await opened.turns(result.session))[0]
        assert len(first.reply["tool_calls"]) == 1
        assert BYTES_decode(first.sampled_ids).endswith('"city"}}\n</tool_call>\n')
        assert [one["role"] for one in result.messages].count("tool") == 1


async def test_no_steps_and_no_arguments_are_fine(tmp_path: Path) -> None:
    """Bugs 17 and 18: an unbound name, and a default that could not be used."""
    async with gate(tmp_path) as opened:
        result = await solve(opened, max_num_steps=0)
        assert (result.status, result.reward, result.tokens) == (Status.TRUNCATED, 0.0, [])
        client = client_of(opened)
        async with open_environment("tau") as environment:
            result = await TrainableAgent(client=client).asolve(environment)
        assert "/shop-0/" in result.session
        assert result.prompt.startswith("system: You are a customer service agent")
        with pytest.raises(ConfigError, match="task_index is 48"):
            await solve(opened, 48)
        with pytest.raises(ConfigError, match="sampling_params has 'n'"):
            await solve(opened, sampling_params={"n": 2})
        await client.close()


async def test_each_step_costs_what_it_adds(tmp_path: Path) -> None:
    """Bug 22: every turn was rendered and tokenised anew. Here it extends what there is."""
    async with gate(tmp_path, perfect("shop-2")) as opened:
        result = await solve(opened)
        turns = await opened.turns(result.session)
        assert [turn.extends for turn in turns] == [False, True, True]
        assert await opened.metric("instar_stitched_total") == len(turns)


async def test_sierras_calls_are_actions_of_theirs() -> None:
    env = Blocking()
    environment = sierra(env)
    messages, _ = await environment.reset("1")
    assert messages[0]["content"].endswith("<policy>\nBe kind.\n</policy>")
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answers, done = await environment.step({"role": "assistant", "tool_calls": [call, call]})
    assert env.acted == [{"name": "f", "kwargs": {"a": 1}}]
    assert [one["role"] for one in answers] == ["tool", "tool"]
    assert done
    assert (await environment.score())[0] == 1.0
    bad = {"id": "c", "function": {"name": "f", "arguments": "["}}
    (answer,), done = await environment.step({"role": "assistant", "tool_calls": [bad]})
    assert answer["content"].startswith("Error")
    assert not done
    await environment.step({"role": "assistant", "content": "Hello"})
    assert env.acted[-1] == {"name": "respond", "kwargs": {"content": "Hello"}}
    with pytest.raises(EnvironmentFailure, match="ConnectionError"):
        await sierra(Blocking(fails="reset")).reset("0")


def test_the_shop_has_the_task_these_tests_use() -> None:
    assert [one.name for one in TASKS[f"shop-{HELMET}"].gold] == ["get_booking", "add_helmet"]
