"""Decides what each step of the worker computes, and turns its logits into replies.

Requests wait in the order they came. Up to `max_running` are admitted; in each step the
prompts of those just admitted are read a chunk further while every reply under way draws one
token. Replies join and leave between any two steps.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from instar.backends.torch_cache import MIN_REUSE, PrefixCache, common
from instar.backends.torch_model import Model, Work
from instar.backends.torch_sample import Draw, Drawn, sample
from instar.backends.torch_wire import Generate, Token
from instar.text import StopScanner, TextDecoder

WORTH_WAITING = 64
"""A prompt waits for another that is being read if it can then copy this many tokens more."""

GPU_IDLE_FACTOR = 16
"""On a GPU a prompt is read in chunks so much longer while no reply is under way."""


class Reply:
    """One reply from its request to its last token."""

    __slots__ = (
        "asked", "cached", "decoder", "draw", "ids", "memory", "prompt", "scanner", "weights",
    )  # fmt: skip

    def __init__(self, asked: Generate, weights: Any, decoder: TextDecoder | None) -> None:
        self.asked = asked
        self.weights = weights
        """Held here, so that dropping a version cannot take them from a reply under way."""
        self.prompt = np.asarray(asked.prompt, dtype=np.int64)
        self.ids = list(asked.prompt)
        self.memory: Any = None
        self.cached = 0
        self.decoder = decoder
        self.scanner = StopScanner(asked.stop)
        self.draw = Draw(
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            top_logprobs=asked.top_logprobs,
            rng=random.Random(asked.seed),
        )

    @property
    def read(self) -> int:
        """How many of its tokens are in memory."""
        return int(self.memory.length) if self.memory is not None else 0

    @property
    def left(self) -> int:
        """Prompt tokens still to be read; 0 once the reply is being drawn."""
        return max(0, len(self.prompt) - self.read)

    @property
    def drawing(self) -> bool:
        return len(self.ids) > len(self.prompt)

    def accept(self, drawn: Drawn, context: int) -> Token:
        """Append a token and say whether the reply ends with it."""
        first = not self.drawing
        self.ids.append(drawn.token)
        return Token(
            self.asked.id,
            drawn.token,
            drawn.logprob,
            self._finish(drawn.token, context),
            self.cached if first else 0,
            drawn.top,
        )

    def _finish(self, token: int, context: int) -> str | None:
        if token in self.asked.stop_ids:
            return "stop"
        if self.decoder is not None:
            self.scanner.push(self.decoder.push([token]))
            if self.scanner.hit is not None:
                return "stop"
        drawn = len(self.ids) - len(self.prompt)
        full = drawn >= self.asked.max_tokens or len(self.ids) >= context
        return "length" if full else None


class Scheduler:
    """The batch, the queue before it and the prefix cache behind it."""

    def __init__(
        self, model: Model, *, max_running: int, prefill_chunk: int, cache_bytes: int
    ) -> None:
        self._model = model
        self._max_running = max_running
        self._chunk = prefill_chunk
        self._waiting: deque[Reply] = deque()
        self._running: list[Reply] = []
        self._finished: list[Reply] = []
        self._steps = 0
        self.cache: PrefixCache[Any] = PrefixCache(cache_bytes)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    def add(self, reply: Reply) -> None:
        self._waiting.append(reply)

    def cancel(self, id: int) -> None:
        for reply in list(self._waiting):
            if reply.asked.id == id:
                self._waiting.remove(reply)
        for reply in list(self._running):
            if reply.asked.id == id:
                self._leave(reply)
        self.tidy()

    def step(self) -> list[Token]:
        """Compute one step; the caller sends its tokens and then calls `tidy`."""
        while self._waiting and len(self._running) < self._max_running:
            self._running.append(self._waiting.popleft())
        self._steps += 1
        plan: dict[str, list[tuple[Reply, Work]]] = {}
        for reply, work in [*self._decoding(), *self._reading()]:
            plan.setdefault(reply.asked.version, []).append((reply, work))
        tokens = []
        for version, items in plan.items():
            logits = self._model.forward(version, items[0][0].weights, [work for _, work in items])
            tokens += self._draw(logits, [reply for reply, work in items if work.wanted])
        return tokens

    def tidy(self) -> None:
        """Keep what finished replies left in memory, for the next turns of their sessions."""
        for reply in self._finished:
            if reply.memory is not None:
                self._store(reply)
                self._model.release(reply.memory)
        self._finished.clear()

    def abandon(self) -> list[int]:
        """Forget everything after a step that failed; the replies that are lost."""
        lost = [reply.asked.id for reply in self._running]
        for reply in self._running:
            if reply.memory is not None:
                self._model.release(reply.memory)
        self._running.clear()
        self._finished.clear()
        self.cache.clear()
        return lost

    def _decoding(self) -> list[tuple[Reply, Work]]:
        return [
            (reply, Work(memory=reply.memory, ids=reply.ids[-1:], decoding=True))
            for reply in self._running
            if reply.drawing
        ]

    def _reading(self) -> list[tuple[Reply, Work]]:
        """The next chunk of the prompts: the oldest first, every other time the shortest."""
        reading = [reply for reply in self._running if not reply.drawing]
        if self._steps % 2:
            reading.sort(key=lambda reply: reply.left)
        budget = self._chunk
        if self._model.device.type == "cuda" and len(reading) == len(self._running):
            budget *= GPU_IDLE_FACTOR
        work = []
        for reply in reading:
            if budget <= 0:
                break
            if reply.memory is None and not self._begin(reply):
                continue
            size = min(budget, reply.left)
            budget -= size
            ids = reply.asked.prompt[reply.read : reply.read + size]
            item = Work(memory=reply.memory, ids=ids, decoding=False, wanted=size == reply.left)
            work.append((reply, item))
        return work

    def _begin(self, reply: Reply) -> bool:
        """Give a reply memory, or put it off while its prompt's beginning is being read."""
        version, limit = reply.asked.version, len(reply.prompt) - 1
        source, shared = self.cache.find(version, reply.prompt[:limit])
        shared = self._model.reusable(source, shared) if source is not None else 0
        for other in self._running:
            if other.memory is None or other.asked.version != version:
                continue
            alike = common(np.asarray(other.ids[:limit]), reply.prompt[:limit])
            now = self._model.reusable(other.memory, min(alike, other.read))
            if other.left and min(alike, len(other.prompt)) - max(now, shared) >= WORTH_WAITING:
                return False
            if now > shared:
                source, shared = other.memory, now
        if shared < MIN_REUSE:
            source, shared = None, 0
        reply.cached = shared
        reply.memory = self._model.begin(source, shared=shared, length=len(reply.prompt))
        return True

    def _draw(self, logits: Tensor, replies: Sequence[Reply]) -> list[Token]:
        if not replies:
            return []
        drawn = sample(logits, [reply.draw for reply in replies])
        tokens = []
        for reply, one in zip(replies, drawn, strict=True):
            token = reply.accept(one, self._model.context)
            tokens.append(token)
            if token.finish is not None:
                self._leave(reply)
        return tokens

    def _leave(self, reply: Reply) -> None:
        self._running.remove(reply)
        self._finished.append(reply)

    def _store(self, reply: Reply) -> None:
        memory = reply.memory
        ids = np.asarray(reply.ids[: memory.length], dtype=np.int64)
        if len(ids) < MIN_REUSE or not self.cache.admits(self._model.kept_bytes(memory)):
            return
        if not self.cache.covers(reply.asked.version, ids):
            self.cache.add(reply.asked.version, ids, self._model.keep(memory))


def make_reply(asked: Generate, weights: Any, decoder: Callable[[], TextDecoder]) -> Reply:
    """A reply; it is decoded along the way only where it has stop strings."""
    return Reply(asked, weights, decoder() if asked.stop else None)
