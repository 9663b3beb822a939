"""`POST /v1/feedback`: what a person says of a reply, which wins over any judge.

Comes in: `{"turn": ID}` or `{"session": ID}` (its last main turn), `score` -1, 0 or 1, and
perhaps `text`. Goes out: a verdict of the person, and their words, which become a hint as they
would in a reply. Without either id, the session that the headers name is meant, as with every
other request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, cast

import orjson
from fastapi import FastAPI, Request, Response

from instar.errors import RequestError
from instar.gateway.auth import Access
from instar.gateway.call import read_hints
from instar.gateway.dialects import turn_of
from instar.gateway.wire import read_json
from instar.types import Hint, Turn, Verdict

MAX_TEXT = 10_000
_FIELDS = {"turn", "session", "score", "text"}
_BODY_LIMIT = 1_000_000

_SCHEMA = {
    "type": "object",
    "properties": {
        "turn": {"type": "string", "description": "The id of a reply"},
        "session": {"type": "string", "description": "A session: its last main turn is meant"},
        "score": {"type": "integer", "enum": [-1, 0, 1]},
        "text": {"type": "string", "maxLength": MAX_TEXT},
    },
    "required": ["score"],
    "additionalProperties": False,
}

Give = Callable[[str, str | None, str | None, Verdict, Hint | None], Awaitable[Turn | None]]
"""(owner, turn, session, verdict, hint): the turn that was meant, or None without one."""


def add_feedback(
    app: FastAPI, access: Access, give: Give, *, statuses: Mapping[int | str, str]
) -> None:
    """Add the route."""

    @app.post(
        "/v1/feedback",
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": _SCHEMA}}}
        },
        responses={
            status: {"description": "No such turn or session" if status == 404 else text}
            for status, text in statuses.items()
        },
    )
    async def feedback(request: Request) -> Response:
        """Say how a reply was: -1, 0 or 1, and in words what it should have been."""
        owner = await access.owner(request.headers)
        body = await read_json(request, _BODY_LIMIT)
        turn, session = _which(body, request.headers)
        verdict, hint = _said(body)
        found = await give(owner, turn, session, verdict, hint)
        if found is None:
            what = f"turn {turn!r}" if turn else f"main turn in a session {session!r}"
            raise RequestError(
                f"There is no {what} of yours here. A turn's id is the id of its reply.",
                status=404,
                param="turn" if turn else "session",
                code="not_found",
            )
        answer = {
            "turn": found.id,
            "session": found.session,
            "score": verdict.score,
            # A private turn takes no feedback, and what is on the side is never trained.
            "used": found.kind == "main" and not found.no_train,
        }
        return Response(orjson.dumps(answer), media_type="application/json")


def _which(body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The turn or the session that is meant: exactly one of them."""
    if unknown := body.keys() - _FIELDS:
        raise RequestError(
            f"Found the field {min(unknown)[:40]!r}; known are {', '.join(sorted(_FIELDS))}.",
            param=min(unknown)[:40],
        )
    turn, session = (_text(body, name, 256) for name in ("turn", "session"))
    if turn and session:
        raise RequestError("Found turn and session; send one of them.", param="turn")
    if turn and not (turn.isascii() and turn.isprintable()):
        raise RequestError("turn is no id of a reply.", param="turn")
    if turn:
        return turn_of(turn), None
    # What the body names is meant, whatever session a client's headers always send.
    found = read_hints({} if session else headers, {"session_id": session} if session else {})
    named = found.session
    if not named:
        raise RequestError(
            "Which reply is meant? Send turn (the id of a reply) or session.", param="turn"
        )
    return None, named


def _said(body: Mapping[str, Any]) -> tuple[Verdict, Hint | None]:
    score = body.get("score")
    if isinstance(score, bool) or score not in (-1, 0, 1) or not isinstance(score, int):
        raise RequestError(f"score is {score!r:.40}; it must be -1, 0 or 1.", param="score")
    text = (_text(body, "text", MAX_TEXT) or "").strip()
    verdict = Verdict(score=cast(Literal[-1, 0, 1], score), source="person")
    # Praise in words says nothing that should have been different.
    return verdict, Hint(text=text, source="person") if text and score < 1 else None


def _text(body: Mapping[str, Any], name: str, limit: int) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > limit:
        found = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise RequestError(
            f"{name} is {found}; it must be a string of at most {limit} characters.", param=name
        )
    return value
