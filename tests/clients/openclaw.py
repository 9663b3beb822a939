"""A real OpenClaw: its config, its gateway, and a person who talks to it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from programs import OPENCLAW, environment, free_port, run

WINDOW = 200_000
"""Tokens that OpenClaw believes the model to have; the fake engine counts a byte as one."""

LEAN: dict[str, Any] = {
    "agents": {"defaults": {"contextInjection": "never", "skipBootstrap": True, "skills": []}},
    "tools": {"allow": ["read", "write", "edit", "exec"], "toolSearch": False},
}
"""Cuts OpenClaw's prompt from 54 KB to 11 KB, and its block of context at the end with it."""


@dataclass
class OpenClaw:
    """OpenClaw in a folder of its own."""

    home: Path
    lean: bool = False
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        return environment(self.home, OPENCLAW_STATE_DIR=str(self.home))

    def configure(self, provider: dict[str, Any] | None = None) -> Path:
        """Its config, as a person would have it before they hear of instar."""
        config: dict[str, Any] = {
            "agents": {
                "defaults": {
                    "workspace": str(self.home / "workspace"),
                    "compaction": {
                        "mode": "default",
                        # Flush as soon as there is anything to remember.
                        "memoryFlush": {"forceFlushTranscriptBytes": "1kb"},
                    },
                }
            },
            "gateway": {
                "mode": "local",
                "bind": "loopback",
                "port": self.port,
                "auth": {"mode": "token", "token": "t"},
            },
        }
        if self.lean:
            config["agents"]["defaults"] |= LEAN["agents"]["defaults"]
            config["tools"] = LEAN["tools"]
        if provider:
            config["models"] = {"providers": {"instar": provider}}
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "workspace").mkdir(exist_ok=True)
        file = self.home / "openclaw.json"
        file.write_text(f"// This person's own.\n{json.dumps(config, indent=2)}\n", "utf-8")
        return file

    async def command(self, *words: str, code: int | None = 0) -> str:
        return await run([OPENCLAW / "openclaw", *words], env=self.env, code=code)

    def spawn(self) -> subprocess.Popen[bytes]:
        with (self.home / "gateway.log").open("ab") as log:
            return subprocess.Popen(
                [OPENCLAW / "openclaw", "gateway", "run"], env=self.env, stdout=log, stderr=log
            )

    async def start(self) -> None:
        self.process = self.spawn()
        async with asyncio.timeout(180), httpx.AsyncClient() as http:
            while True:
                assert self.process.poll() is None, self.log()
                try:
                    await http.get(f"http://127.0.0.1:{self.port}/")
                except httpx.TransportError:
                    await asyncio.sleep(0.2)
                else:
                    return

    async def stop(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self.process.wait, 60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def log(self) -> str:
        return (self.home / "gateway.log").read_text("utf-8", "replace")

    async def say(self, session: str, text: str) -> str:
        """What the agent answers, after all its tool calls."""
        told = await self.command("agent", "--session-key", _key(session), "--message", text)
        return told.strip().splitlines()[-1]

    async def compact(self, session: str) -> None:
        await self.command("sessions", "compact", _key(session))

    async def reset(self, session: str) -> None:
        await self.call("sessions.reset", key=_key(session))

    async def wake(self) -> None:
        """A heartbeat, now."""
        await self.command("system", "event", "--text", "look around", "--mode", "now")

    async def call(self, method: str, **params: Any) -> str:
        return await self.command("gateway", "call", method, "--params", json.dumps(params))


def _key(session: str) -> str:
    return f"agent:main:{session}"
