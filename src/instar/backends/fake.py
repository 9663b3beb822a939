"""A scripted engine: replies from a file, or words made up from the prompt, no model at all.

For tests and for trying the API. It honours what does not need a distribution (stop strings and
ids, max_tokens, versions, cancelling); its log-probs are made up but stable.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from instar.backends.fake_script import Script, read_object, read_script
from instar.config import FakeEngine
from instar.errors import ContextError, ModelError, RequestError
from instar.text import StopScanner, TextDecoder, byte_tokenizer
from instar.types import EngineInfo, Finish, Piece, Request

_WORDS = ("well", "so", "now", "then", "here", "there", "yes", "no", "perhaps", "surely")


_OTHERS = 64
"""Tokens that are shown beside the sampled ones; a client may ask for 20 at most."""


@asynccontextmanager
async def open_engine(
    config: FakeEngine, *, model: Path | None, name: str
) -> AsyncIterator[ScriptedEngine]:
    """Start at once. With a model folder, its tokenizer is used; else one token a byte."""
    file = model / "tokenizer.json" if model else None
    tokenizer = Tokenizer.from_file(str(file)) if file else byte_tokenizer()
    yield ScriptedEngine(config, tokenizer, name, read_script(config.script))


class ScriptedEngine:
    """An Engine whose replies are known beforehand."""

    def __init__(self, config: FakeEngine, tokenizer: Tokenizer, name: str, script: Script) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._script = script
        self._in_use: dict[str, int] = {}
        self._idle = asyncio.Condition()
        self._info = EngineInfo(model=name, context=config.context, device="none", sees=config.sees)
        self._made = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    def stats(self) -> dict[str, float]:
        running = sum(self._in_use.values())
        return {"running": running, "waiting": 0, "tokens": self._made, "cache_bytes": 0}

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        version = request.version or self._info.live
        self._check(request, version)
        self._in_use[version] = self._in_use.get(version, 0) + 1
        try:
            for piece in self._pieces(request, version):
                if self._config.delay_ms:
                    await asyncio.sleep(self._config.delay_ms / 1000)
                self._made += len(piece.ids)
                yield piece
        finally:
            self._in_use[version] -= 1
            async with self._idle:
                self._idle.notify_all()

    async def load(self, version: str, folder: Path) -> None:
        for needed in ("adapter_config.json", "adapter_model.safetensors"):
            if not (folder / needed).exists():
                raise ModelError(f"version {version}: {folder} has no {needed}")
        read_object((folder / "adapter_config.json").read_text("utf-8"), f"version {version}")
        if version not in self._info.versions:
            self._info = replace(self._info, versions=(*self._info.versions, version))

    async def activate(self, version: str) -> None:
        self._known(version)
        self._info = replace(self._info, live=version)

    async def drop(self, version: str) -> None:
        self._known(version)
        if version == self._info.live:
            raise RequestError(f"version {version} is live; activate another one first")
        rest = tuple(v for v in self._info.versions if v != version)
        self._info = replace(self._info, versions=rest)
        async with self._idle:
            await self._idle.wait_for(lambda: not self._in_use.get(version))

    def _known(self, version: str) -> None:
        if version not in self._info.versions:
            have = ", ".join(self._info.versions)
            raise RequestError(
                f"version {version!r} is not loaded; loaded are {have}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def _check(self, request: Request, version: str) -> None:
        self._known(version)
        if not request.prompt_ids:
            raise RequestError("the prompt is empty; an engine needs at least one token")
        if len(request.prompt_ids) >= self._config.context:
            raise ContextError(len(request.prompt_ids), self._config.context)

    def _pieces(self, request: Request, version: str) -> list[Piece]:
        sampling = request.sampling
        room = min(sampling.max_tokens, self._config.context - len(request.prompt_ids))
        ids, finish = _cut(self._tokenizer, self._reply_ids(request, room), request, room)
        step = self._config.piece_tokens if request.stream else max(len(ids), 1)
        pieces = []
        for start in range(0, max(len(ids), 1), step):
            part = tuple(ids[start : start + step])
            logprobs = tuple(_logprob(i) for i in part)
            count = sampling.top_logprobs
            top = tuple(self._likeliest(i, count) for i in part) if count else ()
            last = start + step >= len(ids)
            end = finish if last else None
            pieces.append(Piece(ids=part, logprobs=logprobs, top=top, version=version, finish=end))
        return pieces

    def _likeliest(self, token: int, count: int) -> tuple[tuple[int, float], ...]:
        """The token itself, and others that share what it leaves of the probability."""
        at = token % _OTHERS
        others = [one for one in (*self._readable[at:], *self._readable[:at]) if one != token]
        left = math.log1p(-math.exp(_logprob(token)))
        # At least a quarter of the rest is less than any token's own probability.
        shared = ((one, left - n * math.log(2)) for n, one in enumerate(others[: count - 1], 2))
        return ((token, _logprob(token)), *shared)

    @cached_property
    def _readable(self) -> list[int]:
        """Some tokens that each have a text of their own: half a character has none."""
        found: dict[str, int] = {}
        for token in range(self._tokenizer.get_vocab_size()):
            text = self._tokenizer.decode([token], skip_special_tokens=True)
            if text.strip() and "\ufffd" not in text:
                found.setdefault(text, token)
            if len(found) == _OTHERS:
                break
        return list(found.values())

    def _reply_ids(self, request: Request, room: int) -> list[int]:
        prompt = ""
        if self._script.rules:
            prompt = self._tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
        text = self._script.next(prompt, session=request.session)
        if text is None:
            text = _made_up(request, room)
        end = request.sampling.stop_ids[:1]
        return [*self._tokenizer.encode(text, add_special_tokens=False).ids, *end]


def _cut(
    tokenizer: Tokenizer, ids: list[int], request: Request, room: int
) -> tuple[list[int], Finish]:
    """End the reply where the settings say so."""
    sampling = request.sampling
    decoder, scanner = TextDecoder(tokenizer), StopScanner(sampling.stop)
    for at, token in enumerate(ids[:room]):
        if token in sampling.stop_ids:
            return ids[: at + 1], "stop"
        if not sampling.stop:
            continue
        scanner.push(decoder.push([token]))
        if scanner.hit is not None:
            return ids[: at + 1], "stop"
    # A script that ends without a stop id (none was asked for) has said all it has.
    return ids[:room], "stop" if len(ids) < room else "length"


def _made_up(request: Request, room: int) -> str:
    """Words that depend on the prompt, the seed and nothing else."""
    seed = hashlib.blake2b(digest_size=16)
    seed.update(repr((list(request.prompt_ids), request.sampling.seed)).encode())
    for image in request.images:
        seed.update(image)
    digest = seed.digest()
    # Without a stop id the reply must last until max_tokens.
    count = 12 if request.sampling.stop_ids else room
    return " ".join(_WORDS[digest[i % 16] % len(_WORDS)] for i in range(count))


def _logprob(token: int) -> float:
    return -0.1 - (token % 13) / 10
