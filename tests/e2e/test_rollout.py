"""The runner over a real gateway: statuses, groups, resuming, and whose fault an end is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate import gate, listening, until
from worlds import Steps, broken, client_of, opened_with, perfect, run_plan

from instar.envs.passes import summarise
from instar.envs.play import Limits
from instar.envs.runner import Plan, Runner, make_jobs
from instar.envs.runs import Runs
from instar.errors import ConfigError, EnvironmentFailure
from instar.record.attempts import AttemptBook
from instar.record.store import open_store
from instar.types import Attempt

STEPS = Plan(environment="steps", run="r1", split="train", tasks=2, group=2, parallel=4, retries=0)


async def test_attempts_are_conversations_of_their_group(tmp_path: Path) -> None:
    async with gate(tmp_path) as opened:
        runner = await run_plan(opened, STEPS, opened=opened_with(Steps))
        assert Counter(one.status for one in runner.attempts) == {"completed": 4}
        book = AttemptBook(opened.system.store)
        kept = await book.of_run("local", "r1")
        assert [(one.task, one.number) for one in sorted(kept, key=lambda one: one.session)] == [
            *(("train-0", 0), ("train-0", 1), ("train-1", 0), ("train-1", 1))
        ]
        assert {one.group for one in kept} == {"r1/0/train-0", "r1/0/train-1"}
        for one in kept:
            turns = await opened.turns(one.session)
            assert [turn.id for turn in turns] == list(one.turns)
            assert len(turns) == 3
            assert {turn.group for turn in turns} == {one.group}
            assert all(turn.extends for turn in turns[1:])
            assert not any(turn.no_train for turn in turns)


async def test_the_split_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    plan = Plan(environment="steps", run="e1", split="test", tasks=1, no_train=True)
    async with gate(tmp_path) as opened:
        runner = await run_plan(opened, plan, opened=opened_with(Steps))
        assert [one.task for one in runner.attempts] == ["test-0"]
        assert all(turn.no_train for turn in await opened.all_turns())
        assert await AttemptBook(opened.system.store).groups("local", limit=9) == []


@pytest.mark.parametrize(
    ("told", "status", "reward", "why"),
    [
        ("break", "environment_error", None, "the world fell over"),
        ("hang", "environment_error", None, "the environment took too long"),
        (ValueError("a bug in it"), "environment_error", None, "ValueError: a bug in it"),
        ("refuse", "model_error", 0.0, "that is no move"),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
async def test_whose_fault_it_was_decides_what_counts(
    tmp_path: Path, told: Any, at: int, status: str, reward: float | None, why: str
) -> None:
    made: list[Steps] = []

    def make() -> Steps:
        made.append(Steps(lambda step: told if step == at else None))
        return made[-1]

    plan = Plan(
        environment="steps",
        run="r1",
        tasks=2,
        group=1,
        parallel=1,
        retries=0,
        limits=Limits(step_timeout_s=0.2),
    )
    async with gate(tmp_path) as opened:
        runner = await run_plan(opened, plan, opened=opened_with(make))
        # One attempt's end is not the run's: both tasks were played.
        assert [(one.status, one.reward) for one in runner.attempts] == [(status, reward)] * 2
        assert [one.details["why"] for one in runner.attempts] == [why] * 2
    assert all(one.closed for one in made)
    if status == "environment_error":
        # One asked for the tasks; after each break a new place was made.
        assert len(made) == 3


async def test_what_the_environment_spoiled_is_played_again(tmp_path: Path) -> None:
    broke: list[int] = []

    def once(step: int) -> str | None:
        if step == 2 and len(broke) < 2:
            broke.append(step)
            return "break"
        return None

    plan = Plan(environment="steps", run="r1", tasks=1, group=1, retries=2)
    async with gate(tmp_path) as opened:
        runner = await run_plan(opened, plan, opened=opened_with(lambda: Steps(once)))
        (one,) = runner.attempts
        assert (one.status, one.reward) == ("completed", 1.0)
        sessions = await opened.system.store.sessions("local")
        # Three conversations were begun; one of them is the attempt.
        assert len(sessions) == 3
        assert len(await opened.turns(one.session)) == 3


async def test_too_many_turns_too_long_a_reply_too_long_a_history_are_truncated(
    tmp_path: Path,
) -> None:
    plan = Plan(environment="steps", run="r1", tasks=1, group=1, limits=Limits(max_turns=2))
    async with gate(tmp_path) as opened:
        runner = await run_plan(opened, plan, opened=opened_with(Steps))
        assert runner.attempts[0].details["why"] == "not done after 2 turns"
        assert (runner.attempts[0].status, runner.attempts[0].reward) == ("truncated", 1.0)
    long = [{"text": "x" * 2000}]
    async with gate(tmp_path, long, gateway__default_max_tokens=50) as opened:
        runner = await run_plan(
            opened, Plan(environment="steps", run="r2", tasks=1), opened=opened_with(Steps)
        )
        assert runner.attempts[0].status == "truncated"
        assert runner.attempts[0].details["why"] == "reply 1 was cut at its length limit"
    some = [{"text": "x" * 40}] * 3
    async with gate(tmp_path, some, engine__context=150) as opened:
        runner = await run_plan(
            opened, Plan(environment="steps", run="r3", tasks=1), opened=opened_with(Steps)
        )
        assert runner.attempts[0].status == "truncated"
        assert "context holds 150" in runner.attempts[0].details["why"]
        assert runner.attempts[0].reward == 1.0


async def test_no_turns_at_all_are_no_crash(tmp_path: Path) -> None:
    plan = Plan(environment="steps", run="r1", tasks=1, limits=Limits(max_turns=0))
    async with gate(tmp_path) as opened:
        runner = await run_plan(opened, plan, opened=opened_with(Steps))
        assert (runner.attempts[0].status, runner.attempts[0].turns) == ("truncated", ())


async def test_a_gateway_that_is_gone_spoils_attempts_and_blames_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("instar.envs.client._PAUSE_S", 0.0)
    async with gate(tmp_path) as opened:
        client = client_of(opened)
        runner = Runner(STEPS, client, opened=opened_with(Steps))
        await runner.prepare()

        async def gone(*_: Any, **__: Any) -> Any:
            raise EnvironmentFailure("the gateway could not be asked")

        monkeypatch.setattr(client, "reply", gone)
        await runner.play()
        assert {one.status for one in runner.attempts} == {"environment_error"}
        assert summarise(runner.attempts).reward is None
        await client.close()


async def test_a_run_goes_on_and_plays_nothing_twice(tmp_path: Path) -> None:
    async with gate(tmp_path) as opened:
        client = client_of(opened)
        first = Runner(STEPS, client, opened=opened_with(Steps))
        assert await first.prepare() == 4
        await first.play(groups=1)
        second = Runner(STEPS, client, opened=opened_with(Steps))
        assert await second.prepare() == 2
        assert second.progress.resumed == 2
        await second.play()
        assert len(second.attempts) == 4
        third = Runner(STEPS, client, opened=opened_with(Steps))
        assert await third.prepare() == 0
        assert len(await opened.system.store.sessions("local")) == 4
        await client.close()


async def test_an_attempt_that_is_told_twice_counts_once(tmp_path: Path) -> None:
    async with gate(tmp_path) as opened:
        client = client_of(opened)
        told = Attempt(
            owner="",
            session="s1",
            environment="steps",
            run="r",
            task="t",
            group="g",
            number=0,
            size=1,
            status="completed",
            reward=1.0,
        )
        assert await client.tell(told)
        late = Attempt(**{**_fields(told), "session": "s2", "reward": 0.0})
        assert not await client.tell(late)
        (kept,), waiting = await client.attempts("r")
        assert (kept.session, kept.reward, waiting) == ("s1", 1.0, 1)
        await client.close()


def _fields(attempt: Attempt) -> dict[str, Any]:
    return {name: getattr(attempt, name) for name in Attempt.__dataclass_fields__}


def test_tasks_come_again_in_new_groups_where_there_are_too_few() -> None:
    plan = Plan(environment="steps", run="r", tasks=5, group=2)
    jobs = make_jobs(plan, ["a", "b"])
    assert [job.group for job in jobs[::2]] == ["r/0/a", "r/0/b", "r/1/a", "r/1/b", "r/2/a"]
    assert len({(job.group, job.number) for job in jobs}) == len(jobs) == 10
    odd = make_jobs(Plan(environment="steps", run="r"), ["ä\n" * 200, "ä\n" * 201])
    assert len({job.group for job in odd}) == 2
    assert all(job.group.isascii() and job.group.isprintable() for job in odd)
    with pytest.raises(ConfigError, match="no tasks"):
        make_jobs(plan, [])


def test_a_drawn_order_has_every_task_once_a_round_and_follows_from_the_seed() -> None:
    names = [f"t{n}" for n in range(12)]
    plan = Plan(environment="steps", run="r", tasks=24, shuffle=True, seed=5)
    jobs = make_jobs(plan, names)
    first, second = ([job.task for job in jobs[at : at + 12]] for at in (0, 12))
    assert sorted(first) == sorted(second) == sorted(names)
    assert first != second and names not in (first, second)
    assert jobs == make_jobs(plan, names)
    assert jobs != make_jobs(replace(plan, seed=6), names)
    assert len({job.group for job in jobs}) == 24


def test_the_same_command_goes_on_with_what_was_stopped(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    name, again = runs.begin({"tasks": 1})
    assert not again
    assert runs.begin({"tasks": 1}) == (name, True)
    assert runs.begin({"tasks": 2})[0] != name
    runs.finish(name, {"tasks": 1})
    assert runs.begin({"tasks": 1})[0] != name
    assert runs.begin({"tasks": 1}, "mine") == ("mine", False)
    assert runs.begin({"tasks": 1}, "mine") == ("mine", True)
    with pytest.raises(ConfigError, match="other settings"):
        runs.begin({"tasks": 3}, "mine")


async def test_good_and_bad_policies_get_what_they_earn(tmp_path: Path) -> None:
    script = [line for n in range(10) for line in perfect(f"shop-{n}", "0-*")]
    script += [line for n in range(10) for line in broken(f"shop-{n}", "1-*")]
    plan = Plan(environment="tau", run="r1", tasks=10, group=2, parallel=8)
    async with gate(tmp_path, script) as opened:
        runner = await run_plan(opened, plan)
        rewards = {(one.task, one.number): one.reward for one in runner.attempts}
        assert {rewards[f"shop-{n}", 0] for n in range(10)} == {1.0}
        assert sum(rewards[f"shop-{n}", 1] or 0 for n in range(10)) < 5


def _instar(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from instar.cli import main; main()", *arguments]


async def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = _instar(*arguments)
    return await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True)


async def test_versions_are_compared_on_a_gateway_that_runs(tmp_path: Path) -> None:
    home = tmp_path / "runner"
    script = [line for n in range(48, 52) for line in perfect(f"shop-{n}")]
    async with listening(tmp_path, script) as address:
        given = ["tau", "--url", address, "--tasks", "4", "--json", "--home", str(home)]
        found = await _run("eval", *given, "--version", "base", "--version", "live")
        # There is no version of that name; the gateway says so, and the command passes it on.
        assert found.returncode == 2
        assert "live" in found.stderr
        both = await _run("eval", *given, "--version", "base")
        assert both.returncode == 0, both.stderr
        summary = json.loads(both.stdout)["versions"]["base"]
        assert summary["tasks"] == 4
        assert summary["reward"] == 1.0
        table = await _run("rollout", *given[:-3], "--home", str(home), "--eval", "--group", "1")
        assert "played" in table.stdout
    async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
        assert await AttemptBook(store).groups("local", limit=9) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rollout", "chess"), "no environment 'chess'"),
        (("rollout", "tau", "--option", "domain"), "not of the form name=value"),
        (("rollout", "tau", "--train", "--set", "engine.type=fake"), "no model to train"),
        (("rollout", "tau", "--train", "--version", "v1"), "leave --version out"),
        (("rollout", "tau", "--url", "http://127.0.0.1:1/v1"), "does not answer as a gateway"),
    ],
)
async def test_wrong_commands_say_what_is_wrong(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    found = await _run(*arguments, "--home", str(tmp_path))
    assert found.returncode == 2
    assert words in found.stderr


def _command(home: Path, *more: str) -> list[str]:
    options = ["--tasks", "32", "--group", "2", "--parallel", "64", "--json", "--home", str(home)]
    return _instar("rollout", "tau", *options, *more)


async def test_a_killed_runner_leaves_nothing_behind_and_goes_on(tmp_path: Path) -> None:
    """64 attempts are open when it dies; its gateway ends with it."""
    slow = ["--set", "engine.type=fake", "--set", "engine.delay_ms=50"]
    said = tmp_path / "stderr"
    with said.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *_command(tmp_path, *slow), stdout=subprocess.DEVNULL, stderr=stderr
        )
    url = f"sqlite:///{tmp_path}/instar.db"

    async def some_are_over() -> bool:
        assert process.returncode is None, said.read_text()
        if not (tmp_path / "instar.db").exists():
            return False
        async with open_store(url) as store:
            return len(await store.sessions("local", limit=100)) >= 64 and bool(
                await AttemptBook(store).groups("local", limit=1)
            )

    await until(some_are_over, timeout_s=300)
    process.kill()
    await process.wait()
    run = json.loads(next((tmp_path / "rollouts").glob("*.json")).read_text())["run"]
    async with open_store(url) as store:
        before = {one.session for one in await AttemptBook(store).of_run("local", run)}
    assert 0 < len(before) <= 64
    fast = ["--set", "engine.type=fake", "--set", "engine.delay_ms=0"]
    again = await asyncio.to_thread(
        subprocess.run, _command(tmp_path, *fast), capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert (found["run"], found["resumed"]) == (run, True)
    assert found["summary"]["attempts"] == 64
    async with open_store(url) as store:
        kept = await AttemptBook(store).of_run("local", run)
        assert len(kept) == len({(one.group, one.number) for one in kept}) == 64
        assert before <= {one.session for one in kept}
        # Each attempt was played once to its end; what was open at the kill is no attempt.
        assert len(await AttemptBook(store).groups("local", limit=99)) == 32
