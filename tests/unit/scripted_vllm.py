"""Stands in for `python -m instar.backends.vllm_server`: the same frames, without vLLM.

SCRIPT in the environment says how it behaves, NOTES names a file where it notes what it is told.
A prompt that starts with 666 kills it; one that starts with 7 never ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from instar.backends import wire
from instar.backends.vllm_wire import REFUSED, Abort, Ask, Done, Drop, Load, Part, Ready, Step

SCRIPT = os.environ.get("SCRIPT", "")
NOTES = Path(os.environ["NOTES"])


def note(text: str) -> None:
    with NOTES.open("a") as file:
        file.write(f"{text}\n")


def fault(folder: str) -> str | None:
    return "bad rank" if "bad" in folder or Path(folder, "damaged").exists() else None


async def reply(channel: wire.Channel, ask: Ask) -> None:
    if ask.prompt_ids[0] == 666:
        channel.send(Step([Part(id=ask.id, ids=[1], logprobs=[-1.0])]))
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    if ask.prompt_ids[0] == 13:
        bad = Part(id=ask.id, ids=[], logprobs=[], finish=REFUSED, error="token 13 is unlucky")
        channel.send(Step([bad]))
        return
    scale = 1.0 if SCRIPT == "unscaled" else (ask.temperature or 1.0)
    number = 0
    while number < ask.max_tokens or ask.prompt_ids[0] == 7:
        last = number == ask.max_tokens - 1
        part = Part(id=ask.id, ids=[100 + number % 50], logprobs=[-0.5])
        part.top = [[(i, -i / scale) for i in range(ask.top)]] if ask.top else []
        part.finish = "length" if last and ask.prompt_ids[0] != 7 else None
        part.cached = 3 if number == 0 else 0
        if ask.prompt_ids[0] == 8:
            part.logprobs = []
        channel.send(Step([part]))
        number += 1
        await asyncio.sleep(0.001)


def start() -> None:
    wire.die_with_parent()
    note(f"start {' '.join(sys.argv[1:])}")
    starts = sum(line.startswith("start") for line in NOTES.read_text().splitlines())
    if SCRIPT == "dies" or (SCRIPT == "dies once" and starts == 2):
        sys.exit("no such model")
    if SCRIPT == "hangs":
        time.sleep(60)


async def main() -> None:
    channel = await wire.Channel.open(wire.inherited_socket())
    channel.send(Ready(context=64, device="none", release="0"))
    tasks: dict[int, asyncio.Task[None]] = {}
    async for body in channel:
        match msgspec.msgpack.decode(body, type=Ask | Abort | Load | Drop):
            case Ask() as ask:
                tasks[ask.id] = asyncio.create_task(reply(channel, ask))
            case Abort(id=number):
                note("abort")
                tasks.pop(number).cancel()
            case Load() as load:
                note(f"load {load.lora} {load.name}")
                channel.send(Done(load.call, fault(load.folder)))
            case Drop() as drop:
                note(f"drop {drop.lora}")
                channel.send(Done(drop.call, None))


start()
asyncio.run(main())
