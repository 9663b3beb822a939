"""Bad input and faults: each is answered in OpenAI's shape, or survived."""

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
    LOOK,
    MODEL,
    Gate,
    Served,
    body,
    decoded,
    events,
    extends,
    gate,
    hang_up,
    listening,
    until,
    user,
)

from instar.gateway.dialects.chat import REFUSED
from instar.text import byte_tokenizer

DEEP = 2000


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, which must have OpenAI's shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    return error


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b"[1]",
        b"null",
        b'{"model": "m", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        b'{"model": "m", "temperature": NaN}',
        b"[" * DEEP + b"]" * DEEP,
        b'{"model": "m", "messages": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    ],
)
async def test_a_body_that_is_no_json_object(system: Gate, raw: bytes) -> None:
    answer = await system.http.post("/v1/chat/completions", content=raw)
    assert problem(answer, 400)["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"seed": 2**64}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": ["hi"]}, "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
        ),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tools": [LOOK], "tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"model": None}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"session_id": "a\x00b"}, "session_id"),
        ({"session_id": "a\nb"}, "session_id"),
        ({"session_id": "x" * 10_000}, "session_id"),
        ({"session_id": " "}, "session_id"),
        ({"session_id": 5}, "session_id"),
        ({"turn_type": "middle"}, "X-Turn-Type"),
    ],
)
async def test_a_bad_field_is_named(system: Gate, fields: dict[str, Any], param: str) -> None:
    error = problem(await system.post({**body("x"), **fields}), 400)
    assert str(error["param"]).startswith(param)
    assert await system.all_turns() == []


@pytest.mark.parametrize(
    "headers",
    [{"X-Session-Id": "x" * 10_000}, {"X-Session-Id": b"a\x01b"}, {"X-Turn-Type": "middle"}],
)
async def test_a_bad_header_is_named(system: Gate, headers: dict[str, Any]) -> None:
    answer = await system.http.post("/v1/chat/completions", json=body("x"), headers=headers)
    assert str(problem(answer, 400)["param"]).lower() == next(iter(headers)).lower()


REFUSED_VALUES: dict[str, Any] = {
    "n": 2,
    "logit_bias": {"5": 1},
    "frequency_penalty": 0.5,
    "presence_penalty": -1,
    "repetition_penalty": 1.1,
    "min_p": 0.1,
    "response_format": {"type": "json_object"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "x"},
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "web_search_options": {},
    "prediction": {"type": "content"},
    "best_of": 3,
    "suffix": "end",
    "guided_json": {"type": "object"},
    "guided_regex": "a*",
    "guided_choice": ["a"],
    "guided_grammar": "g",
    "structured_outputs": {"json": {}},
}


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_a_field_that_would_change_the_answer_is_refused(system: Gate, name: str) -> None:
    error = problem(await system.post(body("x", **{name: REFUSED_VALUES[name]})), 400)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert name in error["message"]


async def test_harmless_fields_are_ignored(system: Gate) -> None:
    plain = await system.say("x", seed=1)
    fields = dict.fromkeys(REFUSED_VALUES) | {
        "user": "me",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "n": 1,
        "response_format": {"type": "text"},
        "frequency_penalty": 0,
        "never_heard_of": [1],
        "tool_choice": "auto",
        "tools": [],
    }
    assert (await system.say("x", seed=1, **fields))["content"] == plain["content"]


async def test_deep_values_are_served_or_refused(system: Gate) -> None:
    """Nesting that JSON can be read with, but not everything can write."""
    for depth in (100, 300, 1000):
        nest: Any = {}
        for _ in range(depth):
            nest = {"a": nest}
        written = "[" * depth + "]" * depth
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": written}}
        for fields in (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": nest}}]},
            {"logit_bias": nest},
            {"metadata": nest},
            {"chat_template_kwargs": nest},
            {"messages": [user("x"), {"role": "assistant", "tool_calls": [call]}, user("y")]},
            {"messages": [{**user("x"), "extra": nest}]},
        ):
            raw = _dumps({**body("x"), **fields})
            answer = await system.http.post("/v1/chat/completions", content=raw)
            assert answer.status_code in (200, 400), (depth, list(fields), answer.text[:200])


def _dumps(value: Any) -> str:
    """JSON of values nested deeper than json.dumps goes."""
    if isinstance(value, dict):
        parts: list[str] = []
        tail: list[str] = []
        while isinstance(value, dict) and len(value) == 1:
            ((name, value),) = value.items()
            parts.append(f"{{{json.dumps(name)}:")
            tail.append("}")
        if isinstance(value, dict):
            inner = ",".join(f"{json.dumps(k)}:{_dumps(v)}" for k, v in value.items())
            return "".join(parts) + "{" + inner + "}" + "".join(tail)
        return "".join(parts) + _dumps(value) + "".join(tail)
    if isinstance(value, list):
        return "[" + ",".join(_dumps(one) for one in value) + "]"
    return json.dumps(value)


