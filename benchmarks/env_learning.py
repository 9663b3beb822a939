"""Whether the embedded model learns tasks of an environment: reward on held-out tasks, by updates.

    python benchmarks/env_learning.py --environment toolcall --seed 0 --out results
    python benchmarks/env_learning.py --environment terminal --seed 0 --updates 20 --out results

A gateway with its engine (`instar serve`) and a trainer (`instar train`) are started in a home of
their own. Groups of attempts at train tasks are played over HTTP, an update at a time, as
`instar rollout ENV --train --shuffle` does it: GRPO, the gate and the swap of versions included.
Before, half-way and after, the test split is played at temperature 1, and before and after also
greedily. Results go to OUT/ENV-SEED.jsonl, one line a look or an update.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from instar.backends.embedded import embedded_model
from instar.envs.client import Draw, GatewayClient, model_name
from instar.envs.play import Limits
from instar.envs.runner import Plan, Runner
from instar.launch import started
from instar.playing import until_trained
from instar.record.store import open_store
from instar.record.versions import VersionBook
from instar.types import Attempt, Version

OWNER, STORE = "local", "instar.db"
WHOLE = 1 - 1e-9
"""A reward from here on is a success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One environment: what is played, and how an attempt's task is named in the table."""

    options: dict[str, Any]
    skill: Callable[[str], str]
    max_tokens: int
    max_turns: int
    groups: int
    """Tasks an update."""
    test_tasks: int
    per_task: int = 1
    """Attempts a test task."""
    varied: str | None = None
    """An option that takes the seed, so that each seed has train tasks of its own."""
    settings: dict[str, Any] = field(default_factory=dict)


def _first(task: str) -> str:
    return task.partition("-")[0]


def _without_number(task: str) -> str:
    name, _, number = task.rpartition("-")
    return name if number.isdigit() else task


COURSES = {
    "toolcall": Course(
        options={"families": "one,pick"},
        skill=_first,
        max_tokens=40,
        max_turns=1,
        groups=4,
        test_tasks=40,
        varied="seed",
        # Replies are four times as long as commands: a step twice as far costs half as much.
        settings={"training.learning_rate": 1e-3, "training.steps_per_batch": 1},
    ),
    "terminal": Course(
        options={
            "task_type": "bash_commands",
            "style": "command",
            "max_steps": 1,
            "examples": 4,
            "alike": 1,
        },
        skill=_without_number,
        max_tokens=24,
        max_turns=1,
        groups=8,
        test_tasks=35,
        per_task=2,
    ),
}
GROUP = 8
SETTINGS: dict[str, Any] = {
    "model.name": "bench",
    "engine.max_versions": 2,
    "engine.cache_gb": 0.5,
    "training.method": "binary",
    "training.learning_rate": 5e-4,
    "training.warmup_steps": 2,
    "training.steps_per_batch": 2,
    "training.max_wait_s": 60,
    "training.gate_references": 12,
    "rollout_config.collection_mode": "sync",
    "rollout_config.max_concurrent_sessions": 200,
}


def main() -> None:
    args = _arguments()
    folder = args.model or embedded_model(args.home.expanduser(), say=print)
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{args.environment}-{args.seed}.jsonl"
    file.unlink(missing_ok=True)

    def note(**found: Any) -> None:
        line = json.dumps(found)
        print(line, flush=True)
        with file.open("a", encoding="utf-8") as to:
            to.write(line + "\n")

    with tempfile.TemporaryDirectory(prefix="instar-bench-", dir=args.work) as home:
        asyncio.run(_measure(args, folder.resolve(), Path(home), note))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--environment", choices=sorted(COURSES), default="toolcall")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--look-every", type=int, help="updates between looks; by default half")
    parser.add_argument("--before", type=Path, help="another seed's file: the base's looks")
    parser.add_argument("--test-tasks", type=int, help="held-out tasks a look")
    parser.add_argument("--minutes", type=float, help="no new update after so many; then a look")
    parser.add_argument("--out", type=Path, default=Path("env_learning"))
    parser.add_argument("--home", type=Path, default=Path("~/.instar"), help="has the model")
    parser.add_argument("--model", type=Path, help="a model's folder, instead of the home's")
    parser.add_argument("--work", type=Path, help="where its own home is made")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="K=V")
    return parser.parse_args()


async def _measure(
    args: argparse.Namespace, folder: Path, home: Path, note: Callable[..., None]
) -> None:
    course = COURSES[args.environment]
    course = replace(course, test_tasks=args.test_tasks or course.test_tasks)
    settings = {
        **SETTINGS,
        **course.settings,
        "model.checkpoint_path": folder,
        "engine.threads": _cores(),
        "rollout.batch_size": GROUP * course.groups,
    }
    sets = [*(f"{name}={value}" for name, value in settings.items()), *args.sets]
    note(kind="start", **_about(args, course, sets))
    async with _instar(home, sets) as address, open_store(f"sqlite:///{home / STORE}") as store:
        client = GatewayClient(address, model=await model_name(address, None))
        try:
            await _learn(args, course, client, VersionBook(store), note)
        finally:
            await client.close()


