"""vLLM as an engine: token ids in; sampled ids and their log-probs out, never text.

By default a server is started and watched (`vllm_process`); with `url` one that runs already
is used (`vllm_http`). Both give the parts of a reply; what they have in common is here:
versions, limits, stop strings and the check that log-probs mean what the record says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from instar.backends.vllm_http import Http
from instar.backends.vllm_process import Process
from instar.backends.vllm_replicas import Replicas
from instar.backends.vllm_wire import Ask, Part, Ready
from instar.config import VllmEngine
from instar.errors import ContextError, EngineError, ModelError, RequestError
from instar.text import StopScanner, TextDecoder
from instar.types import BASE_VERSION, EngineInfo, Finish, Piece, Request, Sampling

FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length"}
"""Reasons of vLLM that are an end; any other is a failure."""

LOWEST_TEMPERATURE = 0.01
"""vLLM samples at this one where a lower one (but not 0) is asked for."""


class Link(Protocol):
    """A way to a vLLM server."""

    @property
    def ready(self) -> Ready: ...
    def ask(self, ask: Ask) -> AsyncGenerator[Part]: ...
    async def load(self, lora: int, *, name: str, folder: Path) -> None: ...
    async def drop(self, lora: int, *, name: str) -> None: ...
    async def close(self) -> None: ...


@asynccontextmanager
async def open_engine(
    config: VllmEngine, *, model: Path, name: str
) -> AsyncIterator[VersionedEngine]:
    """Start a server, or find the one at `config.url`, and check what it reports."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    link: Link
    kind = VersionedEngine
    if config.url is None:
        starter = Process if config.replicas == 1 else Replicas
        link = await starter.open(config, model=model)
        kind = StartedEngine
    else:
        link = await Http.open(config, model=model, name=name)
    try:
        scaled = await reports_scaled(link)
        if not scaled and config.url is None:
            raise EngineError(
                "The started vLLM reports log-probs at temperature 1, since instar's plugin had "
                f"no effect in it (vLLM {link.ready.release}). Versions 0.24 and 0.32 are known "
                "to work."
            )
        info = EngineInfo(
            model=name,
            context=link.ready.context,
            device=link.ready.device,
            logprobs_scaled=scaled,
            sees=link.ready.sees,
        )
        yield kind(config, link=link, tokenizer=tokenizer, info=info)
    finally:
        await link.close()


@dataclass(slots=True, kw_only=True)
class _Adapter:
    """A resident version and how many replies use it."""

    number: int
    """vLLM's number for it; 0 is the base."""
    name: str = ""
    """Unique over all loads, since vLLM keys its prefix cache by it."""
    folder: Path | None = None
    users: int = 0


class VersionedEngine:
    """An Engine on a vLLM server."""

    def __init__(
        self, config: VllmEngine, *, link: Link, tokenizer: Tokenizer, info: EngineInfo
    ) -> None:
        self._config = config
        self._link = link
        self._tokenizer = tokenizer
        self._info = info
        self._adapters = {BASE_VERSION: _Adapter(number=0)}
        self._numbers = itertools.count(1)
        self._idle = asyncio.Condition()
        self._changing = asyncio.Lock()
        self._leaving = 0
        """Versions that are forgotten here but not yet by the server."""
        self._made = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    def stats(self) -> dict[str, float]:
        under_way = sum(adapter.users for adapter in self._adapters.values())
        running = min(under_way, self._config.max_running * self._config.replicas)
        waiting = under_way - running
        return {"running": running, "waiting": waiting, "tokens": self._made, "cache_bytes": 0}

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        version = request.version or self._info.live
        adapter = self._find(version)
        ask = self._ask(request, lora=adapter.number)
        stops = _Stops(self._tokenizer, request.sampling.stop)
        adapter.users += 1
        try:
            async with aclosing(self._link.ask(ask)) as parts:
                async for part in parts:
                    piece = _piece(stops.cut(part), version=version, sampling=request.sampling)
                    self._made += len(piece.ids)
                    yield piece
                    if piece.finish is not None:
                        return
        finally:
            adapter.users -= 1
            if not adapter.users:
                async with self._idle:
                    self._idle.notify_all()

    async def load(self, version: str, folder: Path) -> None:
        folder = await asyncio.to_thread(_checked, version, folder)
        async with self._changing:
            known = self._adapters.get(version)
            if known is not None and known.folder == folder:
                return
            if known is not None:
                raise RequestError(
                    f"version {version} is loaded already, from {known.folder or 'the model'}; "
                    "load other weights under another name",
                    status=409,
                )
            self._check_room()
            number = next(self._numbers)
            adapter = _Adapter(number=number, name=f"{version}#{number}", folder=folder)
            await self._link.load(number, name=adapter.name, folder=folder)
            self._adapters[version] = adapter
            self._info = replace(self._info, versions=tuple(self._adapters))

    async def activate(self, version: str) -> None:
        self._find(version)
        self._info = replace(self._info, live=version)

    async def drop(self, version: str) -> None:
        adapter = self._find(version)
        if version in (self._info.live, BASE_VERSION):
            why = "live" if version == self._info.live else "the base of all others"
            raise RequestError(f"version {version} is {why}; it cannot be dropped", status=409)
        del self._adapters[version]
        self._info = replace(self._info, versions=tuple(self._adapters))
        self._leaving += 1
        try:
            async with self._idle:
                await self._idle.wait_for(lambda: not adapter.users)
            await self._link.drop(adapter.number, name=adapter.name)
        finally:
            self._leaving -= 1

    def _check_room(self) -> None:
        adapters = [version for version in self._adapters if version != BASE_VERSION]
        if len(adapters) + self._leaving >= self._config.max_versions:
            idle = [version for version in adapters if version != self._info.live]
            advice = f"drop one of {', '.join(idle)}" if idle else "wait until one has left"
            raise RequestError(
                f"{len(adapters)} versions are loaded and {self._leaving} are leaving, which is "
                f"all that engine.max_versions = {self._config.max_versions} allows; {advice}",
                status=409,
            )

    def _find(self, version: str) -> _Adapter:
        if (adapter := self._adapters.get(version)) is None:
            raise RequestError(
                f"version {version!r} is not loaded; loaded are {', '.join(self._adapters)}",
                status=404,
                param="model",
                code="model_not_found",
            )
        return adapter

    def _ask(self, request: Request, *, lora: int) -> Ask:
        sampling, size = request.sampling, len(request.prompt_ids)
        if not size:
            raise RequestError("the prompt is empty; an engine needs at least one token")
        if size >= self._info.context:
            raise ContextError(size, self._info.context)
        if 0 < sampling.temperature < LOWEST_TEMPERATURE:
            raise RequestError(
                f"temperature is {sampling.temperature:g}; vLLM takes 0 or at least "
                f"{LOWEST_TEMPERATURE:g}",
                param="temperature",
            )
        return Ask(
            id=0,
            prompt_ids=list(request.prompt_ids),
            max_tokens=min(sampling.max_tokens, self._info.context - size),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            stop_ids=list(sampling.stop_ids),
            top=sampling.top_logprobs,
            lora=lora,
            # A stop string is found in what has come so far.
            whole=not request.stream and not any(sampling.stop),
            images=list(request.images),
            session=request.session,
        )


