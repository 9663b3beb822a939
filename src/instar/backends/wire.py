"""The wall between an engine and its process: frames on a socket, a child that dies with us.

A frame is four bytes of length (little endian) and one msgpack value. The child inherits one
end of a socket pair as a file descriptor: there is no address that somebody else could use.
A child that forks may leave its end open after its death: wait for `process` too. Only msgspec
is needed here, so that the child may run under another Python than ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

CHANNEL_FD = "INSTAR_CHANNEL_FD"
"""Environment variable that tells the child which descriptor is its end of the socket."""

LIFELINE_FD = "INSTAR_LIFELINE_FD"
"""Environment variable naming a pipe whose end means that the parent is gone."""

_COMPLAINT = re.compile(r"\b\w*(?:Error|Exception)\b: \S")
_CAUSES = 3
"""Lines that tell of an error, quoted from before the last ones: the first is the cause."""

LENGTH = struct.Struct("<I")
MAX_FRAME = 1 << 28
"""A longer frame is none: the two sides no longer agree where one begins."""
_READ = 1 << 18
_encoder = msgspec.msgpack.Encoder()


def frame(message: Any) -> bytes:
    """One message, ready to be written."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def body_size(head: bytes | bytearray, at: int = 0) -> int:
    """How long the body after this length is."""
    (size,) = LENGTH.unpack_from(head, at)
    if size > MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes; at most {MAX_FRAME} were expected")
    return int(size)


class Frames:
    """Cuts a stream of bytes into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def push(self, data: bytes) -> Iterator[bytes]:
        """The bodies completed by these bytes."""
        buffer, at = self._buffer, 0
        buffer += data
        while len(buffer) - at >= LENGTH.size:
            end = at + LENGTH.size + body_size(buffer, at)
            if len(buffer) < end:
                break
            yield bytes(buffer[at + LENGTH.size : end])
            at = end
        del buffer[:at]


class Channel:
    """One end of the socket, for asyncio: `send` never waits, iterating gives frame bodies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Channel:
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=1 << 22)
        return cls(reader, writer)

    def send(self, message: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Bodies until the other side is gone; a broken connection is an end like any other."""
        frames = Frames()
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(_READ):
                for body in frames.push(data):
                    yield body

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process started by `spawn`, the leader of its own process group."""

    process: asyncio.subprocess.Process
    channel: Channel
    log: Path
    lifeline: int

    async def stop(self, *, grace_s: float = 5.0) -> int:
        """End the child and everything below it; returns its exit status."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), grace_s)
        # Also after a clean exit: a grandchild that hangs would keep the GPU's memory.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        status = await self.process.wait()
        await self.channel.close()
        with contextlib.suppress(OSError):
            os.close(self.lifeline)
        return status

    def tail(self, *, lines: int = 15) -> str:
        """The last lines that the child wrote, for an error message, after what had gone wrong.

        A child with children of its own often ends by saying only that one of them failed.
        """
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 65_536))
                text = file.read().decode("utf-8", errors="replace")
        except OSError as error:
            return f"(no log: {error})"
        found = text.splitlines()
        earlier = [line for line in found[:-lines] if _COMPLAINT.search(line)]
        causes = list(dict.fromkeys(earlier))[:_CAUSES]
        return "\n".join([*causes, *(["..."] if causes else []), *found[-lines:]])


async def spawn(argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> Child:
    """Start a child with a channel to it; what it prints goes to `log`."""
    ours, theirs = socket.socketpair()
    alive, lifeline = os.pipe()
    os.set_inheritable(lifeline, False)
    fds = {CHANNEL_FD: str(theirs.fileno()), LIFELINE_FD: str(alive)}
    try:
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env={**env, **fds},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=(theirs.fileno(), alive),
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        os.close(lifeline)
        raise
    finally:
        theirs.close()
        os.close(alive)
    ours.setblocking(False)
    return Child(process=process, channel=await Channel.open(ours), log=log, lifeline=lifeline)


def inherited_socket() -> socket.socket:
    """The child's end of the channel. Call once, at its start."""
    sock = socket.socket(fileno=int(os.environ.pop(CHANNEL_FD)))
    # Grandchildren must not hold the channel open after the child's death.
    sock.set_inheritable(False)
    return sock


def die_with_parent() -> None:
    """In the child: end the whole process group as soon as the parent is gone.

    A thread that waits for the end of a pipe works while the main thread is busy for minutes
    (a model is loading), covers grandchildren, and does not depend on which thread of the
    parent started us, as PR_SET_PDEATHSIG does.
    """
    lifeline = int(os.environ.pop(LIFELINE_FD))
    os.set_inheritable(lifeline, False)

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(lifeline, 1):
                pass
        sys.stderr.write("the parent process is gone; ending\n")
        sys.stderr.flush()
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
