"""`/v1/attempts`: how attempts at tasks ended, told by whoever played them.

Comes in: the session that was one attempt, its place in its group, a status and a reward. Goes
out: the attempt that is kept, which is the first one told for its place. Asked for a run, it
gives all attempts that are over, so that a player who was stopped knows what is left.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from instar.errors import RequestError
from instar.gateway.auth import Access
from instar.gateway.wire import read_json
from instar.types import Attempt, AttemptStatus

_BODY_LIMIT = 1_000_000

Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\x20-\x7e\u00a1-\ud7ff]+$")]


class AttemptBody(BaseModel):
    """What is told of an attempt."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    session: Name
    environment: Name
    run: Name
    task: Name
    group: Name
    number: int = Field(ge=0, lt=10_000)
    size: int = Field(ge=1, le=10_000)
    status: AttemptStatus
    reward: float | None = Field(default=None, ge=0, le=1)
    turns: list[Name] = Field(default_factory=list, max_length=10_000)
    details: dict[str, Any] = Field(default_factory=dict)
    no_train: bool = False
    """Only measured: it trains nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDesk:
    """What the routes ask of the store."""

    add: Callable[[Attempt], Awaitable[Attempt]]
    of_run: Callable[[str, str], Awaitable[list[Attempt]]]
    waiting: Callable[[str, str], Awaitable[int]]


def add_attempts(
    app: FastAPI, access: Access, desk: AttemptDesk, *, statuses: Mapping[int | str, str]
) -> None:
    """Add the routes."""
    schema = AttemptBody.model_json_schema()
    described: dict[int | str, dict[str, Any]] = {
        status: {"description": text} for status, text in statuses.items()
    }

    @app.post(
        "/v1/attempts",
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
        responses=described,
    )
    async def tell_attempt(request: Request) -> Response:
        """Say how an attempt at a task ended."""
        owner = await access.owner(request.headers)
        told = _read(owner, await read_json(request, _BODY_LIMIT))
        kept = await desk.add(told)
        return _json({"kept": kept.session == told.session, "attempt": _plain(kept)})

    @app.get("/v1/attempts", responses=described)
    async def list_attempts(request: Request, run: str = "") -> Response:
        """The attempts of a run that are over, and how many of its groups wait for training."""
        owner = await access.owner(request.headers)
        if not run or not run.isprintable() or len(run) > 256:
            raise RequestError("Which run? Ask with ?run=NAME.", param="run")
        found = [_plain(one) for one in await desk.of_run(owner, run)]
        return _json({"attempts": found, "waiting": await desk.waiting(owner, run)})


def _read(owner: str, raw: dict[str, Any]) -> Attempt:
    try:
        body = AttemptBody.model_validate(raw)
        return Attempt(
            owner=owner,
            created=time.time(),
            used="no_train" if body.no_train else None,
            turns=tuple(body.turns),
            **body.model_dump(exclude={"no_train", "turns"}),
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{where}: {first['msg']}", param=where or None) from error
    except ValueError as error:
        raise RequestError(str(error), param="status") from error


def _plain(attempt: Attempt) -> dict[str, Any]:
    return {name: value for name, value in asdict(attempt).items() if name != "owner"}


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
