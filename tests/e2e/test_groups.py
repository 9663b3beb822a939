"""From played attempts to samples, versions and a gate: the whole path, with known policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate import BYTES, END, gate
from test_learning import TRAINING, Bench
from worlds import Steps, opened_with, perfect, run_plan

from instar.batch.credit import credit
from instar.batch.render import ChatRenderer
from instar.config import RolloutConfig, TrainingConfig
from instar.envs.runner import Plan
from instar.envs.tau.shop import TASKS
from instar.learn.batches import Prepared, prepare, settings_of
from instar.learn.groups import HELD_OUT, is_held_out, judged_groups
from instar.learn.learner import Learner
from instar.record.attempts import AttemptBook
from instar.record.forget import forget_session, pending_rebuilds
from instar.record.judged import JudgedTurns
from instar.record.store import TurnStore, open_store
from instar.types import Attempt, AttemptStatus, NextState, Verdict

BINARY = TrainingConfig(method="binary", holdout_share=0.0)


async def prepared_of(store: TurnStore, *, merged: bool = True) -> Prepared | None:
    groups = await AttemptBook(store).groups("local", limit=99)
    judged = await judged_groups("local", groups, turns_of=store.turns, ages={})
    return prepare(
        credit(judged, BINARY.method, settings_of(BINARY)),
        training=BINARY,
        renderer=ChatRenderer.for_bytes(),
        version="base",
        max_tokens=100_000,
        all_of_it=True,
        merged=merged,
    )


def spoken(prepared: Prepared) -> Counter[tuple[str, float]]:
    """Each trained turn as the text that was sampled, with the advantage of its tokens."""
    out: Counter[tuple[str, float]] = Counter()
    for sample in prepared.batch.samples:
        for index in range(len(sample.turns)):
            entries = [at for at, turn in enumerate(sample.turn_index) if turn == index]
            ids = [sample.tree.ids[sample.at[entry]] for entry in entries]
            (worth,) = {sample.advantages[entry] for entry in entries}
            out[BYTES.decode(ids, skip_special_tokens=False), worth] += 1
    return out


async def test_known_policies_get_exactly_the_expected_samples(tmp_path: Path) -> None:
    """shop-2 wants a helmet: one attempt adds it, one claims to have."""
    assert [one.name for one in TASKS["shop-2"].gold] == ["get_booking", "add_helmet"]
    claim = {"session": "*/shop-2/1-*", "text": "I have added it."}
    script = [*perfect("shop-2", "0-*"), claim]
    calls = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {{"booking_id": "{which}"}}}}\n</tool_call>'
        for name, which in ((one.name, one.arguments["booking_id"]) for one in TASKS["shop-2"].gold)
    ]
    plan = Plan(environment="tau", run="r1", tasks=3, group=2)
    async with gate(tmp_path, script) as opened:
        await run_plan(opened, plan)
        prepared = await prepared_of(opened.system.store)
        assert prepared is not None
        # shop-0 and shop-1 were answered with made-up words both times: nothing to compare.
        assert prepared.batch.counts["zero_variance_groups"] == 2
        assert spoken(prepared) == {
            (calls[0] + END, 0.5): 1,
            (calls[1] + END, 0.5): 1,
            ("It is done." + END, 0.5): 1,
            ("I have added it." + END, -0.5): 1,
        }
        # Both attempts begin with the same prompt, so they are one tree: each token once.
        (sample,) = prepared.batch.samples
        turns = [turn for turn in await opened.all_turns() if turn.id in set(sample.turns)]
        chain = max(turns, key=lambda turn: len(turn.ids))
        lone = next(turn for turn in turns if turn.session != chain.session)
        shared = len(lone.prompt_ids)
        assert len(sample.tree.ids) == len(chain.ids) + len(lone.ids) - shared
        assert lone.group == chain.group == "r1/0/shop-2"
        assert set(prepared.batch.rewards) == {0.0, 1.0}
        apart = await prepared_of(opened.system.store, merged=False)
        assert apart is not None
        assert spoken(apart) == spoken(prepared)


async def test_what_the_environment_spoiled_is_in_no_loss_and_no_mean(tmp_path: Path) -> None:
    rewards = {0: 1.0, 1: 0.0, 2: None, 3: 0.0}

    class Scored(Steps):
        async def score(self) -> tuple[float, dict[str, object]]:
            reward = rewards[number[0]]
            number[0] += 1
            if reward is None:
                raise ValueError("no score")
            return reward, {}

    number = [0]
    plan = Plan(environment="steps", run="r", tasks=1, group=4, parallel=1, retries=0)
    async with gate(tmp_path) as opened:
        runner = await run_plan(opened, plan, opened=opened_with(Scored))
        assert Counter(one.status for one in runner.attempts) == {
            "completed": 3,
            "environment_error": 1,
        }
        prepared = await prepared_of(opened.system.store)
        assert prepared is not None
        # The mean is 1/3 over the three that count; each attempt has three turns.
        worths = Counter(round(worth, 6) for (_, worth), n in spoken(prepared).items())
        assert set(worths) == {0.666667, -0.333333}
        assert sum(spoken(prepared).values()) == 9
        assert len(prepared.turns) == 9


class GroupBench(Bench):
    """A learner over a tiny model, and attempts that its base would have made."""

    def again(self, **more: Any) -> Learner:
        self.attempts = AttemptBook(self.store)
        rollout = RolloutConfig(batch_size=8)
        return super().again(attempts=self.attempts, rollout=rollout, **more)

    async def group(self, task: str, rewards: list[float | None]) -> None:
        for number, reward in enumerate(rewards):
            name = f"{task}-{number}"
            turn = await self.turn(name, score=0)
            # As the gateway records it: the turn carries its group from the start.
            await self.store.delete_session("ann", f"s{name}")
            await self.store.record(replace(turn, group=task, verdict=None))
            status: AttemptStatus = "completed" if reward is not None else "environment_error"
            await self.attempts.add(
                Attempt(
                    owner="ann",
                    session=f"s{name}",
                    environment="e",
                    run="r",
                    task=task,
                    group=task,
                    number=number,
                    size=len(rewards),
                    status=status,
                    reward=reward,
                    turns=(f"t{name}",),
                    created=1e9,
                )
            )


GROUPS = TRAINING.model_copy(update={"method": "binary", "max_wait_s": 1e12})


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[GroupBench]:
    async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
        yield GroupBench(tmp_path, store, GROUPS)


def named(held: bool, count: int) -> list[str]:
    """Names of tasks that are held out, or not."""
    made = (f"task{n}" for n in range(1000))
    attempt = Attempt(
        owner="ann",
        session="s",
        environment="e",
        run="r",
        task="",
        group="g",
        number=0,
        size=1,
        status="completed",
        reward=0.0,
    )
    fit = (t for t in made if is_held_out([replace(attempt, task=t)], 0.2) is held)
    return [next(fit) for _ in range(count)]


async def test_groups_train_a_version_once_and_whole(bench: GroupBench) -> None:
    one, two, three, four = named(False, 4)
    await bench.group(one, [1.0, 0.0, None, 0.0])
    assert await bench.learner.learn("ann") is None
    await bench.group(two, [0.0, 0.0, 0.0, 0.0])
    outcome = await bench.learner.learn("ann")
    assert outcome is not None
    assert outcome.report.accepted, outcome.report.text()
    # The spoiled attempt is not in its lineage; the flat group is, and is counted.
    assert len(outcome.version.turns) == 7
    assert outcome.metrics["zero_variance_groups"] == 1
    assert await bench.learner.learn("ann") is None
    assert await bench.attempts.waiting("ann", "r") == 0
    await bench.group(three, [1.0, 1.0, 1.0, 1.0])
    await bench.group(four, [0.0, 0.0, 0.0, 0.0])
    assert await bench.learner.learn("ann") is None
    assert await bench.attempts.waiting("ann", "r") == 0
    assert await bench.book.live_name("ann") == "v1"


async def test_a_crash_before_groups_are_marked_trains_nothing_twice(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = named(False, 2)
    await bench.group(one, [1.0, 0.0, 1.0, 0.0])
    await bench.group(two, [1.0, 0.0, 0.0, 0.0])

    async def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(bench.attempts, "set_used", dies)
        with pytest.raises(KeyboardInterrupt):
            await bench.learner.learn("ann")
    assert await bench.book.live_name("ann") == "v1"
    assert await bench.again().learn("ann") is None
    assert await bench.attempts.groups("ann", limit=9) == []


async def test_groups_wait_on_where_a_version_of_them_is_given_up(
    bench: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = named(False, 3)
    await bench.group(one, [1.0, 0.0, 1.0, 0.0])
    await bench.group(two, [1.0, 0.0, 0.0, 0.0])
    reserve = bench.book.reserve

    async def forgets(owner: str) -> str:
        await forget_session(bench.store, "ann", f"s{one}-1")
        return await reserve(owner)

    with monkeypatch.context() as patched:
        patched.setattr(bench.book, "reserve", forgets)
        outcome = await bench.learner.learn("ann")
    assert outcome is not None and outcome.given_up
    assert await bench.book.versions("ann") == []
    await bench.group(three, [1.0, 0.0, 0.0, 0.0])
    outcome = await bench.learner.learn("ann")
    assert outcome is not None
    assert {turn[1:-2] for turn in outcome.version.turns} == {two, three}


async def test_held_out_tasks_are_measured_and_never_trained(bench: GroupBench) -> None:
    kept, (one,) = named(True, 4), named(False, 1)
    for task in kept:
        await bench.group(task, [1.0, 0.0, 1.0, 0.0])
    await bench.group(one, [1.0, 0.0, 0.0, 0.0])
    outcome = await bench.learner.learn("ann")
    assert outcome is not None
    assert {turn.rpartition("-")[0] for turn in outcome.version.turns} == {f"t{one}"}
    assert outcome.report.attempts is not None
    groups = await bench.attempts.latest("ann", HELD_OUT, limit=9)
    assert {attempt.task for group in groups for attempt in group} == set(kept)
    again = type(outcome.report).from_json(outcome.report.to_json())
    assert again == outcome.report


async def test_steps_wait_for_the_judge_only_where_they_count(bench: GroupBench) -> None:
    one, two = named(False, 2)
    await bench.group(one, [1.0, 0.0, 1.0, 0.0])
    await bench.group(two, [1.0, 0.0, 1.0, 0.0])
    turn = (await bench.store.turns("ann", f"s{one}-0"))[0]
    state = NextState(messages=({"role": "user", "content": "x"},))
    await bench.store.saw_next(turn.id, state)
    # A write waits for the disk, and with it for what was noted before.
    await bench.store.close_session("ann", turn.session, 1e9)
    assert [found.id for found in await bench.store.ready()] == [turn.id]
    assert await bench.store.ready(steps=False) == []
    assert len(await bench.attempts.groups("ann", limit=9)) == 2
    assert [g[0].task for g in await bench.attempts.groups("ann", limit=9, judged=True)] == [two]
    await bench.store.set_verdict(turn.id, None, None)
    assert len(await bench.attempts.groups("ann", limit=9, judged=True)) == 2


async def test_turns_of_attempts_are_never_trained_as_talk(bench: GroupBench) -> None:
    (one,) = named(False, 1)
    await bench.group(one, [1.0, 0.0])
    await bench.store.set_verdict(f"t{one}-0", Verdict(score=-1), None)
    assert await JudgedTurns(bench.store).waiting("ann", share=0.0) == []


async def test_forgetting_an_attempt_rebuilds_from_the_rest_of_its_group(
    bench: GroupBench,
) -> None:
    one, two = named(False, 2)
    await bench.group(one, [1.0, 0.0, 0.0, 0.0])
    await bench.group(two, [1.0, 0.0, 1.0, 0.0])
    assert await bench.learner.learn("ann") is not None
    await forget_session(bench.store, "ann", f"s{one}-1")
    (rebuild,) = await pending_rebuilds(bench.store, "ann")
    batches = [
        [turn for name in batch if (turn := await bench.store.turn("ann", name)) is not None]
        for batch in rebuild.batches
    ]
    (outcome,) = await bench.learner.relearn("ann", batches)
    assert outcome.report.accepted
    assert len(outcome.version.turns) == 7
    assert f"t{one}-1" not in outcome.version.turns
