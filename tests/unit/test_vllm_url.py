"""The vLLM engine on a server by URL: what it asks for and what it makes of answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models

from instar.backends.vllm import VersionedEngine, open_engine
from instar.config import VllmEngine
from instar.errors import EngineError, ModelError, RequestError
from instar.types import Request, Sampling


@dataclass
class FakeServer:
    """Just enough HTTP; `events` are the choices that a completion streams."""

    cards: list[dict[str, Any]]
    events: list[dict[str, Any]] = field(default_factory=list)
    ends: bytes | None = None
    """Written in place of what a stream should end with."""
    scaled: bool = False
    adapters: int = 200
    status: int = 200
    asked: list[dict[str, Any]] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1]
        lines = head.lower().split("\r\n")
        size = sum(int(line[15:]) for line in lines if line.startswith("content-length"))
        body = json.loads(await reader.readexactly(size)) if size else {}
        self.asked.append({"path": path, "head": head, **body})
        if path == "/v1/models":
            _write(writer, 200, json.dumps({"data": self.cards}))
        elif path == "/version":
            _write(writer, 200, '{"version": "0"}')
        elif path.endswith("lora_adapter"):
            _write(writer, self.adapters, "{}")
        else:
            await self.complete(reader, writer, body)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def complete(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any]
    ) -> None:
        if body["top_k"] == 1:  # the check at the start
            scale = body["temperature"] if self.scaled and body["temperature"] else 1.0
            top = {f"token_id:{i}": -i / scale for i in range(20)}
            choices = [{"token_ids": [1], "finish_reason": "length"}]
            choices[0]["logprobs"] = {"token_logprobs": [-0.1], "top_logprobs": [top]}
        elif self.status != 200:
            _write(writer, self.status, '{"error": "too much"}')
            return
        else:
            choices = self.events
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for choice in choices:
            writer.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        await writer.drain()
        if self.ends is not None and choices is self.events:
            writer.write(self.ends)
            return
        if choices and choices[-1].get("finish_reason") is None:
            await reader.read()
            self.hung_up.set()
        writer.write(b"data: [DONE]\n\n")


def _write(writer: asyncio.StreamWriter, status: int, body: str) -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(f"{head}{body}".encode())


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(cards=[{"id": "m", "max_model_len": 64}, {"id": "a", "parent": "m"}])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    vocabulary = {chr(i): i for i in range(200)}
    Tokenizer(models.WordLevel(vocabulary, unk_token=chr(0))).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "adapter_config.json").write_text("{}")
    save_file({}, tmp_path / "adapter_model.safetensors")
    return tmp_path


def opened(server: FakeServer, model: Path) -> AbstractAsyncContextManager[VersionedEngine]:
    @asynccontextmanager
    async def run() -> AsyncIterator[VersionedEngine]:
        async with await asyncio.start_server(server.handle, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            config = VllmEngine(url=f"http://:secret@127.0.0.1:{port}")
            async with open_engine(config, model=model, name="served") as engine:
                yield engine
            await asyncio.gather(*server.tasks)

    return run()


def event(*ids: int, finish: str | None = None, **changes: Any) -> dict[str, Any]:
    logprobs = {"token_logprobs": [-0.5] * len(ids)}
    return {"token_ids": list(ids), "logprobs": logprobs, "finish_reason": finish, **changes}


def request(**sampling: Any) -> Request:
    return Request(id="r", prompt_ids=(5, 6), sampling=Sampling(**sampling))


async def test_a_reply(server: FakeServer, model: Path) -> None:
    server.events = [event(9), event(8, 7), event(6, finish="stop")]
    async with opened(server, model) as engine:
        pieces = [piece async for piece in engine.generate(request(stop_ids=(6,), seed=4))]
    assert [piece.ids for piece in pieces] == [(9,), (8, 7), (6,)]
    assert [piece.finish for piece in pieces] == [None, None, "stop"]
    asked = server.asked[-1]
    assert "Bearer secret" in asked["head"]
    wanted = {"model": "m", "prompt": [5, 6], "stop_token_ids": [6], "seed": 4, "top_k": -1}
    wanted |= {"ignore_eos": True, "return_token_ids": True, "logprobs": 0, "max_tokens": 62}
    assert {key: asked[key] for key in wanted} == wanted
    assert engine.info.context == 64


@pytest.mark.parametrize("scaled", [True, False])
async def test_whether_its_logprobs_are_scaled_is_found_out(
    server: FakeServer, model: Path, scaled: bool
) -> None:
    server.scaled = scaled
    async with opened(server, model) as engine:
        assert engine.info.logprobs_scaled is scaled


@pytest.mark.parametrize(
    "bad",
    [
        event(9, token_ids=None),
        event(9, logprobs=None),
        event(9, logprobs={"token_logprobs": [None]}),
        event(9, logprobs={"token_logprobs": []}),
    ],
)
async def test_nothing_is_invented(server: FakeServer, model: Path, bad: dict[str, Any]) -> None:
    server.events = [bad]
    async with opened(server, model) as engine:
        with pytest.raises(EngineError, match="one log-prob"):
            await anext(engine.generate(request()))


@pytest.mark.parametrize(
    "ends",
    [
        b'data: {"choices": [{"token_ids": [8], "logp',
        b"data: []\n\n",
        b'data: {"choices": [7]}\n\n',
        b'data: {"choices": {"a": 1}}\n\n',
        b'data: {"choices": [{"token_ids": [8], "logprobs": [1]}]}\n\n',
        b'data: {"choices": [{"token_ids": 8, "logprobs": {"token_logprobs": [-1]}}]}\n\n',
    ],
)
async def test_a_stream_that_is_cut_off_or_makes_no_sense(
    server: FakeServer, model: Path, ends: bytes
) -> None:
    server.events, server.ends = [event(9)], ends
    async with opened(server, model) as engine, aclosing(engine.generate(request())) as pieces:
        assert (await anext(pieces)).ids == (9,)
        with pytest.raises(EngineError, match="no whole event of a reply"):
            await anext(pieces)


async def test_hanging_up_closes_the_connection(server: FakeServer, model: Path) -> None:
    server.events = [event(9)]
    async with opened(server, model) as engine:
        async with aclosing(engine.generate(request())) as pieces:
            await anext(pieces)
        await asyncio.wait_for(server.hung_up.wait(), 10)


async def test_adapters(server: FakeServer, model: Path) -> None:
    server.events = [event(9, finish="length")]
    async with opened(server, model) as engine:
        await engine.load("v1", model)
        loaded = server.asked[-1]["lora_name"]
        await engine.activate("v1")
        (piece,) = [piece async for piece in engine.generate(request())]
        assert (piece.version, server.asked[-1]["model"]) == ("v1", loaded)
        server.adapters = 400
        with pytest.raises(ModelError, match="load_lora_adapter"):
            await engine.load("v2", model)
        server.adapters = 404
        with pytest.raises(EngineError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
            await engine.load("v2", model)
        server.adapters = 200
    assert server.asked[-1]["path"] == "/v1/unload_lora_adapter"


async def test_refusals_and_failures_are_told_apart(server: FakeServer, model: Path) -> None:
    async with opened(server, model) as engine:
        for status, error in ((400, RequestError), (500, EngineError), (401, EngineError)):
            server.status = status
            with pytest.raises(error, match="too much"):
                await anext(engine.generate(request()))


async def test_which_model_is_meant_must_be_clear(server: FakeServer, model: Path) -> None:
    server.cards.append({"id": "n", "max_model_len": 64})
    with pytest.raises(EngineError, match="serves m, n"):
        async with opened(server, model):
            pass
    server.cards.append({"id": "served", "max_model_len": 32})
    async with opened(server, model) as engine:
        assert engine.info.context == 32
