"""What the gateway costs, over the fake engine, with recording on.

    python benchmarks/gateway.py [--litellm-python PYTHON] [--json]

Two measurements. Added latency: 64 clients stream replies whose engine pauses a fixed time before
each piece; what a reply takes beyond those pauses is what was added. Requests a second: 64 clients
ask for short replies as fast as they get them, from instar and from the LiteLLM proxy (its own
virtual environment, `pip install 'litellm[proxy]'`), each in front of the same scripted replies.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from rich.console import Console
from rich.table import Table

from _load import Result, percentile, run

HERE = Path(__file__).parent
MODEL = "smollm2-135m-instruct"
PIECES, DELAY_MS = 25, 40.0
"""Pieces of four tokens: each stream gets 100 tokens a second, for a second."""


def main() -> None:
    args = _arguments()
    found: dict[str, Any] = {"cores": os.cpu_count(), "clients": args.clients}
    with tempfile.TemporaryDirectory() as home:
        found["added"] = added_latency(Path(home), args.clients, args.seconds)
        found["instar"] = requests_per_second(Path(home), args.clients, args.seconds)
        if args.litellm_python:
            found["litellm"] = litellm(Path(home), args)
            found["ratio"] = found["instar"]["requests_s"] / found["litellm"]["requests_s"]
    if args.json:
        print(json.dumps(found))
    else:
        _show(found)


def added_latency(home: Path, clients: int, seconds: float) -> dict[str, float]:
    """Beyond the engine's own pauses, over streams that arrive spread out."""
    tokens = PIECES * 4
    with instar(home, f"engine.delay_ms={DELAY_MS}") as url:
        bodies = [_body(n, tokens, stream=True) for n in range(int(clients * seconds))]
        run(url, bodies[:clients], concurrency=clients)
        results, _ = run(url, bodies, concurrency=clients, spread_s=PIECES * DELAY_MS / 1000)
    check(results)
    pause = DELAY_MS / 1000
    direct = direct_engine(clients, tokens)
    first = [(r.first - pause) * 1000 for r in results]
    whole = [(r.last - direct["whole_s"]) * 1000 for r in results]
    return {
        "replies": len(results),
        "first_p50_ms": percentile(first, 0.5),
        "first_p99_ms": percentile(first, 0.99),
        "whole_p50_ms": percentile(whole, 0.5),
        "whole_p99_ms": percentile(whole, 0.99),
        "engine_alone_s": direct["whole_s"],
    }


def direct_engine(clients: int, tokens: int) -> dict[str, float]:
    """The same replies, taken from the engine itself in one process: the median of their times."""
    import asyncio

    from instar.backends.fake import open_engine
    from instar.config import FakeEngine
    from instar.types import Request, Sampling

    async def one(engine: Any, n: int) -> float:
        sampling = Sampling(max_tokens=tokens)
        start = time.perf_counter()
        request = Request(id=str(n), prompt_ids=[1, 2, 3, n], sampling=sampling)
        async for _ in engine.generate(request):
            pass
        return time.perf_counter() - start

    async def all_of_them() -> list[float]:
        async with open_engine(FakeEngine(delay_ms=DELAY_MS), model=None, name="m") as engine:
            return await asyncio.gather(*(one(engine, n) for n in range(clients)))

    return {"whole_s": percentile(asyncio.run(all_of_them()), 0.5)}


def requests_per_second(home: Path, clients: int, seconds: float) -> dict[str, float]:
    with instar(home) as url:
        return _rate(url, clients, seconds)


def litellm(home: Path, args: argparse.Namespace) -> dict[str, float]:
    """LiteLLM's proxy in front of a server that replies as the fake engine does."""
    upstream, proxy = _free_port(), _free_port()
    config = home / "litellm.yaml"
    config.write_text(
        json.dumps(
            {
                "model_list": [
                    {
                        "model_name": MODEL,
                        "litellm_params": {
                            "model": f"openai/{MODEL}",
                            "api_base": f"http://127.0.0.1:{upstream}/v1",
                            "api_key": "x",
                        },
                    }
                ],
                "litellm_settings": {"telemetry": False},
            }
        )
    )
    beside = Path(args.litellm_python).parent / "litellm"
    quiet = {**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    quiet["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    command = [str(beside), "--config", str(config), "--port", str(proxy), "--host", "127.0.0.1"]
    with (
        _process([sys.executable, str(HERE / "_upstream.py"), str(upstream)]),
        _process(command, env=quiet),
    ):
        url = f"http://127.0.0.1:{proxy}/v1/chat/completions"
        _await_answer(f"http://127.0.0.1:{proxy}/health/liveliness", 120)
        return _rate(url, args.clients, args.seconds)


def _rate(url: str, clients: int, seconds: float) -> dict[str, float]:
    warm = [_body(n, 16, stream=False) for n in range(clients * 2)]
    results, spent = run(url, warm, concurrency=clients)
    check(results)
    count = max(clients * 2, int(len(warm) / spent * seconds))
    bodies = [_body(n, 16, stream=False) for n in range(count)]
    results, spent = run(url, bodies, concurrency=clients)
    check(results)
    times = [r.last * 1000 for r in results]
    return {
        "requests_s": len(results) / spent,
        "p50_ms": percentile(times, 0.5),
        "p99_ms": percentile(times, 0.99),
    }


def check(results: list[Result]) -> None:
    bad = [r.status for r in results if r.status != 200]
    if bad:
        raise SystemExit(f"{len(bad)} of {len(results)} requests failed, the first with {bad[0]}")


def _body(n: int, tokens: int, *, stream: bool) -> bytes:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"Tell me about the number {n}, in a few words."},
        ],
        "max_tokens": tokens,
        "stream": stream,
    }
    if stream:
        body |= {"stream_options": {"include_usage": True}, "ignore_eos": True}
    return json.dumps(body).encode()


@contextmanager
def instar(home: Path, *sets: str) -> Iterator[str]:
    port = _free_port()
    command = [sys.executable, "-m", "instar", "serve", "--home", str(home)]
    command += ["--port", str(port), "--set", "engine.type=fake", "--log-level", "warning"]
    for one in sets:
        command += ["--set", one]
    with _process(command):
        _await_answer(f"http://127.0.0.1:{port}/readyz", 30)
        yield f"http://127.0.0.1:{port}/v1/chat/completions"


@contextmanager
def _process(command: list[str], env: dict[str, str] | None = None) -> Iterator[None]:
    child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.terminate()
        child.wait()


def _await_answer(url: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=1)
            return
        except OSError:
            if time.monotonic() > until:
                raise SystemExit(f"{url} did not answer within {seconds:.0f} s") from None
            time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _show(found: dict[str, Any]) -> None:
    console = Console()
    added = found["added"]
    table = Table("added by the gateway", "p50", "p99", title=f"{found['clients']} streams")
    for name in ("first", "whole"):
        p50, p99 = added[f"{name}_p50_ms"], added[f"{name}_p99_ms"]
        table.add_row(f"{name} reply", f"{p50:.2f} ms", f"{p99:.2f} ms")
    console.print(table)
    rates = Table("server", "requests/s", "p50", "p99")
    for name in ("instar", "litellm"):
        if name in found:
            r = found[name]
            rates.add_row(
                name, f"{r['requests_s']:.0f}", f"{r['p50_ms']:.1f} ms", f"{r['p99_ms']:.1f} ms"
            )
    console.print(rates)
    if "ratio" in found:
        console.print(f"instar answers {found['ratio']:.1f} times the requests of LiteLLM")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--litellm-python", help="a Python that has litellm[proxy]")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
