"""Kills the processes of a learning system at random points while a client talks to it.

Everything is real but small: the local engine and the trainer work on a tiny random Llama, the
judge is a class in a file. What must hold afterwards is in `aftermath.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from tiny_models import tiny_llama

OWNER = "local"
PATIENCE_S = 600
"""How long anything that must come may take; only a hang takes so long."""
MARK = "INSTAR_CRASH_RUN"
"""An environment variable that all processes of a run inherit, so that none is overlooked."""

START = "from instar.cli import main; main()"
IMPATIENT = "from instar.learn import background; background._AGAIN_S = (0.2,); " + START
"""A person who kills 50 times does not want to wait two minutes each time."""

PROMPTS = (
    "Tell me of the sea.",
    "What is tea?",
    "Name a river.",
    "Why is it dark?",
    "Who are you?",
)
WORDS = ("Too long, one short sentence please.", "No lists please.", "Thanks, good.", "Shorter!")
JUDGE = """class Words:
    def compute_reward(self, prompt, response, next_feedback):
        return 1.0 if "good" in next_feedback else -1.0
"""

WHOLE = {"up": ("gateway", "engine", "learner"), "apart": ("gateway", "engine", "judge", "trainer")}
"""Whom to kill, by layout: `instar up` runs all, or each runs alone."""
MOMENTS = ("any", "any", "files", "state", "candidate")
"""When: at any time, or while one of the trainer's writes is under way."""


def settings(home: Path) -> list[str]:
    """Small batches often, and a gate that lets nearly all pass: many writes to be killed in."""
    folder = tiny_llama(home / "model")
    judge = home / "judge.py"
    judge.write_text(JUDGE)
    chosen = {
        "model.checkpoint_path": folder,
        "model.name": "tiny",
        "engine.threads": 1,
        "engine.cache_gb": 0.01,
        "store.commit_timeout_s": 60,
        "evaluation.judge.type": "custom",
        "evaluation.judge.path": f"{judge}:Words",
        "evaluation.num_judges": 1,
        "training.batch_size": 4,
        "training.max_wait_s": 1,
        "training.steps_per_batch": 1,
        "training.holdout_share": 0.1,
        "training.gate_turns": 4,
        "training.gate_references": 1,
        "training.gate_tolerance": 100,
        "training.min_retention": 0,
        "training.keep_versions": 1000,
    }
    return [f"{name}={value}" for name, value in chosen.items()]


@dataclass
class Client:
    """Talks all the time, and keeps what it was answered."""

    address: str
    rng: random.Random
    answered: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: int = 0

    async def talk(self, stop: asyncio.Event) -> None:
        async with httpx.AsyncClient(base_url=self.address, timeout=PATIENCE_S) as http:
            while not stop.is_set():
                session = f"s{uuid.uuid4().hex}"
                history = [{"role": "user", "content": self.rng.choice(PROMPTS)}]
                first = await self._ask(http, session, history, follows=None)
                if first is not None:
                    said = self.answered[first]["content"]
                    history.append({"role": "assistant", "content": said})
                    history.append({"role": "user", "content": self.rng.choice(WORDS)})
                    await self._ask(http, session, history, follows=first)
                await asyncio.sleep(0.2)

    async def _ask(
        self, http: httpx.AsyncClient, session: str, history: list[Any], *, follows: str | None
    ) -> str | None:
        """The id of the turn if it was answered to the end, and so is on record."""
        stream = self.rng.random() < 0.5
        body = {"model": "tiny", "messages": history, "max_tokens": 12, "stream": stream}
        headers = {"X-Session-Id": session}
        try:
            async with http.stream(
                "POST", "/chat/completions", json=body, headers=headers
            ) as answer:
                raw = (await answer.aread()).decode()
        except httpx.TransportError:
            self.failed += 1
            return None
        fine = answer.status_code == 200
        found = (_streamed(raw) if stream else _whole(raw)) if fine else None
        if found is None:
            self.failed += 1
            return None
        name = found.pop("id").removeprefix("chatcmpl-")
        self.answered[name] = {**found, "session": session, "follows": follows}
        return str(name)


def _whole(raw: str) -> dict[str, Any] | None:
    found = json.loads(raw)
    if "choices" not in found:
        return None
    content = found["choices"][0]["message"]["content"]
    return {"id": found["id"], "content": content, "version": found["system_fingerprint"]}


def _streamed(raw: str) -> dict[str, Any] | None:
    lines = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")]
    if not lines or lines[-1] != "[DONE]":
        return None
    events = [json.loads(line) for line in lines[:-1]]
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    content = "".join(delta.get("content") or "" for delta in deltas)
    first = events[0]
    return {"id": first["id"], "content": content, "version": first["system_fingerprint"]}


