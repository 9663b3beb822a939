"""Nothing a client sends makes the gateway fail: from its own description, and beyond it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from gate import LOOK, MODEL, fake_config, user
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error

from instar.loop import open_system

QUICK = settings(
    max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


class _Apart:
    """A gateway in a thread with a loop of its own, for test libraries that are not async."""

    def __init__(self, home: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._opened = open_system(fake_config(home, engine__context=4096), home)
        self.app = self.do(self._opened.__aenter__()).app

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self) -> None:
        self.do(self._opened.__aexit__(None, None, None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The app, from whichever loop; what it raises, its caller sees."""
        here = asyncio.get_running_loop()

        def over(call: Callable[..., Any]) -> Callable[..., Any]:
            async def cross(*args: Any) -> Any:
                return await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(call(*args), here)
                )

            return cross

        work = self.app(scope, over(receive), over(send))
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Apart]:
    opened = _Apart(tmp_path_factory.mktemp("schema"))
    yield opened
    opened.close()


OPERATIONS = (
    *("POST /v1/chat/completions", "POST /v1/completions", "POST /v1/responses"),
    *("GET /v1/responses/{response_id}", "POST /v1/messages", "POST /v1/messages/count_tokens"),
    *("POST /v1/session/done", "GET /v1/models", "GET /v1/models/{name}"),
    *("POST /v1/feedback", "POST /v1/attempts", "GET /v1/attempts"),
    *("GET /healthz", "GET /readyz", "GET /metrics"),
)


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_the_description_allows_never_fails(apart: _Apart, name: str) -> None:
    described = schemathesis.openapi.from_asgi("/openapi.json", apart)
    operations = {one.ok().label: one.ok() for one in described.get_all_operations()}
    assert sorted(operations) == sorted(OPERATIONS)

    @given(case=operations[name].as_strategy())
    @QUICK
    def never_fails(case: Any) -> None:
        if isinstance(case.body, dict) and "model" in case.body:
            # A made-up name would end every request at its model.
            case.body["model"] = MODEL
        answer = case.call()
        assert answer.status_code < 500, answer.text
        case.validate_response(answer, checks=[not_a_server_error])

    never_fails()


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
anything = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=8)}))
calls = st.fixed_dictionaries(
    {"id": st.text(max_size=4), "type": st.just("function")},
    optional={
        "function": st.fixed_dictionaries(
            {"name": st.text(max_size=4), "arguments": st.text(max_size=8) | anything}
        )
    },
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
    optional={
        "content": st.text(max_size=20) | parts | st.none() | anything,
        "name": st.text(max_size=4) | anything,
        "tool_calls": st.lists(calls, max_size=2) | anything,
        "tool_call_id": st.text(max_size=4),
        "reasoning_content": st.text(max_size=8) | st.just("\ufdd10\ufdd3"),
        "extra": anything,
    },
)
NAMES = (
    *("stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "temperature"),
    *("top_p", "top_k", "seed", "max_tokens", "max_completion_tokens", "stop", "logprobs"),
    *("top_logprobs", "chat_template_kwargs", "reasoning_effort", "session_id", "turn_type"),
    *("prompt_cache_key", "session_done", "no_train", "ignore_eos", "n", "response_format"),
)
bodies = st.fixed_dictionaries(
    {"model": st.just(MODEL), "messages": st.lists(message, min_size=1, max_size=4)},
    optional=dict.fromkeys(NAMES, anything)
    | {"tools": st.just([LOOK]) | anything, "stream": st.booleans() | anything},
)
mutated = st.builds(
    lambda body, name, value: {**body, name: value},
    bodies,
    st.sampled_from(["model", "messages", "tools", "stop"]),
    anything,
)


text_parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "input_text", "output_text", "refusal", "input_image"])},
    optional={"text": st.text(max_size=8), "image_url": anything, "refusal": st.text(max_size=3)},
)
items = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "reasoning", "function_call", "function_call_output", "custom_tool_call"]
        )
        | plain,
        "role": st.sampled_from(["user", "assistant", "system", "developer"]),
        "content": st.text(max_size=8) | st.lists(text_parts, max_size=2),
        "summary": st.lists(text_parts, max_size=2),
        "call_id": st.sampled_from(["a", "b"]),
        "name": st.text(max_size=4),
        "namespace": st.text(max_size=4),
        "arguments": st.text(max_size=8) | plain,
        "output": st.text(max_size=8) | st.lists(text_parts, max_size=2),
    },
)
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image", "x"])},
    optional={
        "text": st.text(max_size=8) | plain,
        "thinking": st.text(max_size=8),
        "id": st.sampled_from(["a", "b"]),
        "tool_use_id": st.sampled_from(["a", "b"]),
        "name": st.text(max_size=4),
        "input": st.dictionaries(st.text(max_size=4), anything, max_size=2),
        "content": st.text(max_size=8) | st.lists(text_parts, max_size=2),
        "source": anything,
    },
)
spoken = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": st.text(max_size=8) | st.lists(blocks, max_size=3),
    }
)
hosted = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom", "namespace", "web_search", "x"])},
    optional={
        "name": st.text(max_size=4),
        "parameters": st.dictionaries(st.text(max_size=4), anything, max_size=2),
        "input_schema": st.dictionaries(st.text(max_size=4), anything, max_size=2),
        "tools": st.lists(st.just({"type": "function", "name": "f"}), max_size=2),
    },
)
MORE = (
    *("stream", "temperature", "top_p", "top_k", "chat_template_kwargs", "session_id", "no_train"),
    *("turn_type", "metadata", "tool_choice", "reasoning", "instructions", "previous_response_id"),
    *("max_output_tokens", "thinking", "output_config", "stop_sequences", "system", "echo", "stop"),
    *("logprobs", "parallel_tool_calls", "text", "include", "store", "context_management", "seed"),
)


