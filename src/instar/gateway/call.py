"""One model call as the gateway understands it, whatever wire format it came in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from instar.errors import RequestError
from instar.types import Delta, Kind, Message, Piece, Tool, Turn

MAX_SESSION_ID = 256

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a client asked for. `None` means that it did not say."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    """For measurements: reply up to max_tokens whatever the model says."""
    logprobs: bool = False
    top_logprobs: int = 0
    one_call: bool = False
    return_ids: bool = False
    """Send the prompt's and the reply's token ids along with a whole reply."""
    stream: bool = False
    include_usage: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    """Passed to the chat template, such as enable_thinking."""
    body_hints: dict[str, str] = field(default_factory=dict)
    """What the body says of session and turn; headers win over it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What a client says of its session and of this turn."""

    session: str | None = None
    session_from: str = "history"
    kind: Kind | None = None
    no_train: bool = False
    done: bool = False
    group: str | None = None
    """Of an attempt at a task: attempts of one group are compared with each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A moment of a reply under way; the last one carries the recorded turn."""

    name: str
    """The turn's id."""
    deltas: list[Delta]
    piece: Piece | None = None
    turn: Turn | None = None
    cached: int = 0


SESSION_HEADERS = ("x-session-id", "x-session-affinity", "session_id", "session-id")
"""In order of trust; body fields come after them."""

SESSION_FIELDS = ("prompt_cache_key", "session_id")


def read_hints(headers: Mapping[str, str], body: Mapping[str, str]) -> Hints:
    """Session, turn type and flags from headers, else from the body."""
    session, source = None, "history"
    for name, place in [
        *((n, headers) for n in SESSION_HEADERS),
        *((n, body) for n in SESSION_FIELDS),
    ]:
        if found := place.get(name):
            session, source = _session_id(found, name), name
            break
    kind = headers.get("x-turn-type") or body.get("turn_type")
    return Hints(
        session=session,
        session_from=source,
        kind=_kind(kind),
        no_train=flag(headers.get("x-no-train") or body.get("no_train")),
        done=flag(headers.get("x-session-done") or body.get("session_done")),
        group=name_in(headers, "x-group-id"),
    )


def name_in(headers: Mapping[str, str], name: str) -> str | None:
    """A name that a header gives, or None where it gives none."""
    found = headers.get(name)
    return _session_id(found, name) if found else None


def flag(value: str | None) -> bool:
    return value is not None and value.strip().lower() in _TRUE


def _session_id(value: str, name: str) -> str:
    value = value.strip()
    if len(value) > MAX_SESSION_ID or _CONTROL.search(value) or not value:
        raise RequestError(
            f"{name} has {len(value)} characters"
            f"{' and control characters' if _CONTROL.search(value) else ''}; it must be 1 to "
            f"{MAX_SESSION_ID} printable characters",
            param=name,
        )
    if name in ("x-session-affinity", "prompt_cache_key"):
        # OpenClaw appends `:n`, which rises with each compaction; the session stays the same.
        head, _, tail = value.rpartition(":")
        return head if head and tail.isdigit() else value
    return value


def _kind(value: str | None) -> Kind | None:
    if value is None or value == "":
        return None
    lowered = value.strip().lower()
    if lowered == "main":
        return "main"
    if lowered == "side":
        return "side"
    raise RequestError(
        f"the turn type is {value[:40]!r}; it must be main or side", param="X-Turn-Type"
    )
