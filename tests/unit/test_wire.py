"""Frames on a socket, and a child that does not outlive its parent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import psutil
import pytest

from instar.backends import wire

ECHO = """
    import asyncio, msgspec
    from instar.backends import wire

    async def main():
        channel = await wire.Channel.open(wire.inherited_socket())
        async for body in channel:
            channel.send(msgspec.msgpack.decode(body))

    wire.die_with_parent()
    print("hello from the child", flush=True)
    asyncio.run(main())
"""


def test_frames_survive_any_cut() -> None:
    messages = [1, "two", [3, 4], b"x" * 300]
    stream = b"".join(map(wire.frame, messages))
    for size in (1, 3, 7, len(stream)):
        frames = wire.Frames()
        found = [
            msgspec.msgpack.decode(body)
            for at in range(0, len(stream), size)
            for body in frames.push(stream[at : at + size])
        ]
        assert found == messages


async def started(code: str, log: Path) -> wire.Child:
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    return await wire.spawn(argv, env=dict(os.environ), log=log)


async def test_a_child_answers_and_ends(tmp_path: Path) -> None:
    child = await started(ECHO, tmp_path / "log")
    big = list(range(100_000))
    child.channel.send(big)
    async for body in child.channel:
        assert msgspec.msgpack.decode(body) == big
        break
    await child.stop()
    assert child.tail() == "hello from the child"
    assert not psutil.pid_exists(child.process.pid)


async def test_what_went_wrong_first_is_quoted_before_the_last_words(tmp_path: Path) -> None:
    code = """
    for _ in range(2):
        print("(core pid=7) ValueError: a head of 8 is too small")
    for number in range(30):
        print("line", number)
    print("RuntimeError: a child failed, see above")
    """
    child = await started(code, tmp_path / "log")
    await child.process.wait()
    await child.stop()
    told = child.tail(lines=3).splitlines()
    assert told[:2] == ["(core pid=7) ValueError: a head of 8 is too small", "..."]
    assert told[2:] == ["line 28", "line 29", "RuntimeError: a child failed, see above"]


async def test_grandchildren_end_too(tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
    child = await started(code, tmp_path / "log")
    await child.process.wait()  # input() finds no standard input.
    grandchild = psutil.Process(int(child.tail().splitlines()[0]))
    assert grandchild.is_running()
    await child.stop()
    gone, _ = psutil.wait_procs([grandchild], timeout=10)
    assert gone


async def test_a_child_that_cannot_start_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(psutil.Process().open_files()), psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError):
        await wire.spawn(["/no/such/program"], env={}, log=tmp_path / "log")
    await asyncio.sleep(0)
    assert (len(psutil.Process().open_files()), psutil.Process().num_fds()) == before


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    code = f"""
        import asyncio, os, sys
        from pathlib import Path
        from instar.backends import wire

        async def main():
            argv = [sys.executable, "-c", {textwrap.dedent(ECHO)!r}]
            child = await wire.spawn(argv, env=dict(os.environ), log=Path({str(tmp_path)!r}, "log"))
            child.channel.send("ready")
            async for _ in child.channel:
                print(child.process.pid, flush=True)

        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    gone, _ = psutil.wait_procs([child], timeout=10)
    assert gone
