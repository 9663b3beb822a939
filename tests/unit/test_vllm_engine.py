"""The vLLM engine against a scripted server: supervision, versions, limits, errors."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models

from instar.backends import vllm_process
from instar.backends.vllm import VersionedEngine, open_engine
from instar.config import VllmEngine
from instar.errors import ContextError, EngineError, ModelError, RequestError
from instar.types import Piece, Request, Sampling

Open = Callable[..., AbstractAsyncContextManager[VersionedEngine]]


@dataclass(frozen=True)
class Notes:
    """What the scripted server was told."""

    file: Path

    def lines(self, word: str) -> list[str]:
        return [line for line in self.file.read_text().splitlines() if line.startswith(word)]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def opened(tmp_path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens an engine whose Python is a script that runs the scripted server instead."""
    monkeypatch.setattr(vllm_process, "BACKOFF_S", (0.01,))
    model = tmp_path / "model"
    model.mkdir()
    vocabulary = {chr(i): i for i in range(200)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=chr(0)))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(model / "tokenizer.json"))
    python = tmp_path / "python"
    server = Path(__file__).with_name("scripted_vllm.py")
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {server} "$@"\n')
    python.chmod(0o755)

    def open_scripted(script: str = "", **changes: object) -> AbstractAsyncContextManager[object]:
        env = {"SCRIPT": script, "NOTES": str(notes.file)}
        config = VllmEngine.model_validate({"python": str(python), "env": env, **changes})
        return open_engine(config, model=model, name="scripted")

    return open_scripted  # type: ignore[return-value]


@pytest.fixture
async def engine(opened: Open) -> AsyncIterator[VersionedEngine]:
    async with opened(max_versions=2) as one:
        yield one


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return made(tmp_path / "adapter")


@pytest.fixture
def other_adapter(tmp_path: Path) -> Path:
    return made(tmp_path / "other")


@pytest.fixture
def bad_adapter(tmp_path: Path) -> Path:
    return made(tmp_path / "bad")


def made(folder: Path) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    save_file({}, folder / "adapter_model.safetensors")
    return folder


def request(*prompt: int, version: str | None = None, **sampling: object) -> Request:
    settings = Sampling(**{"max_tokens": 5, **sampling})  # type: ignore[arg-type]
    return Request(id="r", prompt_ids=prompt or (5, 6), sampling=settings, version=version)


async def drawn(engine: VersionedEngine, one: Request) -> list[Piece]:
    return [piece async for piece in engine.generate(one)]


def all_ids(pieces: list[Piece]) -> list[int]:
    return [i for piece in pieces for i in piece.ids]


async def test_a_reply_has_ids_logprobs_version_and_end(engine: VersionedEngine) -> None:
    pieces = await drawn(engine, request())
    assert all_ids(pieces) == [100, 101, 102, 103, 104]
    assert {value for piece in pieces for value in piece.logprobs} == {-0.5}
    assert {piece.version for piece in pieces} == {"base"}
    assert [piece.finish for piece in pieces if piece.finish] == ["length"]
    assert pieces[0].cached == 3
    assert engine.info.logprobs_scaled
    assert engine.stats()["tokens"] == 5


async def test_the_server_is_given_the_settings(opened: Open, notes: Notes) -> None:
    async with opened(context=32, max_running=9, max_lora_rank=8, args=["--seed", "3"]):
        pass
    (started,) = notes.lines("start")
    wanted = ("--max-model-len 32", "--max-num-seqs 9", "--max-lora-rank 8", "--seed 3")
    assert [text for text in wanted if text not in started] == []


async def test_alternatives_are_reported_where_asked(engine: VersionedEngine) -> None:
    (piece,) = await drawn(engine, request(max_tokens=1, temperature=0.5, top_logprobs=2))
    assert piece.top == (((0, 0.0), (1, -2.0)),)


async def test_a_stop_string_ends_with_the_token_that_completes_it(
    engine: VersionedEngine, notes: Notes
) -> None:
    pieces = await drawn(engine, request(max_tokens=40, stop=("fg",)))
    assert "".join(map(chr, all_ids(pieces))) == "defg"
    assert pieces[-1].finish == "stop"
    await drawn(engine, request())
    assert notes.lines("abort")


async def test_hanging_up_aborts(engine: VersionedEngine, notes: Notes) -> None:
    async with aclosing(engine.generate(request(7))) as pieces:
        await anext(pieces)
    await drawn(engine, request())
    assert len(notes.lines("abort")) == 1
    assert engine.stats()["running"] == 0


