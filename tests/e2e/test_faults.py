"""Faults: clients that hang up, disks that fill, processes that are killed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from gate import (
    END,
    Served,
    body,
    decoded,
    events,
    extends,
    gate,
    hang_up,
    listening,
    problem,
    until,
    user,
)


async def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    settings = {"gateway__max_queue": 1, "engine__delay_ms": 60_000, "gateway__drain_s": 0}
    async with gate(tmp_path, **settings) as opened:
        first = asyncio.ensure_future(opened.say("x"))
        await until(lambda: opened.running == 1)
        for stream in (True, False):
            answer = await opened.post(body("y", stream=stream))
            assert problem(answer, 429)["code"] == "rate_limit_exceeded"
            assert int(answer.headers["retry-after"]) >= 1
        first.cancel()
        await until(lambda: opened.system.server.running == 0)
        second = asyncio.ensure_future(opened.say("z"))
        await until(lambda: opened.running == 1)
        second.cancel()


@pytest.mark.parametrize("done", [False, True])
async def test_hanging_up_on_a_stream_cancels_it(tmp_path: Path, done: bool) -> None:
    text = "a long story " * 50
    async with gate(tmp_path, [{"text": text}], engine__delay_ms=5) as opened:
        gone, sent = asyncio.Event(), list[bytes]()
        request = body("x", stream=True, session_done=done)
        task = asyncio.ensure_future(hang_up(opened.system, request, when=gone, sent=sent))
        await until(lambda: len(sent) > 2)
        assert opened.running == 1
        gone.set()
        await task
        await until(lambda: opened.running == 0)
        await until(lambda: opened.turns("gone"))
        (turn,) = await opened.turns("gone")
        assert turn.finish == "cancelled"
        assert 0 < len(turn.sampled_ids) == len(turn.logprobs) < len(text)
        assert text.startswith(decoded(turn.sampled_ids))
        shown = "".join(
            json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            for line in b"".join(sent).decode().split("\n\n")
            if line
        )
        assert decoded(turn.sampled_ids).startswith(shown)
        assert opened.system.server.running == 0


async def test_hanging_up_on_a_whole_reply_cancels_it(tmp_path: Path) -> None:
    async with gate(tmp_path, engine__delay_ms=60_000) as opened:
        gone, sent = asyncio.Event(), list[bytes]()
        task = asyncio.ensure_future(hang_up(opened.system, body("x"), when=gone, sent=sent))
        await until(lambda: opened.running == 1)
        gone.set()
        await task
        await until(lambda: opened.running == 0)
        assert (sent, await opened.turns("gone")) == ([], [])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_closed_connection_cancels_its_reply(tmp_path: Path, stream: bool) -> None:
    """The same over a socket."""
    delay = 20 if stream else 60_000
    script = [{"text": "word " * 2000}]
    async with (
        listening(tmp_path, script, engine__delay_ms=delay) as address,
        httpx.AsyncClient(base_url=address.removesuffix("/v1")) as http,
    ):

        async def running() -> bool:
            text = (await http.get("/metrics")).text
            return "instar_requests_in_progress 1.0" in text

        async def quiet() -> bool:
            return not await running()

        async def ask() -> None:
            async with (
                httpx.AsyncClient() as other,
                other.stream(
                    "POST", f"{address}/chat/completions", json=body("x", stream=stream)
                ) as answer,
            ):
                async for _ in answer.aiter_lines():
                    pass

        task = asyncio.ensure_future(ask())
        await until(running)
        task.cancel()
        await until(quiet)


@pytest.mark.parametrize("path", ["chat/completions", "messages/count_tokens", "session/done"])
async def test_hanging_up_in_the_middle_of_a_body_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    async with (
        listening(tmp_path) as address,
        httpx.AsyncClient(base_url=address.removesuffix("/v1")) as http,
    ):
        url = httpx.URL(address)
        _, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
        writer.write(head.encode() + b'{"model": ')
        await writer.drain()
        writer.close()

        async def counted() -> bool:
            text = (await http.get("/metrics")).text
            return any('status="499"' in line for line in text.splitlines())

        await until(counted)
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


async def test_a_locked_database_does_not_stop_serving(tmp_path: Path) -> None:
    async with gate(tmp_path, store__commit_timeout_s=0.2) as opened:
        await opened.say("before", session_id="s")
        with closing(sqlite3.connect(tmp_path / "instar.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            first = await opened.say("one", session_id="locked")
            history = [user("one"), first, user("two")]
            await opened.say(history, session_id="locked", session_done=True)
            assert await opened.metric("instar_undurable_turns_total") == 2
            assert await opened.metric("instar_backlog_turns") >= 2
        await until(lambda: opened.system.store.late == 2)
        root, child = await opened.turns("locked")
        assert extends(child, root)
        assert await opened.metric("instar_lost_turns") == 0
        assert await opened.metric("instar_backlog_turns") == 0


async def test_a_store_that_is_gone_does_not_stop_serving(tmp_path: Path) -> None:
    """Neither for a session in memory nor for one that would have to be read."""
    async with gate(tmp_path, store__commit_timeout_s=0.2) as opened:
        first = await opened.say("one", session_id="s", headers={"Authorization": "Bearer x"})
        move(tmp_path, away=True)
        opened.system.store._database.forget_connections()
        await opened.say([user("one"), first, user("two")], session_id="s")
        await opened.say("x", session_id="never seen")
        await opened.say("x", session_id="s", headers={"Authorization": "Bearer x"})
        assert await opened.metric("instar_undurable_turns_total") == 3
        move(tmp_path, away=False)
        await until(lambda: opened.system.store.late == 3)
        assert len(await opened.all_turns()) == 4


def move(home: Path, *, away: bool) -> None:
    """Take the store's files away, or put them back."""
    for file in home.glob("instar.db*" if away else "away-*"):
        file.rename(home / (f"away-{file.name}" if away else file.name.removeprefix("away-")))


