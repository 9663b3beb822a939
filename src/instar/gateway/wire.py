"""HTTP as the gateway needs it: bounded bodies, errors in a dialect's shape, live replies.

A reply starts its response only when the first step is there, so that whatever fails before it
gets a proper status; and it is cancelled as soon as its client hangs up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from instar.errors import BusyError, EngineError, InstarError, RequestError, StoreError
from instar.gateway.call import Step
from instar.types import Turn

log = logging.getLogger("instar.gateway")

HUNG_UP = 499
"""Counted in place of a status where the client was gone before it could get one."""

_DEPTH = 100
"""Deepest nesting of a body: what is read must be written again, and not all writers go deep."""

ErrorBody = Callable[[InstarError], dict[str, Any]]


class Writer(Protocol):
    """How a dialect writes one reply."""

    content_type: str

    def begin(self, step: Step) -> bytes: ...
    def step(self, step: Step) -> bytes: ...
    def end(self, turn: Turn, cached: int) -> bytes: ...
    def whole(self, steps: list[Step], turn: Turn, cached: int) -> bytes: ...
    def broken(self, error: InstarError) -> bytes: ...


async def read_json(
    request: Request, limit: int, *, empty: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The body as an object; too large, malformed or anything else is a RequestError.

    `empty` is what no body at all stands for, where that may be.
    """
    packed = request.headers.get("content-encoding", "")
    if packed.lower() not in ("", "identity"):
        raise RequestError(
            f"The body is compressed ({packed[:40]}), which is not read here. Send it as it is.",
            status=415,
            code="unsupported_encoding",
        )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(size, limit)
        chunks.append(chunk)
    if not size and empty is not None:
        return empty
    try:
        body = orjson.loads(b"".join(chunks))
    except ValueError as error:
        raise RequestError(f"The body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise RequestError(
            f"The body is a JSON {type(body).__name__}; it must be an object.", code="invalid_json"
        )
    if _deeper(body, _DEPTH):
        raise RequestError(
            f"The body is nested deeper than {_DEPTH} levels, which is all this server takes.",
            code="invalid_json",
        )
    return body


def _deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [value for some in inner for value in some if isinstance(value, dict | list)]
        if not level:
            return False
    return True


def status_of(error: InstarError) -> int:
    if isinstance(error, RequestError):
        return error.status
    return 503 if isinstance(error, EngineError | StoreError) else 500


def error_response(error: InstarError, shape: ErrorBody) -> Response:
    headers = {"content-type": "application/json"}
    if isinstance(error, BusyError):
        headers["retry-after"] = str(error.retry_after)
    elif isinstance(error, EngineError | StoreError):
        headers["retry-after"] = "2"
    return Response(orjson.dumps(shape(error)), status_of(error), headers=headers)


class LiveReply(Response):
    """A response made from the steps of a reply, streamed or whole."""

    def __init__(
        self,
        steps: AsyncGenerator[Step, None],
        writer: Writer,
        *,
        stream: bool,
        shape: ErrorBody,
        done: Callable[[int], None],
    ) -> None:
        self._steps = steps
        self._writer = writer
        self._stream = stream
        self._shape = shape
        self._done = done
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        talk = self._talk_stream if self._stream else self._talk_whole
        reply = asyncio.ensure_future(talk(scope, receive, send))
        gone = asyncio.ensure_future(_hung_up(receive))
        try:
            await asyncio.wait({reply, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not reply.done():
                reply.cancel()
            with suppress(asyncio.CancelledError):
                await reply
        self._done(HUNG_UP if reply.cancelled() else reply.result())

    async def _talk_stream(self, scope: Scope, receive: Receive, send: Send) -> int:
        started = False
        async with aclosing(self._steps) as steps:
            try:
                async for step in steps:
                    body = b""
                    if not started:
                        body = self._writer.begin(step)
                        await _start(send, 200, self._writer.content_type)
                        started = True
                    body += self._writer.step(step)
                    if step.turn is not None:
                        body += self._writer.end(step.turn, step.cached)
                    if body:
                        await send({"type": "http.response.body", "body": body, "more_body": True})
            except InstarError as error:
                if not started:
                    return await self._refuse(error, scope, receive, send)
                # The status is sent already: the client is told in the stream, and cut off.
                broken = self._writer.broken(error)
                await send({"type": "http.response.body", "body": broken, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return 200

    async def _talk_whole(self, scope: Scope, receive: Receive, send: Send) -> int:
        seen: list[Step] = []
        async with aclosing(self._steps) as steps:
            try:
                async for step in steps:
                    seen.append(step)
            except InstarError as error:
                return await self._refuse(error, scope, receive, send)
        last = seen[-1]
        assert last.turn is not None
        body = self._writer.whole(seen, last.turn, last.cached)
        await Response(body, media_type="application/json")(scope, receive, send)
        return 200

    async def _refuse(self, error: InstarError, scope: Scope, receive: Receive, send: Send) -> int:
        response = error_response(error, self._shape)
        await response(scope, receive, send)
        return response.status_code


async def _start(send: Send, status: int, content_type: str) -> None:
    headers = [(b"content-type", content_type.encode()), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(found: int, limit: int) -> RequestError:
    return RequestError(
        f"The body has {found} bytes or more; this server takes {limit} (gateway.max_body_mb).",
        status=413,
        code="body_too_large",
    )