async def test_what_cannot_be_served_is_refused(engine: VersionedEngine) -> None:
    with pytest.raises(ContextError):
        await drawn(engine, request(*[5] * 64))
    with pytest.raises(RequestError, match="empty"):
        await drawn(engine, Request(id="r", prompt_ids=(), sampling=Sampling()))
    with pytest.raises(RequestError, match="temperature"):
        await drawn(engine, request(temperature=0.001))
    with pytest.raises(RequestError, match="not loaded") as caught:
        await drawn(engine, request(version="v9"))
    assert caught.value.status == 404
    with pytest.raises(RequestError, match="unlucky"):
        await drawn(engine, request(13))


async def test_a_reply_stops_where_the_context_ends(engine: VersionedEngine) -> None:
    pieces = await drawn(engine, request(*[5] * 60, max_tokens=100))
    assert len(all_ids(pieces)) == 4


async def test_a_missing_logprob_is_an_error(engine: VersionedEngine) -> None:
    with pytest.raises(EngineError, match="0 log-probs for 1 sampled"):
        await drawn(engine, request(8))


async def test_unscaled_logprobs_are_an_error(opened: Open) -> None:
    with pytest.raises(EngineError, match="plugin had no effect"):
        async with opened("unscaled"):
            pass


async def test_a_server_that_dies_at_once_is_quoted(opened: Open) -> None:
    with pytest.raises(EngineError, match="no such model"):
        async with opened("dies"):
            pass


async def test_a_server_that_hangs_is_given_up(opened: Open, notes: Notes) -> None:
    with pytest.raises(EngineError, match=r"not ready after 0\.5 s"):
        async with opened("hangs", start_timeout_s=0.5):
            pass


async def test_a_dead_server_is_started_again_with_its_versions(
    engine: VersionedEngine, adapter: Path, notes: Notes
) -> None:
    await engine.load("v1", adapter)
    await engine.activate("v1")
    with pytest.raises(EngineError, match="died during a reply"):
        await drawn(engine, request(666))
    pieces = await drawn(engine, request())
    assert pieces[-1].finish == "length"
    assert pieces[-1].version == "v1"
    assert notes.lines("load") == ["load 1 v1#1"] * 2


async def test_a_version_damaged_meanwhile_does_not_keep_the_server_down(
    engine: VersionedEngine, adapter: Path, other_adapter: Path, notes: Notes
) -> None:
    await engine.load("v1", adapter)
    await engine.load("v2", other_adapter)
    await engine.activate("v2")
    (other_adapter / "damaged").touch()
    with pytest.raises(EngineError, match="died during a reply"):
        await drawn(engine, request(666))
    pieces = await drawn(engine, request(version="v1"))
    assert pieces[-1].finish == "length"
    assert (engine.info.versions, engine.info.live) == (("base", "v1"), "base")


async def test_a_failed_restart_is_told_and_tried_again(opened: Open) -> None:
    async with opened("dies once") as engine:
        with pytest.raises(EngineError, match="died during a reply"):
            await drawn(engine, request(666))
        with pytest.raises(EngineError, match="no such model"):
            await drawn(engine, request())
        assert (await drawn(engine, request()))[-1].finish == "length"


async def test_a_version_is_dropped_when_its_replies_are_done(
    engine: VersionedEngine, adapter: Path, notes: Notes
) -> None:
    await engine.load("v1", adapter)
    assert engine.info.versions == ("base", "v1")
    async with aclosing(engine.generate(request(7, version="v1"))) as pieces:
        assert (await anext(pieces)).version == "v1"
        dropping = asyncio.create_task(engine.drop("v1"))
        # A piece may be there already, and then taking it would not let the other task begin.
        await asyncio.sleep(0)
        await anext(pieces)
        assert engine.info.versions == ("base",)
        assert not dropping.done()
    await dropping
    assert notes.lines("drop") == ["drop 1"]


async def test_versions_that_cannot_be(
    engine: VersionedEngine, adapter: Path, bad_adapter: Path
) -> None:
    with pytest.raises(ModelError, match=r"no adapter_config\.json"):
        await engine.load("v1", adapter.parent)
    with pytest.raises(ModelError, match="bad rank"):
        await engine.load("v1", bad_adapter)
    await engine.load("v1", adapter)
    await engine.load("v2", adapter)
    with pytest.raises(RequestError, match="drop one of v1, v2"):
        await engine.load("v3", adapter)
    await engine.activate("v2")
    for version in ("v2", "base"):
        with pytest.raises(RequestError, match="cannot be dropped"):
            await engine.drop(version)
    with pytest.raises(RequestError, match="not loaded"):
        await engine.activate("v3")