async def test_a_full_disk_does_not_stop_serving(served: Callable[..., Served]) -> None:
    """The process may not make its files larger, as if the disk were full; then it may again."""
    one = served(store__commit_timeout_s=0.3)
    address = await one.start()
    process = psutil.Process(one.pid)
    limits = process.rlimit(psutil.RLIMIT_FSIZE)
    async with httpx.AsyncClient(base_url=address.removesuffix("/v1"), timeout=30) as http:

        async def ask(text: str) -> None:
            answer = await http.post("/v1/chat/completions", json=body(text))
            assert answer.status_code == 200, answer.text

        async def count(name: str) -> float:
            lines = (await http.get("/metrics")).text.splitlines()
            return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

        async def caught_up() -> bool:
            return await count("instar_backlog_turns") == 0

        await ask("before")
        process.rlimit(psutil.RLIMIT_FSIZE, (4096, limits[1]))
        for n in range(3):
            await ask(f"full {n}")
        assert await count("instar_undurable_turns_total") == 3
        process.rlimit(psutil.RLIMIT_FSIZE, limits)
        await until(caught_up)
        assert await count("instar_lost_turns") == 0
    assert await one.stop() == 0
    said = [turn["messages"][-2]["content"] for turn in await one.export()]
    assert sorted(said) == ["before", "full 0", "full 1", "full 2"]


async def test_a_hundred_megabytes_over_a_socket(served: Callable[..., Served]) -> None:
    one = served()
    address = await one.start()
    before = peak_memory(one.pid)

    async def large() -> Any:
        for _ in range(100):
            yield b" " * 1_000_000

    async with httpx.AsyncClient(timeout=30) as http:
        for headers in ({"content-length": "100000000"}, {}):
            try:
                answer = await http.post(
                    f"{address}/chat/completions", content=large(), headers=headers
                )
                assert problem(answer, 413)["code"] == "body_too_large"
            except httpx.WriteError:
                # The server may cut off a client that goes on sending.
                assert not headers
            after = await http.post(f"{address}/chat/completions", json=body("x"))
            assert after.status_code == 200
    assert peak_memory(one.pid) - before < 80_000_000
    assert await one.stop() == 0


def peak_memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


