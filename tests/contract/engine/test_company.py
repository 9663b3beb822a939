"""Many requests at once: who joins, who waits, who gives up, and what is refused at the door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from asking import TEXT, Subject, ask, draw
from engines import ENGINES, open_torch

from instar.errors import ModelError, RequestError
from instar.protocols import Engine
from instar.types import BASE_VERSION

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_a_short_request_joins_and_ends_while_a_long_one_runs(subject: Subject) -> None:
    order: list[str] = []
    started = asyncio.Event()

    async def long() -> None:
        request = ask(subject.prompt(), max_tokens=100)
        async for _ in subject.engine.generate(request):
            started.set()
        order.append("long")

    async def short() -> None:
        await started.wait()
        await draw(subject.engine, ask(subject.prompt(TEXT[:30]), max_tokens=4))
        order.append("short")

    await asyncio.gather(long(), short())
    assert order == ["short", "long"]


async def test_closing_the_iterator_ends_the_reply(subject: Subject, adapter: Path) -> None:
    engine = subject.engine
    await engine.load("v1", adapter)
    request = ask(subject.prompt(), version="v1", max_tokens=400)
    async with aclosing(engine.generate(request)) as pieces:
        assert (await anext(pieces)).version == "v1"
    # A version is dropped only once no reply uses it.
    await engine.drop("v1")
    assert engine.info.versions == (BASE_VERSION,)


async def test_a_cancelled_task_ends_the_reply(subject: Subject, adapter: Path) -> None:
    engine, started = subject.engine, asyncio.Event()
    await engine.load("v1", adapter)

    async def watch() -> None:
        async for _ in engine.generate(ask(subject.prompt(), version="v1", max_tokens=400)):
            started.set()

    task = asyncio.create_task(watch())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.drop("v1")


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def narrow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """A local engine that draws one reply at a time and keeps nothing of it."""
    folder = ENGINES["torch_local"].build(tmp_path_factory.mktemp("narrow"))
    async with open_torch(folder, max_running=1, cache_gb=0, context=2048) as engine:
        yield engine


async def test_requests_wait_in_order(narrow: Engine) -> None:
    order: list[int] = []

    async def one(at: int) -> None:
        await draw(narrow, ask((1, 2, 3), max_tokens=20 - 4 * at))
        order.append(at)

    await asyncio.gather(*(one(at) for at in range(4)))
    assert order == [0, 1, 2, 3]


async def test_a_cancelled_reply_frees_its_slot(narrow: Engine) -> None:
    async with aclosing(narrow.generate(ask((1, 2, 3), max_tokens=2000))) as pieces:
        await anext(pieces)
        waiting = asyncio.create_task(draw(narrow, ask((4, 5, 6), max_tokens=3)))
        await asyncio.sleep(0)
    assert len((await waiting).ids) == 3


async def test_a_request_cancelled_while_it_waits_is_forgotten(narrow: Engine) -> None:
    async with aclosing(narrow.generate(ask((1, 2, 3), max_tokens=2000))) as pieces:
        await anext(pieces)
        waiting = asyncio.create_task(draw(narrow, ask((4, 5, 6), max_tokens=3)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert len((await draw(narrow, ask((4, 5, 6), max_tokens=3))).ids) == 3


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_impossible_settings_are_refused(
    narrow: Engine, settings: dict[str, Any], name: str
) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        await draw(narrow, ask((1, 2, 3), **settings))
    assert caught.value.param == name


async def test_a_foreign_token_is_refused(narrow: Engine) -> None:
    with pytest.raises(RequestError, match="vocabulary"):
        await draw(narrow, ask((1, 99999)))


async def test_an_unusable_model_is_an_error_and_no_hang(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        async with open_torch(tmp_path):
            pass
    (tmp_path / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 64}')
    with pytest.raises(ModelError, match="could not load"):
        async with open_torch(tmp_path):
            pass


async def test_a_model_that_sees_is_sent_to_an_engine_that_lets_it(tmp_path: Path) -> None:
    text = '{"model_type": "idefics3", "max_position_embeddings": 64, "vision_config": {}}'
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"reads text only.*engine\.type=vllm") as caught:
        async with open_torch(tmp_path):
            pass
    assert len(str(caught.value).splitlines()) == 1
