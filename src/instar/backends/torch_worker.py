"""The engine's process: holds the model and steps the batch.

Run as `python -m instar.backends.torch_worker FD` with one end of a socket. It ends when the
other end closes, so it never outlives the engine.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from instar.backends import torch_wire as wire
from instar.backends.torch_lora import read_adapter
from instar.backends.torch_model import Model, Work, open_model, set_threads
from instar.backends.torch_schedule import Scheduler, make_reply
from instar.errors import ModelError
from instar.text import TextDecoder
from instar.threads import Pace, read_usage
from instar.types import BASE_VERSION

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """An adapter that the loading thread has merged."""

    call: int
    version: str
    weights: Any = None
    error: str | None = None


class Worker:
    """Owns the model; everything but reading frames and merging runs in one thread."""

    def __init__(
        self,
        sock: socket.socket,
        inbox: queue.SimpleQueue[Any],
        start: wire.Start,
        model: Model,
    ) -> None:
        self._sock = sock
        self._inbox = inbox
        self._model = model
        self._folder = Path(start.model)
        self._versions: dict[str, Any] = {BASE_VERSION: model.base}
        self._tokenizer: Tokenizer | None = None
        # On a GPU the threads hardly matter: one reading, and nothing changes.
        limit = start.threads if model.device.type == "cpu" else 1
        self._pace = Pace(limit, read=read_usage)
        self._threads = torch.get_num_threads()
        self._scheduler = Scheduler(
            model,
            max_running=start.max_running,
            prefill_chunk=start.prefill_chunk,
            cache_bytes=start.cache_bytes,
        )
        self._handlers: dict[type, Callable[[Any], None]] = {
            wire.Generate: self._generate,
            wire.Cancel: self._cancel,
            wire.Load: self._load,
            wire.Drop: self._drop,
            _Loaded: self._loaded,
        }

    def serve(self) -> None:
        """Step while there is anything to draw, else wait for a message."""
        while True:
            while not (self._scheduler.busy and self._inbox.empty()):
                message = self._inbox.get()
                self._handlers[type(message)](message)
            self._send_step(self._step())
            # The client has its tokens; only now is it time to copy what they leave behind.
            self._scheduler.tidy()
            if not self._scheduler.busy:
                self._send_step([])

    def _step(self) -> list[wire.Token]:
        if (threads := self._pace.check()) != self._threads and self._model.device.type == "cpu":
            torch.set_num_threads(threads)
            self._threads = threads
        try:
            return self._scheduler.step()
        except Exception as error:
            # One bad step must not end the process: its replies fail, the others go on.
            traceback.print_exc()
            for id in self._scheduler.abandon():
                self._send(wire.Failed(id=id, reason=f"{type(error).__name__}: {error}"))
            if self._model.device.type == "cuda":
                torch.cuda.empty_cache()
            return []

    def _send_step(self, tokens: list[wire.Token]) -> None:
        scheduler = self._scheduler
        self._send(
            wire.Stepped(
                tokens=tokens,
                running=scheduler.running,
                waiting=scheduler.waiting,
                cache_bytes=scheduler.cache.nbytes,
            )
        )

    def _send(self, message: wire.FromWorker) -> None:
        self._sock.sendall(wire.pack(message))

    def _generate(self, message: wire.Generate) -> None:
        weights = self._versions.get(message.version)
        if weights is None:
            reason = f"version {message.version!r} is not resident"
            self._send(wire.Failed(id=message.id, reason=reason))
            return
        try:
            self._scheduler.add(make_reply(message, weights, self._decoder))
        except ModelError as error:
            self._send(wire.Failed(id=message.id, reason=str(error)))

    def _cancel(self, message: wire.Cancel) -> None:
        self._scheduler.cancel(message.id)
        self._send_step([])

    def _decoder(self) -> TextDecoder:
        if self._tokenizer is None:
            path = self._folder / "tokenizer.json"
            if not path.is_file():
                raise ModelError(f"{path} does not exist; stop strings need it.")
            self._tokenizer = Tokenizer.from_file(str(path))
        return TextDecoder(self._tokenizer)

    def _load(self, message: wire.Load) -> None:
        """Merge in a thread of its own, so that the batch goes on."""
        threading.Thread(target=self._merge, args=(message,), daemon=True).start()

    @torch.inference_mode()
    def _merge(self, message: wire.Load) -> None:
        call, version = message.call, message.version
        try:
            weights = self._model.merge(read_adapter(Path(message.folder)))
        except Exception as error:
            reason = str(error) if isinstance(error, ModelError) else repr(error)
            self._inbox.put(_Loaded(call=call, version=version, error=reason))
        else:
            self._inbox.put(_Loaded(call=call, version=version, weights=weights))

    def _loaded(self, message: _Loaded) -> None:
        if message.error is None:
            self._scheduler.cache.forget(message.version)
            self._versions[message.version] = message.weights
        self._send(wire.Done(call=message.call, error=message.error))

    def _drop(self, message: wire.Drop) -> None:
        self._versions.pop(message.version, None)
        self._scheduler.cache.forget(message.version)
        self._send(wire.Done(call=message.call))


def warm_up(model: Model) -> None:
    """Read a few tokens and draw two, so that the first request does not pay for set-up."""
    memory = model.begin(None, shared=0, length=WARM_UP_TOKENS + 2)
    count = min(WARM_UP_TOKENS, model.context - 3)
    model.forward("warm-up", model.base, [_work(memory, [0] * count, "reading")])
    for _ in range(2):
        model.forward("warm-up", model.base, [_work(memory, [0], "drawing")])
    model.release(memory)


def _work(memory: Any, ids: list[int], phase: str) -> Work:
    return Work(memory=memory, ids=ids, decoding=phase == "drawing")


def read_frames(sock: socket.socket, inbox: queue.SimpleQueue[Any]) -> None:
    """Pass frames on until the engine is gone, then end the process at once."""
    while (message := wire.receive(sock)) is not None:
        inbox.put(message)
    os._exit(0)


@torch.inference_mode()
def main(fd: int) -> None:
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    start = wire.receive(sock)
    if not isinstance(start, wire.Start):
        return
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=read_frames, args=(sock, inbox), daemon=True).start()
    set_threads(start.threads)
    try:
        model = open_model(
            Path(start.model), device=start.device, dtype=start.dtype, context=start.context
        )
        warm_up(model)
    except Exception as error:
        reason = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
        sock.sendall(wire.pack(wire.Refused(reason=reason)))
        return
    worker = Worker(sock, inbox, start, model)
    ready = wire.Ready(
        context=model.context, vocab=model.vocab, device=str(model.device), path=model.path
    )
    sock.sendall(wire.pack(ready))
    worker.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