async def test_killing_the_gateway_loses_no_answered_turn(served: Callable[..., Served]) -> None:
    """Eight clients talk; whatever reached one of them whole is in the store, token-exactly."""
    answered: dict[str, tuple[str, list[Any]]] = {}

    async def talk(address: str, name: str) -> None:
        history = [user(f"I am {name}")]
        async with httpx.AsyncClient(timeout=30) as http:
            while True:
                text = turn = ""
                request = body(history, stream=True, session_id=name)
                async with http.stream(
                    "POST", f"{address}/chat/completions", json=request
                ) as answer:
                    async for data in events(answer.aiter_lines()):
                        if data == "[DONE]":
                            answered[turn] = (text, list(history))
                            break
                        chunk = json.loads(data)
                        turn = chunk["id"].removeprefix("chatcmpl-")
                        text += chunk["choices"][0]["delta"].get("content") or ""
                history += [{"role": "assistant", "content": text}, user("go on")]

    one = served(engine__delay_ms=2)
    for number, seconds in enumerate((0.35, 0.8)):
        address = await one.start()
        clients = [asyncio.ensure_future(talk(address, f"{number}-{n}")) for n in range(8)]
        await until(lambda: len(answered) > 8 * (2 * number + 1))  # noqa: B023
        await asyncio.sleep(seconds)
        one.kill()
        for ended in await asyncio.gather(*clients, return_exceptions=True):
            assert isinstance(ended, httpx.TransportError), ended
    kept = {turn["turn"]: turn for turn in await one.export()}
    assert len(answered) > 24
    assert answered.keys() <= kept.keys()
    for name, (text, history) in answered.items():
        turn = kept[name]
        assert decoded(turn["sampled_ids"]) == text + END
        assert len(turn["logprobs"]) == len(turn["sampled_ids"])
        shown = "".join(f"<|im_start|>{m['role']}\n{m['content']}{END}\n" for m in history)
        assert decoded(turn["prompt_ids"]) == f"{shown}<|im_start|>assistant\n"
        if above := kept.get(turn["parent"]):
            whole = above["prompt_ids"] + above["sampled_ids"]
            assert turn["prompt_ids"][: len(whole)] == whole
        else:
            assert len(history) == 1
    address = await one.start()
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{address}/models")).status_code == 200
    assert await one.stop() == 0


async def test_a_stop_lets_replies_end(served: Callable[..., Served]) -> None:
    one = served(script=[{"text": "to the end"}], engine__delay_ms=150)
    address = await one.start()
    async with httpx.AsyncClient(timeout=30) as http:
        request = body("x", stream=True)
        async with http.stream("POST", f"{address}/chat/completions", json=request) as answer:
            lines = events(answer.aiter_lines())
            await anext(lines)
            stopping = asyncio.ensure_future(one.stop())
            rest = [line async for line in lines]
    assert rest[-1] == "[DONE]"
    assert await stopping == 0
    (turn,) = await one.export()
    assert (turn["finish"], decoded(turn["sampled_ids"])) == ("stop", "to the end" + END)


async def test_a_stop_cuts_replies_that_take_too_long(tmp_path: Path) -> None:
    async def ask(address: str, begun: asyncio.Event) -> None:
        request = body("x", stream=True, session_id="s")
        async with (
            httpx.AsyncClient(timeout=30) as http,
            http.stream("POST", f"{address}/chat/completions", json=request) as answer,
        ):
            async for _ in events(answer.aiter_lines()):
                begun.set()

    begun = asyncio.Event()
    settings = {"engine__delay_ms": 100, "gateway__drain_s": 0.1}
    async with listening(tmp_path, [{"text": "word " * 500}], **settings) as address:
        client = asyncio.ensure_future(ask(address, begun))
        await begun.wait()
    with pytest.raises(httpx.TransportError):
        await client
    (turn,) = await Served(tmp_path, []).export()
    assert turn["finish"] == "cancelled" and turn["sampled_ids"]


async def test_a_key_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSTAR_API_KEY", "sesame")
    async with gate(tmp_path, gateway__host="0.0.0.0") as opened:
        problem(await opened.post(body("x"), authorization="Bearer other"), 401)
        await opened.say("x", headers={"Authorization": "Bearer sesame"})
        assert len(await opened.all_turns("local")) == 1


async def test_others_are_served_only_with_a_key(served: Callable[..., Served]) -> None:
    from instar.record.keys import Keys
    from instar.record.store import open_store

    one = served("--host", "0.0.0.0")
    refused = one.spawn()
    assert await asyncio.to_thread(refused.wait, 60) == 2
    assert "instar keys create" in one.log() and "0.0.0.0" in one.log()
    assert "Traceback" not in one.log()
    assert refused.stdout is not None
    refused.stdout.close()
    async with open_store(f"sqlite:///{one.home / 'instar.db'}") as store:
        _, secret = await Keys(store).create_key("ann")
    address = (await one.start()).replace("0.0.0.0", "127.0.0.1")
    async with httpx.AsyncClient(base_url=address) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
            for path in ("/chat/completions", "/session/done"):
                answer = await http.post(f"{address}{path}", json=body("x"), headers=headers)
                assert problem(answer, 401)["code"] == "invalid_api_key"
            assert problem(await http.get(f"{address}/models", headers=headers), 401)
        for headers in ({"Authorization": f"Bearer {secret}"}, {"x-api-key": secret}):
            answer = await http.post(f"{address}/chat/completions", json=body("x"), headers=headers)
            assert answer.status_code == 200
    assert await one.stop() == 0
    assert {turn["owner"] for turn in await one.export()} == {"ann"}
