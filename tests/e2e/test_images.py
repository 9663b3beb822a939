"""Images: a text model says why not; one that sees gets them, whatever dialect they came in."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
from gate import MODEL, Gate, decoded, extends, gate

from instar.config import GatewayConfig
from instar.errors import RequestError
from instar.gateway import images
from instar.gateway.call import Call
from instar.types import Request

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
JPEG = b"\xff\xd8\xff\xe0" + b"x" * 40


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def chat(source: str) -> tuple[str, dict[str, Any]]:
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": source}}]
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]}


def messages(source: str) -> tuple[str, dict[str, Any]]:
    given: dict[str, Any] = {"type": "url", "url": source}
    if source.startswith("data:"):
        kind, _, data = source.removeprefix("data:").partition(";base64,")
        given = {"type": "base64", "media_type": kind, "data": data}
    parts = [{"type": "text", "text": "What?"}, {"type": "image", "source": given}]
    return "/v1/messages", {"messages": [{"role": "user", "content": parts}], "max_tokens": 9}


def responses(source: str) -> tuple[str, dict[str, Any]]:
    image = {"type": "input_image", "image_url": source, "detail": "auto"}
    parts = [{"type": "input_text", "text": "What?"}, image]
    return "/v1/responses", {"input": [{"role": "user", "content": parts}]}


DIALECTS = (chat, messages, responses)
EACH = pytest.mark.parametrize("dialect", DIALECTS)


async def post(opened: Gate, asked: tuple[str, dict[str, Any]], **more: Any) -> httpx.Response:
    path, body = asked
    return await opened.http.post(path, json={"model": MODEL, **body, **more})


def refused(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    found = answer.json()
    if answer.request.url.path == "/v1/messages":
        assert set(found) == {"type", "error"} and found["type"] == "error"
        assert found["error"]["type"] == "invalid_request_error"
    else:
        assert set(found["error"]) == {"message", "type", "param", "code"}
    return str(found["error"]["message"])


@EACH
async def test_a_text_model_says_that_it_reads_text_only(system: Gate, dialect: Any) -> None:
    assert "reads text only" in refused(await post(system, dialect(url(PNG))))
    assert await system.all_turns() == []


@EACH
async def test_an_image_reaches_the_engine_and_the_record(
    tmp_path: Path, dialect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(tmp_path, engine__sees=True) as opened:
        seen = _watched(opened, monkeypatch)
        answer = await post(opened, dialect(url(JPEG, "image/png")))
        assert answer.status_code == 200, answer.text
        (turn,) = await opened.all_turns()
    assert [request.images for request in seen] == [(JPEG,)]
    assert turn.has_images
    assert turn.messages[0]["content"] == [
        {"type": "text", "text": "What?"},
        # The type is the one that the bytes show.
        {"type": "image_url", "image_url": {"url": url(JPEG, "image/jpeg")}},
    ]
    assert decoded(turn.prompt_ids) == (
        "<|im_start|>user\nWhat?<|image|><|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_resent_image_extends_and_another_one_does_not(tmp_path: Path) -> None:
    async with gate(tmp_path, engine__sees=True) as opened:
        path, body = chat(url(PNG))
        said = body["messages"]
        reply = (await post(opened, (path, body))).json()["choices"][0]["message"]
        other = chat(url(PNG + b"!"))[1]["messages"]
        more = {"role": "user", "content": "And?"}
        for history in ([*said, reply, more], [*other, reply, more]):
            answer = await post(opened, (path, {"messages": history}))
            assert answer.status_code == 200, answer.text
        sessions = await opened.system.store.sessions("local")
        assert len(sessions) == 2, "another picture is another conversation"
        same = max(sessions, key=lambda one: one.turns)
        first, second = await opened.turns(same.id)
    assert extends(second, first) and second.parent == first.id


async def test_the_same_words_with_another_image_are_another_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(tmp_path, engine__sees=True) as opened:
        seen = _watched(opened, monkeypatch)
        one = (await post(opened, chat(url(PNG)), seed=1)).json()["choices"][0]["message"]
        two = (await post(opened, chat(url(JPEG)), seed=1)).json()["choices"][0]["message"]
    assert one != two
    assert seen[0].prompt_ids == seen[1].prompt_ids and seen[0].images != seen[1].images


NOT_BASE64 = "data:image/png,abc"
BAD = {
    url(b"x" * 2000): "max_image_mb",
    url(b"not an image"): "PNG, JPEG, GIF and WebP",
    "data:image/png;base64,%%%": "not base64",
    NOT_BASE64: "base64",
    "ftp://example.com/a.png": "data URL",
    "https://example.com/a.png": "gateway.fetch_images",
}


@pytest.mark.parametrize(
    ("dialect", "source", "why"),
    [
        (dialect, source, why)
        for source, why in BAD.items()
        for dialect in DIALECTS
        # Anthropic's dialect has no field in which such a URL could be sent.
        if dialect is not messages or source != NOT_BASE64
    ],
)
async def test_a_bad_image_is_refused(tmp_path: Path, dialect: Any, source: str, why: str) -> None:
    async with gate(tmp_path, engine__sees=True, gateway__max_image_mb=0.001) as opened:
        assert why in refused(await post(opened, dialect(source)))
        assert await opened.all_turns() == []


PRIVATE = (
    *("127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1"),
    *("[::1]", "[::ffff:127.0.0.1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]"),
)


@pytest.mark.parametrize("host", PRIVATE)
async def test_no_private_address_is_asked(tmp_path: Path, host: str) -> None:
    async with gate(tmp_path, engine__sees=True, gateway__fetch_images=True) as opened:
        said = refused(await post(opened, chat(f"http://{host}:1/a.png")))
    assert "not an address of the public internet" in said


async def test_a_fetched_image_is_recorded_as_what_it_was() -> None:
    async def fetch(address: str, limit: int, timeout_s: float) -> bytes:
        assert (address, limit, timeout_s) == ("https://example.com/a.png", 10_000_000, 10)
        return PNG

    call = Call(model="m", messages=tuple(chat("https://example.com/a.png")[1]["messages"]))
    config = GatewayConfig(fetch_images=True)
    loaded = await images.load_images(call, sees=True, config=config, fetch=fetch)
    assert images.images_of(loaded.messages) == (PNG,)
    with pytest.raises(RequestError, match="fetches none"):
        await images.load_images(call, sees=True, config=GatewayConfig(), fetch=fetch)


async def test_fetching_ends_at_the_size_limit_and_follows_no_redirect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over a real socket, with the check of the address left out."""
    import asyncio

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        assert b"\r\nhost: somewhere:" in asked.lower()
        if b"/moved" in asked:
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /a\r\nContent-Length: 0\r\n\r\n")
        else:
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PNG)
            writer.write(head + PNG)
        await writer.drain()
        writer.close()

    async def address(host: str, port: int) -> str:
        return "127.0.0.1"

    monkeypatch.setattr(images, "public_address", address)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        base = f"http://somewhere:{server.sockets[0].getsockname()[1]}"
        assert await images.fetch_public(f"{base}/a", 10_000, 5) == PNG
        with pytest.raises(RequestError, match="max_image_mb"):
            await images.fetch_public(f"{base}/a", 100, 5)
        with pytest.raises(RequestError, match="answered 302"):
            await images.fetch_public(f"{base}/moved", 10_000, 5)


def _watched(opened: Gate, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that reach the engine."""
    seen: list[Request] = []
    engine: Any = opened.system.engine
    generate = engine.generate

    def watched(request: Request) -> Any:
        seen.append(request)
        return generate(request)

    monkeypatch.setattr(engine, "generate", watched)
    return seen
