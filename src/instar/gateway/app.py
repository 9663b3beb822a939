"""The routes. `create_app` is given everything it uses, so tests run it without sockets."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from instar import __version__
from instar.config import GatewayConfig
from instar.errors import InstarError, RequestError, StoreError
from instar.gateway.attempts import AttemptDesk, add_attempts
from instar.gateway.auth import Access
from instar.gateway.call import Call, Hints, Step, check_tool_results, continued, read_hints
from instar.gateway.dialects import DIALECTS, dialect_at
from instar.gateway.dialects.shared import Dialect, Extra
from instar.gateway.feedback import Give, add_feedback
from instar.gateway.images import load_images
from instar.gateway.metrics import Metrics
from instar.gateway.pages import Pages
from instar.gateway.serve import TurnServer
from instar.gateway.wire import HUNG_UP, ErrorBody, LiveReply, error_response, read_json
from instar.protocols import Renderer
from instar.types import Turn

log = logging.getLogger("instar.gateway")

_CLOSE_S = 1.0
"""How long a session's last reply waits for the session to be marked as closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the routes use."""

    config: GatewayConfig
    name: str
    server: TurnServer
    renderer: Renderer
    access: Access
    metrics: Metrics
    ready: Callable[[], str | None]
    """None when a request would be served now, else why not."""
    close_session: Callable[[str, str], Awaitable[bool]]
    turn: Callable[[str, str], Awaitable[Turn | None]]
    """(owner, id): a recorded turn."""
    feedback: Give
    attempts: AttemptDesk
    refresh: Callable[[], None]
    """Brings gauges up to date before they are shown."""


def create_app(deps: Deps) -> FastAPI:
    """The gateway as an ASGI app."""
    app = FastAPI(title="instar", version=__version__, docs_url=None, redoc_url=None)
    _add_errors(app, deps)
    app.add_middleware(Pages)
    for dialect in DIALECTS:
        _add_dialect(app, deps, dialect)
    _add_sessions(app, deps)
    add_feedback(app, deps.access, deps.feedback, statuses=_STATUSES)
    add_attempts(app, deps.access, deps.attempts, statuses=_STATUSES)
    _add_info(app, deps)
    return app


def _add_dialect(app: FastAPI, deps: Deps, dialect: Dialect) -> None:
    limit = int(deps.config.max_body_mb * 1_000_000)

    async def reply(request: Request) -> Response:
        owner = await deps.access.owner(request.headers)
        call = await _call(deps, owner, dialect.parse(await read_json(request, limit)))
        hints = read_hints(request.headers, call.body_hints)
        return LiveReply(
            _closing(deps, owner, call, hints),
            dialect.writer(call, deps.renderer),
            stream=call.stream,
            shape=dialect.error_body,
            done=lambda status: deps.metrics.requests.labels(dialect.name, status).inc(),
        )

    app.post(dialect.path, **_described(dialect.about, dialect.body))(reply)
    for extra in dialect.extras:
        _add_extra(app, deps, extra, limit)


def _add_extra(app: FastAPI, deps: Deps, extra: Extra, limit: int) -> None:
    desk = _Desk(deps)

    async def answer(request: Request) -> Response:
        owner = await deps.access.owner(request.headers)
        given = await read_json(request, limit) if extra.body else dict(request.path_params)
        return _json(await extra.answer(desk, owner, given))

    add = {"GET": app.get, "POST": app.post}[extra.method]
    add(extra.path, **_described(extra.about, extra.body, path=extra.path))(answer)


async def _call(deps: Deps, owner: str, call: Call) -> Call:
    """The whole call: with what came before it, and checked as a conversation."""
    if call.after is not None:
        before = await _turn(deps, owner, call.after)
        if before is None:
            raise _no_response(call.after, 400, "previous_response_not_found")
        call = continued(call, before)
    check_tool_results(call.messages)
    return await load_images(call, sees=deps.server.sees, config=deps.config)


class _Desk:
    """What a dialect's further routes may ask of the gateway."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self.renderer = deps.renderer

    async def count(self, owner: str, call: Call) -> int:
        return await self._deps.server.count(owner, await _call(self._deps, owner, call))

    async def turn(self, owner: str, name: str) -> Turn:
        found = await _turn(self._deps, owner, name)
        if found is None:
            raise _no_response(name, 404, "not_found")
        return found


async def _turn(deps: Deps, owner: str, name: str) -> Turn | None:
    known = name.isascii() and name.isprintable() and len(name) < 100
    return await deps.turn(owner, name) if known else None


def _no_response(name: str, status: int, code: str) -> RequestError:
    return RequestError(
        f"There is no response {name[:80]!r} of yours here. It may have been forgotten: send the "
        "whole conversation instead.",
        status=status,
        param="previous_response_id",
        code=code,
    )


def _closing(deps: Deps, owner: str, call: Call, hints: Hints) -> AsyncGenerator[Step, None]:
    """The reply's steps; a call that says it is the session's last closes it afterwards."""
    steps = deps.server.run(owner, call, hints)
    if not hints.done:
        return steps

    async def closing() -> AsyncGenerator[Step, None]:
        async with aclosing(steps):
            async for step in steps:
                if step.turn is not None:
                    await _close(deps, owner, step.turn.session)
                yield step

    return closing()


async def _close(deps: Deps, owner: str, session: str) -> None:
    """A store that cannot be written now is no reason to keep a reply from its client."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await deps.close_session(owner, session)
    except (StoreError, TimeoutError) as error:
        log.warning("session %s is not closed yet: %s", session, error or "the store is slow")


