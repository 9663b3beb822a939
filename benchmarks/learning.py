"""What learning costs those who talk: latency while training runs, and how fast a version serves.

    python benchmarks/learning.py [--replies 60] [--rounds 3] [--publish 10] [--json]

    latency    first token of short chats on the embedded model under `instar up`, with training
               running against the same with learning paused; the two alternate, `--rounds` times
    publish    from `promote` (files are written, the store says live) to the first token that the
               new version gives a client; a client asks all the time

Training never runs out: the store is filled with corrected turns first, and the gate accepts all,
so that swaps happen while latency is measured. The machine's load before is part of the result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from _load import percentile
from instar.backends.embedded import embedded_model
from instar.batch.render import ChatRenderer
from instar.config import TrainingConfig
from instar.ids import new_id
from instar.publish.versions import VersionFiles
from instar.record.controls import pause_learning, resume_learning
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.train.step import TorchTrainer
from instar.types import Hint, NextState, Sampling, Turn, Verdict, Version

OWNER = "local"
MODEL = "bench"
TURNS = 1600
"""A hundred batches: more than are trained in the time."""
REPLY_TOKENS = 16
BUSY, IDLE = 0.3, 0.05
"""Share of a core above which the learning process trains, below which it does not."""
TARGETS = {"latency": 2.0, "publish_s": 1.0}
QUESTIONS = (
    "Why is the sky blue?",
    "How do I boil an egg?",
    "Name three rivers of Europe and say where they end.",
    "What is the difference between a list and a tuple in Python?",
    "What should I pack for a week in the mountains?",
)
SETTINGS = {
    "model.name": MODEL,
    "training.max_staleness": 1_000_000,
    "training.gate_tolerance": 1000,
    "training.min_retention": 0,
    "training.gate_turns": 4,
    "training.gate_references": 2,
}


def main() -> None:
    args = _arguments()
    folder = embedded_model(Path.home() / ".instar", say=print)
    with tempfile.TemporaryDirectory(prefix="instar-bench-") as home:
        found = asyncio.run(_measure(folder, Path(home), args))
    print(json.dumps(found)) if args.json else _show(found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--replies", type=int, default=60, help="chats a round and side")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publish", type=int, default=10, help="versions to publish")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


async def _measure(folder: Path, home: Path, args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"load_before": os.getloadavg()[0], "others": _others()}
    async with open_store(f"sqlite:///{home / 'instar.db'}") as store:
        if args.publish:
            versions = await asyncio.to_thread(_adapter, folder, home)
            async with _instar("serve", folder, home) as (address, _):
                found["publish"] = await _publish(store, home, versions, address, args.publish)
        if args.replies:
            await _fill(store, ChatRenderer.from_folder(folder))
            await pause_learning(store)
            async with _instar("up", folder, home) as (address, up):
                found["latency"] = await _latency(store, up, address, args)
    return found


@asynccontextmanager
async def _instar(
    command: str, folder: Path, home: Path
) -> AsyncIterator[tuple[str, psutil.Process]]:
    """A running instar: its address and its process."""
    argv = [sys.executable, "-m", "instar", command, "--json", "--home", str(home), "--port", "0"]
    for name, value in {**SETTINGS, "model.checkpoint_path": folder}.items():
        argv += ["--set", f"{name}={value}"]
    with (home / f"{command}.log").open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    assert child.stdout is not None
    try:
        async for line in child.stdout:
            if (status := json.loads(line))["state"] == "serving":
                break
        else:
            sys.exit(f"instar {command} ended: {(home / f'{command}.log').read_text()}")
        drain = asyncio.ensure_future(child.stdout.read())
        yield status["address"], psutil.Process(child.pid)
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGINT)
        await child.wait()
    await drain


async def _latency(
    store: TurnStore, up: psutil.Process, address: str, args: argparse.Namespace
) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"training": [], "paused": []}
    rng = random.Random(0)
    async with httpx.AsyncClient(base_url=address, timeout=300) as http:
        for _ in range(5):
            await _first_token(http, rng)
        for _ in range(args.rounds):
            for side in ("paused", "training"):
                await (resume_learning if side == "training" else pause_learning)(store)
                await _until_it(up, busy=side == "training")
                for _ in range(args.replies):
                    seconds[side].append((await _first_token(http, rng))[0])
                    await asyncio.sleep(rng.uniform(0.0, 0.3))
    trained = len(await VersionBook(store).versions(OWNER))
    return {
        side: {"p50_s": percentile(values, 0.5), "p99_s": percentile(values, 0.99)}
        for side, values in seconds.items()
    } | {"chats": len(seconds["paused"]), "versions_meanwhile": trained}


async def _until_it(up: psutil.Process, *, busy: bool) -> None:
    """Wait until the learning process trains, or has come to rest."""
    while True:
        learner = next((one for one in up.children() if "train" in one.cmdline()), None)
        if learner is not None:
            share = await asyncio.to_thread(learner.cpu_percent, 2.0) / 100
            if share > BUSY if busy else share < IDLE:
                return
        await asyncio.sleep(0.2)


async def _first_token(
    http: httpx.AsyncClient, rng: random.Random, *, tokens: int = REPLY_TOKENS
) -> tuple[float, str]:
    """How long the first token of a new chat took, and which version gave it."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{rng.random()} {rng.choice(QUESTIONS)}"}],
        "max_tokens": tokens,
        "stream": True,
        "no_train": True,
    }
    start, first, version = time.perf_counter(), 0.0, ""
    async with http.stream("POST", "/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if not first and '"content":' in line and '"content":""' not in line:
                first = time.perf_counter() - start
                version = json.loads(line.removeprefix("data: "))["system_fingerprint"]
    return first or time.perf_counter() - start, version


async def _publish(
    store: TurnStore, home: Path, adapter: Path, address: str, count: int
) -> dict[str, Any]:
    """Versions one after the other; each is timed from `promote` to its first token."""
    book, files, seconds, writes = VersionBook(store), VersionFiles.of_home(home), [], []
    rng = random.Random(1)
    async with httpx.AsyncClient(base_url=address, timeout=300) as http:
        await _first_token(http, rng)
        for _ in range(count):
            before, name = await book.live_name(OWNER), await book.reserve(OWNER)
            version = Version(
                name=name, owner=OWNER, parent=before, state="candidate", folder=f"{OWNER}/{name}"
            )
            start = time.perf_counter()
            await asyncio.to_thread(files.write, version, lambda to: _copy(adapter, to))
            assert await book.add(version)
            writes.append(time.perf_counter() - start)
            start = time.perf_counter()
            await book.promote(OWNER, name, instead_of=before)
            asked = start
            while (answer := await _first_token(http, rng, tokens=1))[1] != name:
                asked = time.perf_counter()
            seconds.append(asked - start + answer[0])
        await book.promote(OWNER, "base")
    return {
        "p50_s": percentile(seconds, 0.5),
        "max_s": max(seconds),
        "write_p50_s": percentile(writes, 0.5),
        "versions": count,
    }


def _copy(adapter: Path, to: Path) -> None:
    for file in adapter.iterdir():
        (to / file.name).write_bytes(file.read_bytes())


def _adapter(folder: Path, home: Path) -> Path:
    """An adapter as training begins with, in PEFT's form."""
    made = home / "adapter"
    TorchTrainer(folder, TrainingConfig()).save_adapter(made)
    return made


async def _fill(store: TurnStore, renderer: ChatRenderer) -> None:
    """Corrected turns, as a person leaves them who wants shorter answers."""
    rng = random.Random(2)
    for number in range(TURNS):
        messages = ({"role": "user", "content": f"{rng.choice(QUESTIONS)} ({number})"},)
        said = "It depends on where you are, and on what you would like to do. "
        reply = (said * rng.randint(2, 8)).strip()
        sampled = (*renderer.encode(reply), *renderer.eos_ids[:1])
        turn = Turn(
            id=new_id("t"),
            owner=OWNER,
            session=new_id("s"),
            parent=None,
            extends=False,
            kind="main",
            prompt_ids=renderer.render(messages).ids,
            sampled_ids=sampled,
            logprobs=(-2.0,) * len(sampled),
            settings=Sampling(),
            version="base",
            finish="stop",
            messages=messages,
            reply={"role": "assistant", "content": reply},
            created=time.time(),
        )
        await store.record(turn)
        asked = {"role": "user", "content": "Too long. One short sentence please."}
        await store.saw_next(turn.id, NextState(messages=(asked,)))
        hint = Hint(text="Answer in one short sentence.")
        await store.set_verdict(turn.id, Verdict(score=-1), hint)


def _others() -> float:
    """How many cores others use right now."""
    return float(psutil.cpu_percent(1.0)) / 100 * (os.cpu_count() or 1)


def _show(found: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"load average before: {found['load_before']:.2f}; others used {found['others']:.1f} cores"
    )
    if latency := found.get("latency"):
        table = Table("first token", "p50", "p99", title=f"{latency['chats']} chats a side")
        for side in ("paused", "training"):
            row = latency[side]
            table.add_row(side, f"{row['p50_s'] * 1e3:.0f} ms", f"{row['p99_s'] * 1e3:.0f} ms")
        console.print(table)
        ratio = latency["training"]["p99_s"] / latency["paused"]["p99_s"]
        console.print(
            f"p99 with training: {ratio:.2f} times (target at most {TARGETS['latency']}), "
            f"{latency['versions_meanwhile']} versions trained meanwhile"
        )
    if publish := found.get("publish"):
        console.print(
            f"publish to first token: p50 {publish['p50_s']:.2f} s, slowest of "
            f"{publish['versions']} {publish['max_s']:.2f} s (target {TARGETS['publish_s']} s); "
            f"writing the files before took {publish['write_p50_s']:.2f} s"
        )


if __name__ == "__main__":
    main()