class Fleet:
    """The processes of a system, started again as often as they are killed."""

    def __init__(self, home: Path, layout: str) -> None:
        self.home, self.layout = home, layout
        self.token = uuid.uuid4().hex
        self.port = free_port()
        self.sets = settings(home)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        for name in ("up",) if self.layout == "up" else ("serve", "judge", "train"):
            self._spawn(name)

    def kill(self, victim: str) -> bool:
        """`kill -9`; False where it is not running now."""
        process = self._find(victim)
        if process is None:
            return False
        process.kill()
        for one in self.processes.values():
            if one.pid == process.pid:
                one.wait()
        return True

    async def manage(self) -> None:
        """Start again what has ended, as a service manager does: until cancelled."""
        while True:
            for name, one in list(self.processes.items()):
                if one.poll() is not None:
                    self._spawn(name)
            await asyncio.sleep(0.1)

    async def stop(self) -> dict[str, int]:
        """As a person would, by Ctrl-C; gives the exit codes."""
        for one in self.processes.values():
            one.send_signal(signal.SIGINT)
        codes = {
            name: await asyncio.to_thread(one.wait, PATIENCE_S)
            for name, one in self.processes.items()
        }
        self.processes.clear()
        return codes

    def end(self) -> None:
        """Whatever happened: leave nothing running."""
        for one in self.alive():
            with suppress(psutil.NoSuchProcess):
                one.kill()
        for mine in self.processes.values():
            mine.wait()

    def alive(self) -> list[psutil.Process]:
        """Every process that descends from this run, also those whose parents are gone."""
        return [one for one in psutil.process_iter() if self._ours(one)]

    def _ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return bool(process.environ().get(MARK) == self.token)
        except psutil.Error:
            return False

    def _find(self, victim: str) -> psutil.Process | None:
        part = {
            "gateway": self.layout if self.layout == "up" else "serve",
            "engine": "instar.backends.torch_worker",
            "learner": "train",
            "judge": "judge",
            "trainer": "train",
        }[victim]
        for one in self.alive():
            with suppress(psutil.NoSuchProcess):
                if part in one.cmdline():
                    return one
        return None

    def _spawn(self, name: str) -> None:
        command = {
            "up": ["up", "--json", "--port", str(self.port)],
            "serve": ["serve", "--json", "--port", str(self.port)],
            "judge": ["judge", "run"],
            "train": ["train", "--no-judge"],
        }[name]
        argv = [sys.executable, "-c", IMPATIENT if name == "up" else START, *command]
        argv += ["--home", str(self.home)]
        argv += [part for one in self.sets for part in ("--set", one)]
        environ = {**os.environ, MARK: self.token, "OMP_NUM_THREADS": "1"}
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ
            )


@dataclass
class Run:
    """What a run of kills leaves to be looked at."""

    fleet: Fleet
    client: Client
    killed: Counter[str]
    codes: dict[str, int]

    def summary(self) -> str:
        kills = ", ".join(f"{count} {name}" for name, count in sorted(self.killed.items()))
        answered = len(self.client.answered)
        return f"kills: {kills}; {answered} turns answered, {self.client.failed} requests failed"


@asynccontextmanager
async def managed(fleet: Fleet) -> AsyncIterator[None]:
    manager = asyncio.ensure_future(fleet.manage())
    try:
        yield
    finally:
        manager.cancel()
        with suppress(asyncio.CancelledError):
            await manager


@asynccontextmanager
async def talking(client: Client, count: int = 2) -> AsyncIterator[None]:
    stop = asyncio.Event()
    talkers = [asyncio.ensure_future(client.talk(stop)) for _ in range(count)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*talkers)


async def kill_often(home: Path, *, layout: str, kills: int, seed: int) -> Run:
    """Kill so many times while a client talks; then let it come to rest and stop."""
    rng = random.Random(seed)
    fleet = Fleet(home, layout)
    client = Client(fleet.address, random.Random(seed + 1))
    killed: Counter[str] = Counter()
    try:
        fleet.start()
        async with managed(fleet), talking(client):
            await until(lambda: len(client.answered) > 2, PATIENCE_S)
            for _ in range(kills):
                await _moment(rng.choice(MOMENTS), rng.uniform(0, 5), home)
                victim = rng.choice(WHOLE[layout])
                await until(partial(fleet.kill, victim), PATIENCE_S)
                killed[victim] += 1
            # Everybody is back once there is another version: answered, judged and trained.
            trained = _count(home, "versions")
            await until(lambda: _count(home, "versions") > trained + 1, PATIENCE_S)
        await until(lambda: _at_rest(home), PATIENCE_S)
        return Run(fleet, client, killed, await fleet.stop())
    finally:
        fleet.end()


async def _moment(kind: str, seconds: float, home: Path) -> None:
    """Wait for a random time, and then perhaps until one of the trainer's writes is under way."""
    await asyncio.sleep(seconds)
    watched: dict[str, Callable[[], bool]] = {
        "files": lambda: any(_glob(home / "versions", f"{OWNER}/.*")),
        "state": lambda: any(_glob(home / "training", f"{OWNER}/*.part")),
        "candidate": lambda: _count(home, "versions WHERE state = 'candidate'") > 0,
    }
    if kind in watched:
        with suppress(TimeoutError):
            await until(watched[kind], 10, every=0.003)


def _glob(folder: Path, pattern: str) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from folder.glob(pattern)


def _at_rest(home: Path) -> bool:
    """Nothing waits for the judge, for the trainer or for the gate."""
    waiting = ("turns WHERE ready = 1", "versions WHERE state = 'candidate'")
    return all(_count(home, one) == 0 for one in waiting)


def _count(home: Path, what: str) -> int:
    try:
        with closing(sqlite3.connect(f"file:{home / 'instar.db'}?mode=ro", uri=True)) as store:
            return int(store.execute(f"SELECT count(*) FROM {what}").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


async def until(condition: Callable[[], Any], timeout_s: float, *, every: float = 0.05) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(every)


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
