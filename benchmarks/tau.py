"""Tool steps a second of tau through the whole path, over the fake engine.

    python benchmarks/tau.py [--domain shop] [--attempts 400] [--parallel 64] [--profile] [--json]

A scripted policy calls a tool in every turn; each turn is one HTTP request, one recorded turn and
one call of a tool. The gateway runs in a process of its own, as it does in use. Said in the end is
where the time of the slowest process went, by parts. `--domain airline` needs inspect-evals (`make
install-envs`), and then steps the real airline domain of tau2-bench.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from instar.envs.client import Draw, GatewayClient, model_name
from instar.envs.play import Limits
from instar.envs.runner import Plan, Runner
from instar.launch import started

CALLS = {
    "shop": {"name": "get_booking", "arguments": {"booking_id": "B120"}},
    "airline": {"name": "get_user_details", "arguments": {"user_id": "raj_sanchez_7340"}},
    "retail": {"name": "get_order_details", "arguments": {"order_id": "#W2378156"}},
    "telecom": {"name": "get_customer_by_phone", "arguments": {"phone_number": "555-123-2002"}},
}
STEPS = 10
"""Tool calls an attempt, and a message that ends it."""


def main() -> None:
    args = _arguments()
    with tempfile.TemporaryDirectory() as home:
        found = asyncio.run(measure(args, Path(home)))
    print(json.dumps(found)) if args.json else _show(found)


async def measure(args: argparse.Namespace, home: Path) -> dict[str, Any]:
    load = os.getloadavg()[0]
    script = home / "script.jsonl"
    line = {"session": "*", "tool_calls": [CALLS[args.domain]]}
    lines = [line] * STEPS + [{"session": "*", "text": "It is done."}]
    script.write_text("\n".join(json.dumps(one) for one in lines), "utf-8")
    sets = [
        "engine.type=fake",
        f"engine.script={script}",
        f"engine.piece_tokens={args.piece_tokens}",
        f"rollout_config.max_concurrent_sessions={4 * args.parallel}",
    ]
    options: dict[str, Any] = {"domain": args.domain}
    if args.domain != "shop":
        options |= {"user": "script", "lines": ["Hello."]}
        options |= {"python": args.python} if args.python else {}
    plan = Plan(
        environment="tau",
        run="bench",
        split="train",
        tasks=args.attempts,
        group=1,
        parallel=args.parallel,
        options=options,
        limits=Limits(max_turns=STEPS + 2),
        draw=Draw(max_tokens=512),
    )
    async with started(home, sets, command="serve") as address:
        client = GatewayClient(address, model=await model_name(address, None))
        runner = Runner(plan, client)
        await runner.prepare()
        profile = cProfile.Profile() if args.profile else None
        begun, before = time.perf_counter(), _cpu()
        if profile:
            profile.enable()
        await runner.play()
        if profile:
            profile.disable()
        spent, used = time.perf_counter() - begun, _cpu() - before
        await client.close()
    # Once the gateway has ended, its processor time is known.
    gateway = _cpu(resource.RUSAGE_CHILDREN)
    turns = runner.progress.turns
    steps = turns - len(runner.attempts)
    if profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    return {
        "domain": args.domain,
        "cores": os.cpu_count(),
        "load_before": load,
        "parallel": args.parallel,
        "attempts": len(runner.attempts),
        "statuses": dict(runner.progress.statuses),
        "tool_steps": steps,
        "seconds": spent,
        "tool_steps_per_s": steps / spent,
        "turns_per_s": turns / spent,
        "runner_cpu_ms_a_turn": 1000 * used / turns,
        "gateway_cpu_ms_a_turn": 1000 * gateway / turns,
        "environment_ms_a_turn": 1000 * runner.progress.acting_s / turns,
    }


def _cpu(who: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _show(found: dict[str, Any]) -> None:
    table = Table("what", "value", title=f"tau, {found['domain']}, fake engine")
    for name, value in found.items():
        table.add_row(name, f"{value:.2f}" if isinstance(value, float) else str(value))
    Console(highlight=False).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--domain", default="shop", choices=sorted(CALLS))
    parser.add_argument("--attempts", type=int, default=400)
    parser.add_argument("--parallel", type=int, default=64)
    # The fake engine's tokens are bytes: sixteen of them are about four of a real tokenizer.
    parser.add_argument("--piece-tokens", type=int, default=16)
    parser.add_argument("--python", help="the Python that has inspect-evals")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