def _asked(path: str, *, tools: Any = None, **fields: Any) -> Any:
    """A body that is right but for a field or two, and one that is wrong in its main field."""
    rest = st.dictionaries(st.sampled_from(MORE), anything | st.none(), max_size=2)
    given = st.fixed_dictionaries(fields | ({"tools": tools} if tools is not None else {}))
    broken = st.fixed_dictionaries({**fields, next(iter(fields)): anything})
    bodies = st.builds(lambda body, more: {**body, **more}, given, rest) | broken
    return st.tuples(st.just(path), bodies)


offered = st.lists(hosted, max_size=2) | st.just([])
talk = st.lists(spoken, min_size=1, max_size=3)
tokens = st.lists(st.integers(0, 257), min_size=1, max_size=4)
others = (
    _asked("/v1/responses", input=st.lists(items, min_size=1, max_size=4), tools=offered)
    | _asked("/v1/responses", input=st.text(max_size=8), stream=st.booleans())
    | _asked("/v1/messages", messages=talk, max_tokens=st.integers(1, 9), stream=st.booleans())
    | _asked("/v1/messages/count_tokens", messages=talk, tools=offered)
    | _asked("/v1/completions", prompt=st.text(min_size=1, max_size=8) | tokens)
)


async def _post(app: Any, body: Any, path: str = "/v1/chat/completions") -> httpx.Response:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gate") as http:
        return await http.post(path, json=body)


@given(body=bodies | mutated)
@settings(parent=QUICK, max_examples=150)
def test_mutated_bodies_never_fail(apart: _Apart, body: Any) -> None:
    answer = apart.do(_post(apart.app, body))
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@given(asked=others)
@settings(parent=QUICK, max_examples=250)
def test_mutated_bodies_of_the_other_dialects_never_fail(apart: _Apart, asked: Any) -> None:
    path, body = asked
    answer = apart.do(_post(apart.app, {"model": MODEL, **body}, path))
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        shape = {"message", "type"} if "messages" in path else {"message", "type", "param", "code"}
        assert set(answer.json()["error"]) == shape


def test_a_valid_body_is_among_them(apart: _Apart) -> None:
    """Else the test above would say nothing."""
    body = {"model": MODEL, "messages": [user("x"), {"role": "assistant", "tool_calls": []}]}
    assert apart.do(_post(apart.app, body)).status_code == 200