async def test_nothing_is_left_of_a_closed_engine(opened: Open, notes: Notes) -> None:
    async with opened() as engine:
        child = engine._link._child  # type: ignore[attr-defined]
        folder = child.log.parent
        os.kill(child.process.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.killpg(child.process.pid, signal.SIGKILL)
    assert not folder.exists()


@pytest.fixture
async def pair(opened: Open) -> AsyncIterator[VersionedEngine]:
    async with opened(max_versions=2, replicas=2, gpu_memory=0.8) as one:
        yield one


def of_session(name: str, *prompt: int) -> Request:
    return replace(request(*prompt), session=name)


def busy(engine: VersionedEngine) -> list[int]:
    return list(engine._link._busy)  # type: ignore[attr-defined]


async def test_servers_on_one_gpu_share_its_memory(pair: VersionedEngine, notes: Notes) -> None:
    assert len(notes.lines("start")) == 2
    assert all("--gpu-memory-utilization 0.4" in line for line in notes.lines("start"))


async def test_a_session_stays_and_a_new_one_goes_where_least_is_under_way(
    pair: VersionedEngine,
) -> None:
    async with aclosing(pair.generate(of_session("anna", 7))) as annas:
        await anext(annas)
        assert busy(pair) == [1, 0]
        async with aclosing(pair.generate(of_session("ben", 7))) as bens:
            await anext(bens)
            assert busy(pair) == [1, 1]
        async with aclosing(pair.generate(of_session("anna", 7))) as more:
            await anext(more)
            assert busy(pair) == [2, 0]
    assert busy(pair) == [0, 0]
    async with aclosing(pair.generate(of_session("ben", 7))) as bens:
        await anext(bens)
        assert busy(pair) == [0, 1]


async def test_versions_are_in_all_servers_or_in_none(
    pair: VersionedEngine, adapter: Path, bad_adapter: Path, notes: Notes
) -> None:
    await pair.load("v1", adapter)
    assert notes.lines("load") == ["load 1 v1#1"] * 2
    with pytest.raises(ModelError, match="bad rank"):
        await pair.load("v2", bad_adapter)
    assert pair.info.versions == ("base", "v1")
    await pair.drop("v1")
    assert notes.lines("drop") == ["drop 1"] * 2


async def test_one_server_may_die_while_the_other_serves(
    pair: VersionedEngine, adapter: Path, notes: Notes
) -> None:
    await pair.load("v1", adapter)
    async with aclosing(pair.generate(of_session("anna", 7))) as annas:
        await anext(annas)
        with pytest.raises(EngineError, match="died during a reply"):
            await drawn(pair, of_session("ben", 666))
        async with aclosing(pair.generate(of_session("ben", 7))) as bens:
            await anext(bens)
            assert busy(pair) == [2, 0]
        await anext(annas)
        while len(notes.lines("load")) < 3:  # noqa: ASYNC110 (another process brings it about)
            await asyncio.sleep(0.01)
    assert notes.lines("load") == ["load 1 v1#1"] * 3


async def test_servers_that_are_all_down_are_waited_for(pair: VersionedEngine) -> None:
    async def killed(name: str) -> None:
        with pytest.raises(EngineError, match="died during a reply"):
            await drawn(pair, of_session(name, 666))

    await asyncio.gather(killed("anna"), killed("ben"))
    assert (await drawn(pair, of_session("carla")))[-1].finish == "length"


async def test_a_version_that_one_server_lost_is_dropped_by_the_other(
    pair: VersionedEngine, adapter: Path, notes: Notes
) -> None:
    await pair.load("v1", adapter)
    (adapter / "damaged").touch()
    with pytest.raises(EngineError, match="died during a reply"):
        await drawn(pair, of_session("ben", 666))
    while not notes.lines("drop"):  # noqa: ASYNC110 (another process brings it about)
        await asyncio.sleep(0.01)
    assert pair.info.versions == ("base",)
    assert notes.lines("drop") == ["drop 1"]


async def test_a_second_server_that_cannot_start_ends_the_first(opened: Open, notes: Notes) -> None:
    with pytest.raises(EngineError, match="no such model"):
        async with opened("dies once", replicas=2):
            pass
    assert len(notes.lines("start")) == 2


def test_replicas_of_a_server_by_url_are_refused() -> None:
    with pytest.raises(ValueError, match="leave one out"):
        VllmEngine(url="http://127.0.0.1:8000", replicas=2)