async def test_an_unknown_model(system: Gate) -> None:
    for name in ("gpt-9", f"{MODEL}:v77", ""):
        error = problem(await system.post({**body("x"), "model": name}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert MODEL in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/nothing", 404),
        ("POST", "/", 404),
        ("POST", "/v1/%ff%00", 404),
    ],
)
async def test_wrong_paths_and_methods(system: Gate, method: str, path: str, status: int) -> None:
    answer = await system.http.request(method, path)
    assert method in problem(answer, status)["message"]
    assert ("allow" in answer.headers) is (status == 405)


async def test_a_prompt_longer_than_the_context(tmp_path: Path) -> None:
    async with gate(tmp_path, engine__context=64) as opened:
        error = problem(await opened.post(body("y" * 100)), 400)
        assert error["code"] == "context_length_exceeded"
        found = len(f"<user\n{'y' * 100}>\n<assistant\n")
        assert str(found) in error["message"] and "64" in error["message"]
        answer = await opened.ask("y", max_tokens=10_000)
        usage = answer["usage"]
        assert usage["total_tokens"] <= 64, "the reply is cut to what the context leaves"


async def test_ten_thousand_messages(system: Gate) -> None:
    history = [user("a") if n % 2 else {"role": "assistant", "content": "b"} for n in range(9_999)]
    answer = await system.post(body([*history, user("end")]))
    if answer.status_code == 400:
        assert problem(answer, 400)["code"] == "context_length_exceeded"
    short = [*history[:2_000], user("end")]
    reply = await system.say(short, session_id="long")
    await system.say([*short, reply, user("more")], session_id="long")
    root, child = await system.turns("long")
    assert extends(child, root)


@pytest.mark.parametrize("declared", [True, False])
async def test_a_large_body_is_refused_before_it_is_read(system: Gate, declared: bool) -> None:
    """With a length it is refused at once; without one, as soon as it is too long."""
    pulled = 0
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        nonlocal pulled
        pulled += 1
        assert pulled < 100, "the whole body is being read"
        return {"type": "http.request", "body": b" " * 1_000_000, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"content-length", b"100000000")] if declared else [],
    }
    await system.system.app(scope, receive, send)
    assert sent[0]["status"] == 413
    assert json.loads(sent[1]["body"])["error"]["code"] == "body_too_large"
    assert pulled == 0 if declared else 32 <= pulled <= 33


@pytest.mark.parametrize(
    "written",
    [
        "{not json",
        '{"arguments": {}}',
        "[]",
        '{"name": "look", "arguments": {"n": NaN}}',
        '{"name": "look", "arguments": {"x": "\\ud800"}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"name": "look", "arguments": "{"}',
        "[" * DEEP,
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_call_that_is_no_json(tmp_path: Path, written: str, stream: bool) -> None:
    """It is delivered as the text it is, recorded, and the next turn extends it."""
    text = f"I try.\n<tool_call>\n{written}\n</tool_call> Hm."
    async with gate(tmp_path, [{"text": text}]) as opened:
        request = body("x", tools=[LOOK], session_id="s", stream=stream, max_tokens=9_000)
        answer = await opened.post(request)
        assert answer.status_code == 200, answer.text
        (first,) = await opened.turns("s")
        assert first.reply == {"role": "assistant", "content": text}
        assert (first.finish, decoded(first.sampled_ids)) == ("stop", text + END)
        if stream:
            lines = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
            shown = "".join(line["choices"][0]["delta"].get("content", "") for line in lines)
            assert shown == text
        history = [user("x"), first.reply, user("again")]
        await opened.say(history, session_id="s", tools=[LOOK])
        _, second = await opened.turns("s")
    assert extends(second, first)


async def test_a_large_number_in_a_tool_call_stays_exact(tmp_path: Path) -> None:
    call = {"name": "look", "arguments": {"n": 10**40}}
    async with gate(tmp_path, [{"tool_calls": [call]}]) as opened:
        reply = await opened.say("x", tools=[LOOK], session_id="s")
        assert json.loads(reply["tool_calls"][0]["function"]["arguments"]) == call["arguments"]
        history = [user("x"), reply, {"role": "tool", "content": "ok"}]
        await opened.say(history, session_id="s", tools=[LOOK])
        first, second = await opened.turns("s")
    assert extends(second, first)


def model_folder(folder: Path, template: str) -> Path:
    """A model folder for the fake engine: one token a byte, and this template."""
    folder.mkdir()
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"eos_token_id": 257}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (folder / "chat_template.jinja").write_text(template)
    return folder


async def test_a_template_that_refuses_says_why(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.content == 'bad' %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% if m.content == 'crash' %}{{ 1 // 0 }}{% endif %}{{ m.content }}{% endfor %}"
    )
    folder = model_folder(tmp_path / "model", template)
    async with gate(tmp_path, model__checkpoint_path=folder) as opened:
        error = problem(await opened.post(body("bad")), 400)
        assert error["code"] == "template_error" and "roles must alternate" in error["message"]
        assert problem(await opened.post(body("crash", stream=True)), 400)["param"] == "messages"
        await opened.say("good")


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
