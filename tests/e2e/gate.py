"""A gateway over the fake engine for tests: inside this process, or in one of its own."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI

from instar.config import EMBEDDED_MODEL, Config
from instar.config_load import load_config
from instar.loop import Status, System, engine_stats, open_system, serve
from instar.record.export import export_sessions
from instar.record.store import open_store
from instar.text import byte_tokenizer
from instar.types import Turn

MODEL = EMBEDDED_MODEL
BYTES = byte_tokenizer()
END = "<|im_end|>"

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at something.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}


def fake_settings(home: Path, script: Iterable[Mapping[str, Any]], **settings: Any) -> list[str]:
    """`--set` values: `engine__delay_ms=5` stands for engine.delay_ms=5."""
    lines = [json.dumps(entry) for entry in script]
    sets = ["engine.type=fake"]
    if lines:
        file = home / "script.jsonl"
        file.write_text("\n".join(lines), "utf-8")
        sets.append(f"engine.script={file}")
    return sets + [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]


def fake_config(home: Path, script: Iterable[Mapping[str, Any]] = (), **settings: Any) -> Config:
    return load_config(None, fake_settings(home, script, **settings)).config


@dataclass
class Gate:
    """A gateway in this process, called without a socket."""

    system: System
    http: httpx.AsyncClient

    async def post(self, body: Any, **headers: str) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=body, headers=_named(headers))

    async def ask(self, messages: Any, *, headers: Any = None, **fields: Any) -> dict[str, Any]:
        """A whole reply, which must be one."""
        answer = await self.http.post(
            "/v1/chat/completions", json=body(messages, **fields), headers=headers
        )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def say(self, messages: Any, *, headers: Any = None, **fields: Any) -> dict[str, Any]:
        """The message of a whole reply."""
        answer = await self.ask(messages, headers=headers, **fields)
        message: dict[str, Any] = answer["choices"][0]["message"]
        return message

    async def turns(self, session: str, owner: str = "local") -> list[Turn]:
        return await self.system.store.turns(owner, session)

    async def all_turns(self, owner: str = "local") -> list[Turn]:
        sessions = await self.system.store.sessions(owner)
        return [turn for one in sessions for turn in await self.turns(one.id, owner)]

    @property
    def running(self) -> int:
        return int(engine_stats(self.system.engine)["running"])

    async def metric(self, name: str) -> float:
        text = (await self.http.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@asynccontextmanager
async def gate(
    home: Path, script: Iterable[Mapping[str, Any]] = (), **settings: Any
) -> AsyncIterator[Gate]:
    """Everything but the socket."""
    config = fake_config(home, script, **settings)
    async with open_system(config, home) as system:
        transport = httpx.ASGITransport(app=system.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gate") as http:
            yield Gate(system, http)


@asynccontextmanager
async def listening(
    home: Path, script: Iterable[Mapping[str, Any]] = (), **settings: Any
) -> AsyncIterator[str]:
    """A gateway in this process behind a real socket; gives its address, with /v1."""
    config = fake_config(home, script, gateway__port=0, **settings)
    stop, ready = asyncio.Event(), asyncio.Event()
    seen: list[Status] = []

    def on_status(status: Status) -> None:
        seen.append(status)
        if status.state == "serving":
            ready.set()

    task = asyncio.ensure_future(serve(config, home, stop=stop, on_status=on_status))
    waiting = asyncio.ensure_future(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        await task
    try:
        yield seen[-1].address
    finally:
        stop.set()
        await task


@asynccontextmanager
async def sdk(address: str, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    options = {"api_key": "sk-none", "max_retries": 0, **options}
    async with AsyncOpenAI(base_url=address, **options) as client:
        yield client


@dataclass
class Served:
    """`instar serve` in a process of its own; it may be killed and started again."""

    home: Path
    sets: list[str]
    options: list[str] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    address: str = ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def spawn(self) -> subprocess.Popen[bytes]:
        start = "from instar.cli import main; main()"
        argv = [sys.executable, "-c", start, "serve", "--home", str(self.home), "--json"]
        argv += [part for one in self.sets for part in ("--set", one)]
        if not any(option == "--port" for option in self.options):
            argv += ["--port", "0"]
        environ = {**os.environ, **self.environ}
        with (self.home / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*argv, *self.options], stdout=subprocess.PIPE, stderr=log, env=environ
            )
        return self.process

    async def start(self, timeout_s: float = 60.0) -> str:
        """Start and wait until it serves; gives its address, with /v1."""
        self.spawn()
        async with asyncio.timeout(timeout_s):
            self.address = await asyncio.to_thread(self._await_serving)
        return self.address

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self._reap()

    async def stop(self, timeout_s: float = 20.0) -> int:
        """Stop by SIGINT, as Ctrl-C does; gives the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        try:
            return await asyncio.to_thread(self.process.wait, timeout_s)
        finally:
            self._reap()

    def log(self) -> str:
        return (self.home / "serve.log").read_text("utf-8", "replace")

    async def export(self) -> list[dict[str, Any]]:
        """All recorded turns, as `instar sessions export` writes them."""
        async with open_store(f"sqlite:///{self.home / 'instar.db'}") as store:
            return [json.loads(line) async for line in export_sessions(store)]

    def _await_serving(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            status = json.loads(line)
            if status["state"] == "serving":
                return str(status["address"])
        raise RuntimeError(f"instar serve ended: {self.log()}")

    def _reap(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self.process = None


def body(messages: Any, **fields: Any) -> dict[str, Any]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"model": MODEL, "messages": messages, **fields}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def decoded(ids: Iterable[int]) -> str:
    text: str = BYTES.decode(list(ids), skip_special_tokens=False)
    return text


def extends(turn: Turn, parent: Turn) -> bool:
    """Whether the prompt begins with the parent's prompt and reply, token by token."""
    return turn.prompt_ids[: len(parent.ids)] == parent.ids


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, which must have OpenAI's shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    return error


async def until(condition: Any, timeout_s: float = 10.0) -> None:
    """Wait for something that must come, however long the machine takes for it."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.01)


async def events(lines: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """The data of each server-sent event."""
    async for line in lines:
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


async def hang_up(
    system: System, request: dict[str, Any], *, when: asyncio.Event, sent: list[bytes]
) -> None:
    """A chat request, without a socket, whose client is gone once `when` is set."""
    waiting = [json.dumps(request).encode()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"x-session-id", b"gone")],
        "client": ("127.0.0.1", 1),
        "server": ("gate", 80),
    }

    async def receive() -> dict[str, Any]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        await when.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    with suppress(asyncio.CancelledError):
        await system.app(scope, receive, send)


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
