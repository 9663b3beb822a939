"""What the engine and its worker process say to each other, in the frames of `wire`.

The engine sends `Start` once, then calls and requests; the worker answers `Ready` or `Refused`,
`Done` for each call, `Stepped` for each step of the batch and `Failed` for a reply that broke.
"""

from __future__ import annotations

import asyncio
import socket

import msgspec

from instar.backends.wire import LENGTH, body_size, frame


class Start(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first frame: which model to serve and how."""

    model: str
    device: str
    dtype: str
    threads: int
    context: int | None
    max_running: int
    prefill_chunk: int
    cache_bytes: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model is loaded and warm."""

    context: int
    vocab: int
    device: str
    path: str
    """`lean` or `transformers`: which code runs the model."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model could not be loaded; the worker ends after this."""

    reason: str


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Draw a reply."""

    id: int
    version: str
    prompt: list[int]
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    max_tokens: int
    stop: tuple[str, ...]
    stop_ids: tuple[int, ...]
    top_logprobs: int


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop a reply; nothing more is said of it."""

    id: int


class Load(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make an adapter resident; answered by `Done`."""

    call: int
    version: str
    folder: str


class Drop(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forget an adapter; answered by `Done`."""

    call: int
    version: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A call is finished; `error` says why it was refused."""

    call: int
    error: str | None = None


class Token(msgspec.Struct, frozen=True, array_like=True):
    """One sampled token of one reply."""

    id: int
    token: int
    logprob: float
    finish: str | None = None
    cached: int = 0
    top: tuple[tuple[int, float], ...] = ()


class Stepped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one step of the batch drew, and how busy the worker is."""

    tokens: list[Token]
    running: int
    waiting: int
    cache_bytes: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reply broke in the worker."""

    id: int
    reason: str


ToWorker = Start | Generate | Cancel | Load | Drop
FromWorker = Ready | Refused | Done | Stepped | Failed

_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def pack(message: ToWorker | FromWorker) -> bytes:
    """A message as a frame."""
    return frame(message)


def receive(sock: socket.socket) -> ToWorker | None:
    """The next message for the worker, or None when the engine is gone."""
    head = _exactly(sock, LENGTH.size)
    if head is None:
        return None
    body = _exactly(sock, body_size(head))
    return None if body is None else _to_worker.decode(body)


async def read(stream: asyncio.StreamReader) -> FromWorker | None:
    """The next message from the worker, or None when it is gone."""
    try:
        body = await stream.readexactly(body_size(await stream.readexactly(LENGTH.size)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return _from_worker.decode(body)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = sock.recv(size - len(parts))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