class StartedEngine(VersionedEngine):
    """An Engine on a vLLM server of its own."""

    def __init__(
        self, config: VllmEngine, *, link: Link, tokenizer: Tokenizer, info: EngineInfo
    ) -> None:
        super().__init__(config, link=link, tokenizer=tokenizer, info=info)
        assert isinstance(link, Process | Replicas)
        link.on_lost = self._forget

    def _forget(self, number: int) -> None:
        """Go on without a version that a restarted server could not load again."""
        for version, adapter in list(self._adapters.items()):
            if adapter.number == number:
                del self._adapters[version]
        live = self._info.live if self._info.live in self._adapters else BASE_VERSION
        self._info = replace(self._info, live=live, versions=tuple(self._adapters))

    @property
    def pid(self) -> int:
        """The server's process of now; the first one's."""
        assert isinstance(self._link, Process | Replicas)
        return self._link.pid


class _Stops:
    """Finds stop strings in a reply. Ours, since vLLM's own needs it to make text of all."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self._decoder = TextDecoder(tokenizer) if any(stops) else None
        self._scanner = StopScanner(stops)

    def cut(self, part: Part) -> Part:
        """The part up to the token that completes a stop string."""
        if self._decoder is None:
            return part
        for at, token in enumerate(part.ids, start=1):
            self._scanner.push(self._decoder.push([token]))
            if self._scanner.hit is not None:
                return Part(
                    id=part.id,
                    ids=part.ids[:at],
                    logprobs=part.logprobs[:at],
                    top=part.top[:at],
                    finish="stop",
                    cached=part.cached,
                )
        return part


def _piece(part: Part, *, version: str, sampling: Sampling) -> Piece:
    if len(part.ids) != len(part.logprobs):
        raise EngineError(
            f"vLLM gave {len(part.logprobs)} log-probs for {len(part.ids)} sampled tokens; each "
            "must have one."
        )
    finish = None
    if part.finish is not None and (finish := FINISHES.get(part.finish)) is None:
        raise EngineError(f"vLLM ended a reply with {part.finish!r}; expected stop or length.")
    if sampling.top_logprobs and len(part.top) != len(part.ids):
        raise EngineError(f"vLLM gave {len(part.top)} alternatives for {len(part.ids)} tokens.")
    return Piece(
        ids=tuple(part.ids),
        logprobs=tuple(part.logprobs),
        version=version,
        top=tuple(map(tuple, part.top)) if sampling.top_logprobs else (),
        finish=finish,
        cached=part.cached,
    )


def _checked(version: str, folder: Path) -> Path:
    """The folder's full path; a whole adapter in PEFT's form must be in it."""
    for needed in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / needed).is_file():
            raise ModelError(f"version {version}: {folder} has no {needed}")
    weights = folder / "adapter_model.safetensors"
    try:
        with safe_open(weights, framework="numpy") as file:
            file.keys()
    except (SafetensorError, OSError) as error:
        raise ModelError(f"version {version}: {weights} is damaged: {error}") from error
    return folder.resolve()


async def reports_scaled(link: Link) -> bool:
    """Whether log-probs are those of the full distribution at the sampling temperature.

    At temperature 0.5 the gap between two tokens must be twice that of the unscaled
    distribution; were it taken after top_k = 1, there would be no second token at all.
    """
    plain = await _gap(link, temperature=0.0)
    half = await _gap(link, temperature=0.5)
    # The farthest gap among many alternatives is large against the noise of a GPU.
    return abs(half - 2 * plain) < abs(half - plain)


async def _gap(link: Link, *, temperature: float) -> float:
    """Likeliest minus unlikeliest reported log-prob of the token after a fixed prompt."""
    ask = Ask(id=0, prompt_ids=[1, 2, 3], max_tokens=1, temperature=temperature, top_k=1, top=20)
    values = [value async for part in link.ask(ask) for row in part.top for _, value in row]
    if len(values) < 2:
        raise EngineError(
            f"vLLM reported {len(values)} log-probs where 20 alternatives were asked for; is "
            "--max-logprobs set below 20?"
        )
    return max(values) - min(values)
