"""How many steps a second the terminal environment takes, and which part is the slowest.

    python benchmarks/terminal.py [--sandboxes 32] [--seconds 20] [--steps 5] [--json]

A scripted policy plays whole attempts in all sandboxes at once: reset, a few commands, the
solution, submit, grading. No model and no gateway take part: this is the environment alone. Before
that, one sandbox after the other is opened and used, to see what each thing takes by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import resource
import statistics
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from instar.envs import open_environment
from instar.envs.sandbox import Spec, open_sandbox
from instar.envs.terminal_tasks import shipped
from instar.types import Message

TARGET = 100.0
LOOKS = ("pwd", "ls -la", "cat * 2>/dev/null | head -n 5", "wc -l * 2>/dev/null", "echo ready")
"""What the policy does before it solves the task."""


def call(name: str, **arguments: str) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "call", "function": function}]}


class Clock:
    """Time by part of an attempt, as those in it see it: waiting for a core counts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.count: dict[str, int] = defaultdict(int)

    async def time(self, part: str, work: Any) -> Any:
        started = time.perf_counter()
        try:
            return await work
        finally:
            self.seconds[part] += time.perf_counter() - started
            self.count[part] += 1


async def play(environment: Any, task: Any, steps: int, clock: Clock) -> float:
    await clock.time("reset", environment.reset(task.id))
    for command in itertools.islice(itertools.cycle(LOOKS), steps - 2):
        await clock.time("step", environment.step(call("bash", command=command)))
    await clock.time("step", environment.step(call("bash", command=task.solution)))
    await clock.time("step", environment.step(call("submit")))
    reward, _ = await clock.time("score", environment.score())
    return float(reward)


async def attempts(arguments: argparse.Namespace) -> dict[str, Any]:
    """Whole attempts at trivial and easy tasks in all sandboxes until the time is up."""
    tasks = [task for task in shipped() if task.difficulty in ("trivial", "easy")]
    chosen, clock, rewards = itertools.cycle(tasks), Clock(), list[float]()
    options = {"max_steps": arguments.steps}
    until = time.perf_counter() + arguments.seconds

    async def worker() -> None:
        async with open_environment("terminal", options) as environment:
            while time.perf_counter() < until:
                rewards.append(await play(environment, next(chosen), arguments.steps, clock))

    before, started = _cpu(), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(arguments.sandboxes)))
    took, used = time.perf_counter() - started, [b - a for a, b in zip(before, _cpu(), strict=True)]
    parts = {part: 1000 * clock.seconds[part] / clock.count[part] for part in clock.seconds}
    return {
        "steps_per_s": clock.count["step"] / took,
        "attempts_per_s": len(rewards) / took,
        "solved": sum(reward == 1.0 for reward in rewards) / len(rewards),
        "ms_by_part": parts,
        "share_by_part": {k: v / sum(clock.seconds.values()) for k, v in clock.seconds.items()},
        "slowest": max(clock.seconds, key=clock.seconds.__getitem__),
        "cpu_s_own": used[0],
        "cpu_s_sandboxes": used[1],
        "cores_used": sum(used) / took,
    }


def _cpu() -> tuple[float, float]:
    """CPU time of this process and of the children that it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own, children = (usage.ru_utime + usage.ru_stime for usage in both)
    return own, children


async def open_shells(arguments: argparse.Namespace) -> dict[str, float]:
    """Steps alone: the same commands in shells that are open already."""
    async with AsyncExitStack() as stack:
        boxes = [
            await stack.enter_async_context(open_sandbox(Spec()))
            for _ in range(arguments.sandboxes)
        ]
        await asyncio.gather(*(box.run("true") for box in boxes))
        done, until = 0, time.perf_counter() + min(5.0, arguments.seconds)

        async def worker(box: Any) -> int:
            count = 0
            while time.perf_counter() < until:
                await box.run(LOOKS[count % len(LOOKS)])
                count += 1
            return count

        started = time.perf_counter()
        done = sum(await asyncio.gather(*map(worker, boxes)))
        return {"steps_per_s": done / (time.perf_counter() - started)}


async def one_by_one(count: int = 30) -> dict[str, float]:
    """Milliseconds that each thing takes where nothing else runs; medians."""
    took: dict[str, list[float]] = defaultdict(list)

    async def timed(part: str, work: Any) -> Any:
        started = time.perf_counter()
        result = await work
        took[part].append(1000 * (time.perf_counter() - started))
        return result

    for _ in range(count + 1):
        stack = AsyncExitStack()
        box = await timed("open", stack.enter_async_context(open_sandbox(Spec())))
        await timed("first command", box.run("true"))
        await timed("next command", box.run("true"))
        await timed("clean shell", box.execute("true"))
        await timed("close", stack.aclose())
    return {part: statistics.median(values[1:]) for part, values in took.items()}


def show(found: dict[str, Any], console: Console) -> None:
    table = Table("what", "found", title=f"Terminal, {found['sandboxes']} sandboxes")
    whole = found["attempts"]
    mark = "met" if whole["steps_per_s"] >= TARGET else "missed"
    table.add_row(
        "steps/s, whole attempts", f"{whole['steps_per_s']:.0f} (target {TARGET:g}, {mark})"
    )
    table.add_row("attempts/s", f"{whole['attempts_per_s']:.1f}")
    table.add_row("solved", f"{whole['solved']:.0%}")
    for part, ms in whole["ms_by_part"].items():
        share = whole["share_by_part"][part]
        table.add_row(f"one {part}", f"{ms:.1f} ms, {share:.0%} of an attempt")
    table.add_row("slowest part", whole["slowest"])
    table.add_row("other work before it began", f"load {found['load']:.1f}")
    table.add_row("cores used", f"{whole['cores_used']:.2f} of {os.cpu_count()}")
    sandboxes = whole["cpu_s_sandboxes"] / (whole["cpu_s_own"] + whole["cpu_s_sandboxes"])
    table.add_row("of that by sandboxes", f"{sandboxes:.0%}")
    table.add_row("steps/s in open shells", f"{found['open_shells']['steps_per_s']:.0f}")
    for part, ms in found["one_by_one_ms"].items():
        table.add_row(f"one sandbox: {part}", f"{ms:.1f} ms")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sandboxes", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to play")
    parser.add_argument("--steps", type=int, default=5, help="steps an attempt")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "sandboxes": arguments.sandboxes,
        "steps": arguments.steps,
        "one_by_one_ms": asyncio.run(one_by_one()),
        "attempts": asyncio.run(attempts(arguments)),
        "open_shells": asyncio.run(open_shells(arguments)),
    }
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        show(found, Console())


if __name__ == "__main__":
    main()
