"""A scripted engine: replies from a file, or words made up from the prompt, no model at all.

For tests and for trying the API. It honours what does not need a distribution (stop strings and
ids, max_tokens, versions, cancelling); its log-probs are made up but stable.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from instar.config import FakeEngine
from instar.errors import ConfigError, ContextError, ModelError, RequestError
from instar.text import StopScanner, TextDecoder, byte_tokenizer
from instar.types import EngineInfo, Finish, Piece, Request

_WORDS = ("well", "so", "now", "then", "here", "there", "yes", "no", "perhaps", "surely")


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

    def __init__(
        self, config: FakeEngine, tokenizer: Tokenizer, name: str, script: list[ScriptLine]
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._script = [line.reply() for line in script if line.session is None]
        self._by_session = [(line.session, line.reply()) for line in script if line.session]
        self._asked = 0
        self._asked_by: Counter[str] = Counter()
        self._in_use: dict[str, int] = {}
        self._idle = asyncio.Condition()
        self._info = EngineInfo(model=name, context=config.context, device="none")
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
        _read_object((folder / "adapter_config.json").read_text("utf-8"), f"version {version}")
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
            top = tuple(((i, _logprob(i)),) for i in part) if sampling.top_logprobs else ()
            last = start + step >= len(ids)
            end = finish if last else None
            pieces.append(Piece(ids=part, logprobs=logprobs, top=top, version=version, finish=end))
        return pieces

    def _reply_ids(self, request: Request, room: int) -> list[int]:
        text = self._scripted(request.session)
        if text is None:
            text = _made_up(request, room)
        end = request.sampling.stop_ids[:1]
        return [*self._tokenizer.encode(text, add_special_tokens=False).ids, *end]

    def _scripted(self, session: str) -> str | None:
        """The next line for this session, else the next for anybody."""
        own = [reply for pattern, reply in self._by_session if fnmatchcase(session, pattern)]
        if self._asked_by[session] < len(own):
            self._asked_by[session] += 1
            return own[self._asked_by[session] - 1]
        if self._asked < len(self._script):
            self._asked += 1
            return self._script[self._asked - 1]
        return None


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
    digest = seed.digest()
    # Without a stop id the reply must last until max_tokens.
    count = 12 if request.sampling.stop_ids else room
    return " ".join(_WORDS[digest[i % 16] % len(_WORDS)] for i in range(count))


def _logprob(token: int) -> float:
    return -0.1 - (token % 13) / 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLine:
    """One reply of a script."""

    text: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    reasoning: str = ""
    session: str | None = None
    """For sessions of this pattern only (`*` is anything): each goes through its lines in order."""

    def reply(self) -> str:
        """As a model of the Hermes family would write it."""
        head = f"<think>\n{self.reasoning}\n</think>\n\n" if self.reasoning else ""
        calls = [
            f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
            for call in self.tool_calls
        ]
        return head + "\n".join([self.text] * bool(self.text) + calls)


def read_script(file: Path | None) -> list[ScriptLine]:
    """The replies of a script file; an unusable line is named."""
    if file is None:
        return []
    if not file.exists():
        raise ConfigError(f"engine.script is {file}, which does not exist")
    replies = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        entry = _read_object(line, f"{file.name} line {number}")
        unknown = entry.keys() - {"text", "tool_calls", "reasoning", "session"}
        if unknown:
            raise ConfigError(
                f"{file.name} line {number} has {', '.join(sorted(unknown))}; "
                "known are text, tool_calls, reasoning, session"
            )
        calls = tuple(entry.get("tool_calls") or ())
        given = {"text": entry.get("text") or "", "reasoning": entry.get("reasoning") or ""}
        replies.append(ScriptLine(tool_calls=calls, session=entry.get("session"), **given))
    return replies


def _read_object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ModelError(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{where} is a {type(found).__name__}, not an object")
    return found