async def _learn(
    args: argparse.Namespace,
    course: Course,
    client: GatewayClient,
    book: VersionBook,
    note: Callable[..., None],
) -> None:
    began = time.monotonic()
    every = args.look_every or max(1, args.updates // 2)
    look = _Look(args.environment, course, client, note)
    if args.before:
        # The base, the test tasks and the draws are the same for every seed, and so is what
        # the base earns.
        for found in map(json.loads, args.before.read_text("utf-8").splitlines()):
            if found["kind"] == "look" and not found["updates"]:
                note(**found)
    else:
        await look(0, temperature=1.0)
        await look(0, temperature=0.0)
    runner = Runner(_train_plan(args, course), client)
    await runner.prepare()
    done = 0
    while done < args.updates:
        if args.minutes and time.monotonic() - began > 60 * args.minutes:
            break
        done += 1
        await _update(runner, done, course.groups, book, note)
        if done % every == 0 and done < args.updates:
            await look(done, temperature=1.0)
    await look(done, temperature=1.0)
    await look(done, temperature=0.0)
    note(kind="end", updates=done, seconds=round(time.monotonic() - began, 1))


def _train_plan(args: argparse.Namespace, course: Course) -> Plan:
    # Test tasks are those of seed 0; train tasks must never be the same ones by chance.
    varied = {course.varied: args.seed + 1} if course.varied else {}
    return Plan(
        environment=args.environment,
        run="train",
        tasks=args.updates * course.groups,
        shuffle=True,
        group=GROUP,
        parallel=32,
        seed=args.seed,
        options=course.options | varied,
        limits=Limits(max_turns=course.max_turns),
        draw=Draw(max_tokens=course.max_tokens, temperature=1.0),
    )


async def _update(
    runner: Runner,
    number: int,
    groups: int,
    book: VersionBook,
    note: Callable[..., None],
) -> None:
    """Play a round, and wait until what it taught is served."""
    start, known = time.monotonic(), len(runner.attempts)
    before = {one.name for one in await book.versions(OWNER)}
    await runner.play(groups)
    played = time.monotonic()
    await until_trained(runner)
    new = runner.attempts[known:]
    versions = [one for one in await book.versions(OWNER) if one.name not in before]
    note(
        kind="update",
        update=number,
        reward=_mean(new),
        attempts=len(new),
        play_s=round(played - start, 1),
        train_s=round(time.monotonic() - played, 1),
        versions=[_gated(one) for one in versions],
    )


def _gated(version: Version) -> dict[str, Any]:
    """What a version was made of, and what the gate said of it."""
    gate, kept = version.gate or {}, ("kl", "clip_share", "trained_tokens", "zero_variance_groups")
    found: dict[str, Any] = {name: round(version.metrics.get(name, 0.0), 4) for name in kept}
    found |= {"name": version.name, "accepted": gate.get("accepted")}
    found |= {"retention": gate.get("retention")}
    return found if gate.get("accepted") else {**found, "why": gate.get("reasons")}


@dataclass(slots=True)
class _Look:
    """Plays held-out tasks, always the same ones with the same seeds."""

    environment: str
    course: Course
    client: GatewayClient
    note: Callable[..., None]

    async def __call__(self, updates: int, *, temperature: float) -> None:
        course, start = self.course, time.monotonic()
        plan = Plan(
            environment=self.environment,
            run=f"look-{updates}-{temperature}",
            split="test",
            tasks=course.test_tasks,
            group=course.per_task if temperature else 1,
            parallel=32,
            seed=1_000,
            no_train=True,
            options=course.options,
            limits=Limits(max_turns=course.max_turns),
            draw=Draw(max_tokens=course.max_tokens, temperature=temperature),
        )
        runner = Runner(plan, self.client)
        await runner.prepare()
        await runner.play()
        found: dict[str, list[Attempt]] = {}
        for one in runner.attempts:
            found.setdefault(course.skill(one.task), []).append(one)
        self.note(
            kind="look",
            updates=updates,
            temperature=temperature,
            reward=_mean(runner.attempts),
            whole=_whole(runner.attempts),
            attempts=len(runner.attempts),
            skills={name: _mean(some) for name, some in sorted(found.items())},
            statuses=dict(runner.progress.statuses),
            seconds=round(time.monotonic() - start, 1),
        )


def _mean(attempts: Sequence[Attempt]) -> float | None:
    rewards = [one.reward for one in attempts if one.reward is not None]
    return round(fmean(rewards), 4) if rewards else None


def _whole(attempts: Sequence[Attempt]) -> float | None:
    rewards = [one.reward for one in attempts if one.reward is not None]
    return round(fmean(reward >= WHOLE for reward in rewards), 4) if rewards else None


@asynccontextmanager
async def _instar(home: Path, sets: Sequence[str]) -> AsyncIterator[str]:
    """A gateway's address; a trainer runs beside it.

    The trainer is not `instar up`'s, which only takes what others leave of the processor: here
    nobody else is served while it trains. Nothing is judged, since outcomes are the rewards.
    """
    async with started(home, sets, command="serve") as address:
        argv = [sys.executable, "-m", "instar", "train", "--home", str(home)]
        argv += ["--no-judge", "--with-parent", "--log-level", "warning"]
        for one in sets:
            argv += ["--set", one]
        environment = {"OMP_NUM_THREADS": str(_cores()), **os.environ}
        with (home / "train.log").open("wb") as log:
            child = await asyncio.create_subprocess_exec(
                *argv, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
            )
        try:
            yield address
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()


def _about(args: argparse.Namespace, course: Course, sets: Sequence[str]) -> dict[str, Any]:
    import torch

    hidden = ("model.checkpoint_path=",)
    return {
        "environment": args.environment,
        "seed": args.seed,
        "updates": args.updates,
        "group": GROUP,
        "groups": course.groups,
        "options": course.options,
        "max_tokens": course.max_tokens,
        "settings": [one for one in sets if not one.startswith(hidden)],
        "machine": {
            "processor": _processor(),
            "cores": _cores(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "load": os.getloadavg()[0],
        },
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
