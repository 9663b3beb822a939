"""How fast the store is, and how small.

    python benchmarks/store.py [--turns 1000000] [--url sqlite:///...] [--json]

Fills a store through the same path as the gateway does, then measures its reads, durable
recording by many clients at once, and what a session over a long prompt takes on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import platform
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import sqlalchemy as sa
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from instar.record.judged import STRETCH, JudgedTurns
from instar.record.store import TurnStore, open_store
from instar.types import Message, NextState, Sampling, Turn, Verdict

SESSION = 10
"""Turns a session."""
UNJUDGED = 0.05
"""Share of turns that wait for the judge."""
BULK = 1024
"""Turns on their way at once while the store is filled: one transaction's worth."""
TARGET_MS = 50.0
TARGET_PER_S = 2000.0
WORDS = ("the", "a", "moult", "of", "agent", "reads", "writes", "tools", "which", "then", "steps")


class Maker:
    """Makes conversations whose ids and words repeat about as much as real ones do."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        generator = np.random.default_rng(seed)
        ids = (generator.zipf(1.15, 400_000) * 7919) % 49_152
        self._ids: list[int] = ids.tolist()
        self._logprobs: list[float] = (
            (-generator.exponential(0.6, 400_000)).astype(np.float32).astype(float).tolist()
        )

    def ids(self, count: int) -> tuple[int, ...]:
        start = self.random.randrange(len(self._ids) - count)
        return tuple(self._ids[start : start + count])

    def logprobs(self, count: int) -> tuple[float, ...]:
        start = self.random.randrange(len(self._logprobs) - count)
        return tuple(self._logprobs[start : start + count])

    def say(self, role: str, words: int) -> Message:
        return {"role": role, "content": " ".join(self.random.choices(WORDS, k=words))}

    def anchor(self) -> int:
        return self.random.getrandbits(64) - 2**63

    def session(
        self, name: str, *, prompt: int = 40, new: int = 20, reply: int = 30, created: float
    ) -> Iterator[Turn]:
        """A chain of turns."""
        ids, said, parent = self.ids(prompt), [self.say("user", max(4, prompt * 3 // 4))], None
        for number in range(SESSION):
            answer = self.say("assistant", reply * 3 // 4)
            waits = self.random.random() < UNJUDGED
            turn = Turn(
                id=f"{name}-{number}",
                owner="bench",
                session=name,
                parent=parent,
                extends=parent is not None,
                kind="main",
                prompt_ids=ids,
                sampled_ids=self.ids(reply),
                logprobs=self.logprobs(reply),
                settings=Sampling(temperature=0.7, stop_ids=(2,)),
                version="base",
                finish="stop",
                messages=tuple(said),
                reply=answer,
                anchors=(self.anchor(), self.anchor(), self.anchor()),
                created=created + number,
                next_state=NextState(messages=(self.say("user", 8),)),
                verdict=None if waits else Verdict(score=1, votes=(1, 1, 0)),
            )
            yield turn
            ids, parent = (*turn.ids, *self.ids(new)), turn.id
            said += [answer, self.say("user", 8)]


async def fill(store: TurnStore, turns: int, seed: int, console: Console) -> dict[str, Any]:
    """Record this many turns; returns how fast, and some anchors to look up."""
    maker, kept = Maker(seed), []

    def made() -> Iterator[Turn]:
        # Sessions go on side by side, as they do in life: a hundred at a time.
        for start in range(0, math.ceil(turns / SESSION), 100):
            chains = [
                maker.session(f"s{start + n:07d}", created=1e9 + start + n) for n in range(100)
            ]
            for _ in range(SESSION):
                for chain in chains:
                    yield next(chain)

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Recording", total=turns)
        started, recorded, source = time.perf_counter(), 0, made()

        async def worker() -> None:
            nonlocal recorded
            for turn in source:
                if recorded >= turns:
                    return
                recorded += 1
                if maker.random.random() < 1000 / turns:
                    kept.append(turn.anchors[1])
                if not await store.record(turn):
                    raise SystemExit(f"A turn was not written: {store.health()}")
                if recorded % 1000 == 0:
                    progress.update(task, completed=recorded)

        await asyncio.gather(*(worker() for _ in range(BULK)))
        seconds = time.perf_counter() - started
    return {"turns": recorded, "turns_per_s": recorded / seconds, "anchors": kept}


async def latency(action: Callable[[], Awaitable[object]], runs: int) -> dict[str, float]:
    """Milliseconds at the median and at the 99th percentile."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        await action()
        times.append(1000 * (time.perf_counter() - started))
    times.sort()
    return {"p50_ms": times[len(times) // 2], "p99_ms": times[math.ceil(0.99 * len(times)) - 1]}


async def reads(store: TurnStore, anchors: list[int], runs: int) -> dict[str, dict[str, float]]:
    chance = random.Random(1)
    judged = JudgedTurns(store)
    stretches = await judged.newest("bench") // STRETCH + 1
    actions: dict[str, Callable[[], Awaitable[object]]] = {
        "sessions(limit=50)": lambda: store.sessions(limit=50),
        "sessions(owner, limit=50)": lambda: store.sessions("bench", limit=50),
        "ready(limit=64)": lambda: store.ready(limit=64),
        "find": lambda: store.find("bench", [1, 2, chance.choice(anchors)]),
        "counts": lambda: store.counts(),
        f"judged turns ({STRETCH:,} numbers)": lambda: judged.stretch(
            "bench", chance.randrange(stretches), share=0.15
        ),
    }
    return {name: await latency(action, runs) for name, action in actions.items()}


async def concurrent(store: TurnStore, *, clients: int, turns: int, name: str) -> dict[str, float]:
    """Durable turns a second with this many clients, each waiting for its own."""
    maker, times = Maker(3), []
    sessions = [
        list(maker.session(f"{name}{number}", created=2e9))
        for number in range(math.ceil(turns / SESSION))
    ]
    source = iter(sessions)

    async def client() -> None:
        for session in source:
            for turn in session:
                started = time.perf_counter()
                if not await store.record(turn):
                    raise SystemExit(f"A turn was not written: {store.health()}")
                times.append(1000 * (time.perf_counter() - started))

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - started
    times.sort()
    return {
        "turns_per_s": len(times) / seconds,
        "p50_ms": times[len(times) // 2],
        "p99_ms": times[math.ceil(0.99 * len(times)) - 1],
    }


async def size(folder: Path) -> dict[str, float]:
    """Bytes a turn of a ten-turn session over a 14,000-token prompt."""
    maker, path = Maker(5), folder / "size.db"
    session = list(maker.session("long", prompt=14_000, new=150, reply=250, created=1e9))

    async def used(turns: list[Turn]) -> int:
        async with open_store(f"sqlite:///{path}", commit_timeout_s=60) as store:
            for turn in turns:
                await store.record(turn)
            pages = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            return int(await store.read(lambda c: c.execute(sa.text(pages)).scalar_one()))

    empty = await used([])
    stored = (await used(session) - empty) / len(session)
    raw = sum(
        4 * len(turn.ids) + 4 * len(turn.logprobs) + len(orjson.dumps([*turn.messages, turn.reply]))
        for turn in session
    ) / len(session)
    return {"stored_bytes_per_turn": stored, "raw_bytes_per_turn": raw, "ratio": raw / stored}


async def measure(arguments: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    url = arguments.url or f"sqlite:///{folder}/instar.db"
    found: dict[str, Any] = {"machine": f"{platform.machine()}, Python {platform.python_version()}"}
    found["size"] = await size(folder)
    async with open_store(f"sqlite:///{folder}/new.db", commit_timeout_s=60) as store:
        turns, clients = arguments.concurrent_turns, arguments.clients
        found["empty"] = await concurrent(store, clients=clients, turns=turns, name="c")
    async with open_store(url, commit_timeout_s=600) as store:
        filled = await fill(store, arguments.turns, arguments.seed, console)
        anchors = filled.pop("anchors")
        found["fill"] = filled
        found["reads"] = await reads(store, anchors, arguments.runs)
        found["full"] = await concurrent(store, clients=clients, turns=turns, name="c")
        found["counts"] = await store.counts()
        found["health"] = store.health()
    if (path := folder / "instar.db").exists():
        found["fill"]["bytes_per_turn"] = path.stat().st_size / arguments.turns
    return found


def report(found: dict[str, Any], console: Console) -> None:
    table = Table("what", "found", "target", title=f"Store, {found['fill']['turns']:,} turns")
    for name, row in found["reads"].items():
        figures = f"p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms"
        table.add_row(name, figures, f"p99 < {TARGET_MS:g} ms")
    for name in ("empty", "full"):
        row = found[name]
        figures = f"{row['turns_per_s']:,.0f}/s (p50 {row['p50_ms']:.1f}, p99 {row['p99_ms']:.1f})"
        table.add_row(f"durable turns, store {name}", figures, f">= {TARGET_PER_S:,.0f}/s")
    fill_row, size_row = found["fill"], found["size"]
    table.add_row("filling", f"{fill_row['turns_per_s']:,.0f} turns/s", "")
    if "bytes_per_turn" in fill_row:
        table.add_row("a small turn, with indexes", f"{fill_row['bytes_per_turn']:,.0f} bytes", "")
    figures = (
        f"{size_row['stored_bytes_per_turn']:,.0f} bytes, "
        f"raw {size_row['raw_bytes_per_turn']:,.0f} ({size_row['ratio']:.1f} times)"
    )
    table.add_row("a turn of ten over 14k tokens", figures, "")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--url", help="an empty database to fill; by default a temporary file")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--concurrent-turns", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=300, help="times to repeat each read")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json)
    with tempfile.TemporaryDirectory(prefix="instar-bench-") as folder:
        found = asyncio.run(measure(arguments, Path(folder), console))
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        report(found, console)


if __name__ == "__main__":
    main()
