"""Bad input: each is answered in OpenAI's shape, and says what is wrong."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from gate import (
    END,
    LOOK,
    MODEL,
    Gate,
    body,
    decoded,
    extends,
    gate,
    listening,
    problem,
    user,
)

from instar.gateway.dialects.chat import REFUSED
from instar.record.store import open_store
from instar.text import byte_tokenizer

DEEP = 2000


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


async def test_a_compressed_body_is_called_so(system: Gate) -> None:
    """Not a body that is no JSON: its client would look for a fault in what it wrote."""
    packed = gzip.compress(json.dumps(body("x")).encode())
    headers = {"content-encoding": "gzip"}
    answer = await system.http.post("/v1/chat/completions", content=packed, headers=headers)
    assert "compressed (gzip)" in problem(answer, 415)["message"]
    assert (await system.post(body("x"), content_encoding="identity")).status_code == 200


@pytest.mark.parametrize("fields", [{"messages": ["hi"]}, {"chat_template_kwargs": 5}])
async def test_what_should_be_an_object_is_called_one(system: Gate, fields: dict[str, Any]) -> None:
    """Not a dictionary, nor an instance of a class: a client knows neither of ours."""
    answer = await system.post(body([user("x")]) | fields)
    assert problem(answer, 400)["message"].endswith(": Input should be an object")


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
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": ["5"]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids[0]"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": ["hi"]}, "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "user", "content": {"text": "x"}}]}, "messages[0].content"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tools": [LOOK], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"model": None}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"session_id": "a\x00b"}, "session_id"),
        ({"session_id": "a\nb"}, "session_id"),
        ({"session_id": "x" * 10_000}, "session_id"),
        ({"session_id": " "}, "session_id"),
        ({"session_id": 5}, "session_id"),
        ({"turn_type": "middle"}, "turn_type"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}, user("x")]},
            "messages[0].function_call",
        ),
        (
            {"messages": [{"role": "assistant", "audio": {"id": "a"}}, user("x")]},
            "messages[0].audio",
        ),
    ],
)
async def test_a_bad_field_is_named(system: Gate, fields: dict[str, Any], param: str) -> None:
    error = problem(await system.post({**body("x"), **fields}), 400)
    assert error["param"] == param
    assert await system.all_turns() == []


@pytest.mark.parametrize(
    "headers",
    [{"X-Session-Id": "x" * 10_000}, {"X-Session-Id": b"a\x01b"}, {"X-Turn-Type": "middle"}],
)
async def test_a_bad_header_is_named(system: Gate, headers: dict[str, Any]) -> None:
    answer = await system.http.post("/v1/chat/completions", json=body("x"), headers=headers)
    assert str(problem(answer, 400)["param"]).lower() == next(iter(headers)).lower()


@pytest.mark.parametrize("value", [b"a\x01b", b"a\x00b", b"a\tb", b"x" * 10_000, b"x" * 70_000])
async def test_a_bad_header_over_a_socket(tmp_path: Path, value: bytes) -> None:
    """Some are refused before any route is known; none gets through."""
    async with listening(tmp_path) as address:
        url, written = httpx.URL(address), json.dumps(body("x")).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {len(written)}\r\n"
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(head.encode() + b"Connection: close\r\nX-Session-Id: " + value + b"\r\n\r\n")
        writer.write(written)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    async with open_store(f"sqlite:///{tmp_path / 'instar.db'}") as store:
        assert await store.sessions(None) == []


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
    "min_tokens": 5,
    "bad_words": ["x"],
    "allowed_token_ids": [1, 2],
    "logits_processors": ["p"],
    "length_penalty": 1.5,
    "use_beam_search": True,
    "typical_p": 0.9,
    "top_a": 0.1,
    "no_repeat_ngram_size": 3,
    "dry_multiplier": 0.8,
    "xtc_probability": 0.5,
    "stop_regex": "a+",
    "include_stop_str_in_output": True,
    "truncate_prompt_tokens": 10,
    "prompt_logprobs": 0,
    "lora_path": "x",
    "regex": "a*",
    "ebnf": "root ::= x",
    "json_schema": "{}",
    "repeat_penalty": 1.1,
    "penalty_alpha": 0.6,
    "guidance_scale": 3,
    "do_sample": False,
    "num_beams": 4,
    "mirostat": 2,
    "mirostat_mode": 2,
    "tfs_z": 0.9,
    "dynatemp_range": 0.5,
    "smoothing_factor": 0.2,
    "grammar": "root ::= x",
    "skip_special_tokens": False,
    "detokenize": False,
    "verbosity": "low",
    "thinking_budget": 0,
    "search_parameters": {"mode": "on"},
    "max_new_tokens": 5,
    "max_output_tokens": 5,
    "max_tokens_to_sample": 5,
    "num_predict": 5,
    "options": {"num_ctx": 100},
    "format": "json",
    "system": "Be brief.",
    "instructions": "Be brief.",
    "stop_sequences": ["x"],
    "echo": True,
    "continue_final_message": True,
    "add_generation_prompt": False,
    "chat_template": "{{ messages }}",
    "documents": [{"text": "x"}],
    "enable_thinking": True,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}
"""Listed here by hand: a field that is no longer refused must be missed."""
CHAT_ONLY = {
    *("modalities", "audio", "functions", "function_call", "web_search_options", "prediction"),
    *("echo", "continue_final_message", "add_generation_prompt", "chat_template", "documents"),
    *("enable_thinking", "thinking", "system", "instructions", "stop_sequences"),
    "max_output_tokens",
}


def test_every_refused_field_is_tried() -> None:
    assert set(REFUSED_VALUES) == set(REFUSED)


@pytest.mark.parametrize("name", REFUSED_VALUES)
async def test_a_field_that_would_change_the_answer_is_refused(system: Gate, name: str) -> None:
    error = problem(await system.post(body("x", **{name: REFUSED_VALUES[name]})), 400)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert name in error["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [user("x")], "max_tokens": 5}),
    ],
)
async def test_the_other_dialects_refuse_them_too(
    system: Gate, path: str, fields: dict[str, Any]
) -> None:
    for name in REFUSED_VALUES.keys() - CHAT_ONLY:
        request = {"model": MODEL, **fields, name: REFUSED_VALUES[name]}
        answer = await system.http.post(path, json=request)
        assert answer.status_code == 400, (name, answer.text)
        assert name in answer.json()["error"]["message"]
    assert await system.all_turns() == []


@pytest.mark.parametrize(
    ("path", "fields", "names"),
    [
        ("/v1/completions", {"prompt": "x"}, "max_completion_tokens max_output_tokens tools"),
        ("/v1/responses", {"input": "x"}, "max_tokens max_completion_tokens stop seed system"),
        (
            "/v1/messages",
            {"messages": [user("x")], "max_tokens": 5},
            "max_completion_tokens stop seed instructions",
        ),
    ],
)
async def test_a_limit_in_the_words_of_another_api_is_not_ignored(
    system: Gate, path: str, fields: dict[str, Any], names: str
) -> None:
    for name in names.split():
        for value, status in ((5, 400), (None, 200)):
            request = {"model": MODEL, **fields, name: value}
            answer = await system.http.post(path, json=request)
            assert answer.status_code == status, (name, answer.text)
            assert status == 200 or name in answer.json()["error"]["message"]


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
        "min_tokens": 0,
        "bad_words": [],
        "length_penalty": 1.0,
        "typical_p": 1.0,
        "top_a": 0,
        "use_beam_search": False,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "prompt_logprobs": False,
        "enable_thinking": False,
        "thinking": {"type": "disabled"},
        "top_logprobs": 0,
        "stop_token_ids": [],
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
    named = {"gpt-9": MODEL, f"{MODEL}:v77": "Loaded now: base", "": MODEL}
    for name, served in named.items():
        error = problem(await system.post({**body("x"), "model": name}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert served in error["message"]


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
    assert answer.status_code in (200, 400), answer.text
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
