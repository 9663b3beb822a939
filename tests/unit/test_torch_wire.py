"""Frames between the engine and its worker."""

from __future__ import annotations

import asyncio
import socket
import threading

import msgspec
import pytest

from instar.backends import torch_wire as wire
from instar.backends.wire import LENGTH, MAX_FRAME

GENERATE = wire.Generate(
    id=7,
    version="base",
    prompt=[1, 2, 3],
    temperature=0.7,
    top_p=0.9,
    top_k=4,
    seed=None,
    max_tokens=5,
    stop=("END", "ü"),
    stop_ids=(2,),
    top_logprobs=1,
)
STEPPED = wire.Stepped(
    tokens=[
        wire.Token(7, 42, -0.125, None, 12, ((42, -0.125), (1, -3.0))),
        wire.Token(8, 2, -1.5, "stop"),
    ],
    running=1,
    waiting=3,
    cache_bytes=10**12,
)


@pytest.mark.parametrize(
    "message",
    [
        GENERATE,
        wire.Cancel(id=1),
        wire.Load(call=2, version="v1", folder="somewhere"),
        wire.Drop(call=3, version="v1"),
    ],
)
def test_the_worker_receives_what_was_sent(message: wire.ToWorker) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(wire.pack(message))
        assert wire.receive(theirs) == message


def test_frames_that_arrive_in_bits_are_put_together() -> None:
    ours, theirs = socket.socketpair()
    data = wire.pack(GENERATE) + wire.pack(wire.Cancel(id=9))

    def trickle() -> None:
        for at in range(len(data)):
            ours.sendall(data[at : at + 1])

    sender = threading.Thread(target=trickle)
    with ours, theirs:
        sender.start()
        assert wire.receive(theirs) == GENERATE
        assert wire.receive(theirs) == wire.Cancel(id=9)
        sender.join()


@pytest.mark.parametrize("cut", [0, 2, 9])
def test_the_end_of_the_engine_is_noticed_anywhere(cut: int) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(wire.pack(GENERATE)[:cut])
        assert wire.receive(theirs) is None


async def test_the_engine_reads_what_the_worker_sent() -> None:
    stream = asyncio.StreamReader()
    failed = wire.Failed(id=1, reason="no memory")
    stream.feed_data(wire.pack(STEPPED) + wire.pack(failed) + wire.pack(STEPPED)[:6])
    stream.feed_eof()
    assert await wire.read(stream) == STEPPED
    assert await wire.read(stream) == failed
    assert await wire.read(stream) is None


def test_an_absurd_length_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(LENGTH.pack(MAX_FRAME + 1))
        with pytest.raises(ValueError, match="bytes"):
            wire.receive(theirs)


def test_the_worker_takes_no_answers() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(wire.pack(STEPPED))
        with pytest.raises(msgspec.ValidationError):
            wire.receive(theirs)
