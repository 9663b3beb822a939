"""Images in a conversation: checked, fetched where that is allowed, and kept with the turn.

Comes in: parts of the form {"type": "image_url", "image_url": {"url": ...}}, whatever dialect
they came from. Goes out: the same parts with a data URL whose type is the one that the bytes
show, so that the same picture is always the same text, in the record and in a resent history.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx

from instar.config import GatewayConfig
from instar.errors import RequestError
from instar.gateway.call import Call
from instar.types import Message

Fetch = Callable[[str, int, float], Awaitable[bytes]]
"""(address, most bytes, seconds): what is there."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""Leads to any IPv4 address, private ones too."""

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def images_of(messages: Sequence[Message]) -> tuple[bytes, ...]:
    """The images of a loaded conversation, in the order in which its prompt shows them."""
    return tuple(base64.b64decode(_url(part).partition(",")[2]) for part in _parts(messages))


async def load_images(
    call: Call, *, sees: bool, config: GatewayConfig, fetch: Fetch | None = None
) -> Call:
    """The call with every image as data; a RequestError where one cannot be shown."""
    if next(_parts(call.messages), None) is None:
        return call
    if not sees:
        raise RequestError(
            f"The conversation holds an image, but {call.model[:80]!r} reads text only. Leave "
            "images out, or serve a model that can see.",
            param="messages",
            code="unsupported_content",
        )
    if next(_parts([m for m in call.messages if m["role"] not in ("user", "tool")]), None):
        raise _bad("An image may stand in a message of the user or in a tool's result only.")
    messages = [await _loaded(message, config, fetch or fetch_public) for message in call.messages]
    return replace(call, messages=tuple(messages))


def _parts(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            yield from (part for part in content if part.get("type") == "image_url")


def _url(part: dict[str, Any]) -> str:
    return str(part["image_url"]["url"])


async def _loaded(message: Message, config: GatewayConfig, fetch: Fetch) -> Message:
    if next(_parts([message]), None) is None:
        return message
    parts = [
        await _load(part, config, fetch) if part.get("type") == "image_url" else part
        for part in message["content"]
    ]
    return {**message, "content": parts}


async def _load(part: dict[str, Any], config: GatewayConfig, fetch: Fetch) -> dict[str, Any]:
    url, limit = _url(part), int(config.max_image_mb * 1_000_000)
    if url.startswith("data:"):
        data = _decoded(url, limit)
    elif urlsplit(url).scheme in ("http", "https"):
        if not config.fetch_images:
            raise _bad(
                "An image is given by its address, and this server fetches none "
                "(gateway.fetch_images is off). Send it as a data URL."
            )
        data = await fetch(url, limit, config.image_timeout_s)
    else:
        raise _bad(f"An image is at {url[:60]!r}; it must be a data URL or an http(s) address.")
    text = base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{_kind(data)};base64,{text}"}}


def _decoded(url: str, limit: int) -> bytes:
    head, comma, text = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise _bad(f"An image is {url[:40]!r}...; it must be `data:image/TYPE;base64,DATA`.")
    if len(text) * 3 // 4 > limit + 2:
        raise too_large(len(text) * 3 // 4, limit)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad(f"An image's data is not base64: {error}") from error
    if len(data) > limit:
        raise too_large(len(data), limit)
    return data


def _kind(data: bytes) -> str:
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise _bad("An image is none of PNG, JPEG, GIF and WebP, which are those read here.")


async def fetch_public(url: str, limit: int, timeout_s: float) -> bytes:
    """What is at a public address. No redirects, and no address of a private network.

    The name is looked up once and the connection goes to that very address, so that a name
    cannot point somewhere else a moment later.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        async with asyncio.timeout(timeout_s):
            address = await public_address(host, parts.port or 443)
            target = httpx.URL(url).copy_with(host=address)
            async with (
                httpx.AsyncClient(timeout=timeout_s, trust_env=False) as client,
                client.stream(
                    "GET",
                    target,
                    headers={"host": parts.netloc.rpartition("@")[2]},
                    extensions={"sni_hostname": host},
                ) as answer,
            ):
                if answer.status_code != 200:
                    raise _bad(f"The image at {url[:200]!r} answered {answer.status_code}.")
                return await _body(answer, limit)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ValueError) as error:
        why = str(error) or f"no answer within {timeout_s:g} s"
        raise _bad(f"The image at {url[:200]!r} could not be fetched: {why}") from error


async def public_address(host: str, port: int) -> str:
    """An address of this host, all of which must be public."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(map(_is_public, addresses)):
        raise _bad(f"An image is at {host[:80]!r}, which is not an address of the public internet.")
    return addresses[0]


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        # An IPv4 address within is the one that is meant.
        address = address.ipv4_mapped or address.sixtofour or address
    return address.is_global and not address.is_multicast and address not in _NAT64


async def _body(answer: httpx.Response, limit: int) -> bytes:
    data = b""
    async for chunk in answer.aiter_bytes():
        data += chunk
        if len(data) > limit:
            raise too_large(len(data), limit)
    return data


def too_large(found: int, limit: int) -> RequestError:
    return _bad(
        f"An image has {found} bytes or more; this server takes {limit} (gateway.max_image_mb).",
        code="image_too_large",
    )


def _bad(text: str, code: str = "invalid_image") -> RequestError:
    return RequestError(text, param="messages", code=code)