def _add_sessions(app: FastAPI, deps: Deps) -> None:
    @app.post(
        "/v1/session/done",
        openapi_extra={
            "requestBody": {
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "properties": {"session_id": {"type": "string"}},
                        }
                    }
                }
            }
        },
        responses={status: {"description": text} for status, text in _STATUSES.items()},
    )
    async def session_done(request: Request) -> Response:
        """The conversation is over; the same id may be used again later."""
        owner = await deps.access.owner(request.headers)
        body = await read_json(request, 1_000_000, empty={})
        given = body.get("session_id")
        if given is not None and not isinstance(given, str):
            raise RequestError("session_id must be a string", param="session_id")
        hints = read_hints(request.headers, {"session_id": given} if given else {})
        if hints.session is None:
            raise RequestError(
                "Which session is done? Send X-Session-Id, or session_id in the body.",
                param="session_id",
            )
        known = await deps.close_session(owner, hints.session)
        return _json({"session": hints.session, "closed": known})


def _add_info(app: FastAPI, deps: Deps) -> None:
    started = int(time.time())

    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": started, "owned_by": "instar"}

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        """The live model, its aliases, and each loaded version."""
        owner = await deps.access.owner(request.headers)
        names = deps.server.models(owner)
        return _json({"object": "list", "data": [described(name) for name in names]})

    @app.get("/v1/models/{name:path}", responses={404: {"description": _STATUSES[404]}})
    async def model(name: str, request: Request) -> Response:
        """One of them."""
        owner = await deps.access.owner(request.headers)
        if name not in deps.server.models(owner):
            raise deps.server.no_model(owner, name)
        return _json(described(name))

    @app.get("/healthz")
    async def healthz() -> Response:
        """The gateway answers."""
        return _json({"status": "ok"})

    @app.get("/readyz", responses={503: {"description": "Not ready"}})
    async def readyz() -> Response:
        """A request would be served now."""
        why = deps.ready()
        return _json({"status": "ready" if why is None else why}, 200 if why is None else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text."""
        deps.refresh()
        return Response(deps.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_errors(app: FastAPI, deps: Deps) -> None:
    @app.exception_handler(InstarError)
    async def refused(request: Request, error: InstarError) -> Response:
        response = error_response(error, _shape(request))
        deps.metrics.requests.labels(_route(request), response.status_code).inc()
        return response

    @app.exception_handler(ClientDisconnect)
    async def hung_up(request: Request, error: ClientDisconnect) -> Response:
        # Nobody reads this answer: the client was gone before its body was all there.
        deps.metrics.requests.labels(_route(request), HUNG_UP).inc()
        return Response(status_code=HUNG_UP)

    @app.exception_handler(HTTPException)
    async def not_here(request: Request, error: HTTPException) -> Response:
        problem = RequestError(
            f"{request.method} {request.url.path[:200]}: {error.detail}", status=error.status_code
        )
        response = error_response(problem, _shape(request))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def crashed(request: Request, error: Exception) -> Response:
        log.exception("%s %s failed", request.method, request.url.path)
        problem = InstarError(f"instar failed: {type(error).__name__}: {error}")
        return error_response(problem, _shape(request))


_STATUSES: dict[int | str, str] = {
    400: "The request cannot be served as it is",
    401: "No key, or an unknown one",
    403: "A web page from elsewhere, without a key",
    404: "No such model",
    413: "The body is too large",
    415: "The body is compressed",
    429: "Too many requests in progress; Retry-After says when to come back",
    503: "The engine failed; Retry-After says when to come back",
}


def _shape(request: Request) -> ErrorBody:
    return dialect_at(request.url.path).error_body


def _route(request: Request) -> str:
    known = {dialect.path: dialect.name for dialect in DIALECTS}
    known |= {"/v1/session/done": "session_done", "/v1/feedback": "feedback"}
    known |= {"/v1/attempts": "attempts"}
    return known.get(request.url.path, "other")


def _described(about: str, body: type[BaseModel] | None, path: str = "") -> dict[str, Any]:
    """What the OpenAPI description says of a route whose body is read by hand."""
    extra: dict[str, Any] = {}
    if body is not None:
        content = {"application/json": {"schema": _schema(body)}}
        extra["requestBody"] = {"required": True, "content": content}
    if named := re.findall(r"{(\w+)}", path):
        extra["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in named
        ]
    statuses = {status: {"description": text} for status, text in _STATUSES.items()}
    return {"description": about, "openapi_extra": extra, "responses": statuses}


def _schema(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = model.model_json_schema()
    inlined: dict[str, Any] = _inline(found, found.pop("$defs", {}))
    return inlined


def _inline(node: Any, defs: dict[str, Any]) -> Any:
    """OpenAPI wants definitions elsewhere; they are few, so they are written out."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inline(defs[node["$ref"].rsplit("/", 1)[1]], defs)
        return {key: _inline(value, defs) for key, value in node.items()}
    if isinstance(node, list):
        return [_inline(value, defs) for value in node]
    return node


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
