"""One model call as the gateway understands it, whatever wire format it came in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from instar.errors import RequestError
from instar.gateway.turn_types import header_errand
from instar.types import Delta, Kind, Message, Piece, Tool, Turn

MAX_SESSION_ID = 256

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


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
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the reply, besides the model's own; like a stop string, none is shown."""
    ignore_eos: bool = False
    """For measurements: reply up to max_tokens whatever the model says."""
    logprobs: bool = False
    top_logprobs: int = 0
    one_call: bool = False
    return_ids: bool = False
    """Send the prompt's and the reply's token ids along with a whole reply."""
    stream: bool = False
    include_usage: bool = False
    prompt: str | tuple[int, ...] | None = None
    """A raw prompt, read as it is; there are no messages then."""
    echo: bool = False
    """Show a raw prompt before its reply."""
    after: str | None = None
    """The id of a recorded turn: `messages` only go on from there."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What the dialect wants to know again when it writes the reply."""
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
    errand: str | None = None
    """What a header shows this call to be for, beside the conversation; see turn_types."""
    no_train: bool = False
    no_record: bool = False
    """Serve this call and keep nothing of it: what asks so is no part of any conversation."""
    done: bool = False
    group: str | None = None
    """Of an attempt at a task: attempts of one group are compared with each other."""
    run: str | None = None
    """What the client calls the run that this call is part of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A moment of a reply under way; the last one carries the recorded turn."""

    name: str
    """The turn's id."""
    deltas: list[Delta]
    piece: Piece | None = None
    turn: Turn | None = None
    version: str = ""
    """As its owner names it; a piece has the engine's name."""
    cached: int = 0
    prompt_tokens: int = 0


def continued(call: Call, turn: Turn) -> Call:
    """The call with the conversation before it, which its client did not send again.

    A first system message is the instructions of one call: a later call brings its own or none.
    """
    head = call.messages[:1] if call.messages[:1] and _is_system(call.messages[0]) else ()
    before = turn.messages[1:] if turn.messages and _is_system(turn.messages[0]) else turn.messages
    new = call.messages[len(head) :]
    hints = {name: value for name, value in call.body_hints.items() if name not in SESSION_FIELDS}
    return replace(
        call,
        messages=(*head, *before, turn.reply, *new),
        body_hints={**hints, "session_id": turn.session},
    )


def _is_system(message: Message) -> bool:
    return bool(message["role"] == "system")


def check_tool_results(messages: Sequence[Message]) -> None:
    """Each result answers one call, and no two calls of a message share an id."""
    made: set[str] = set()
    answered: set[str] = set()
    for message in messages:
        if message["role"] == "assistant":
            calls = [call["id"] for call in message.get("tool_calls") or () if call.get("id")]
            for twice in (name for at, name in enumerate(calls) if name in calls[:at]):
                raise _bad_tool(f"Two calls of one message have the id {twice[:80]!r}.", "twice")
            made.update(calls)
            answered = set()
        elif message["role"] == "tool" and (name := message.get("tool_call_id")) is not None:
            if name not in made:
                raise _bad_tool(
                    f"A tool result is for the call {name[:80]!r}, which no message before it "
                    "makes. Send the call too, or leave the result out.",
                    "unknown",
                )
            if name in answered:
                raise _bad_tool(f"The call {name[:80]!r} has two results; send one.", "twice")
            answered.add(name)


def _bad_tool(text: str, what: str) -> RequestError:
    return RequestError(text, param="messages", code=f"tool_call_{what}")


SESSION_HEADERS = (
    "x-session-id",  # the plugin, opencode, and whoever wants to name a session
    "x-session-affinity",  # OpenClaw: the id, and a number that rises at compaction and reset
    "x-claude-code-session-id",
    "thread-id",  # codex: a sub-agent has a thread of its own within the session
    "session_id",
    "session-id",
)
"""In order of trust; body fields come after them."""

_NUMBERED_HEADERS = ("x-session-affinity", "session_id", "session-id")
"""To these OpenClaw appends `:n`, which rises with each compaction; the session stays the same."""

SESSION_FIELDS = ("metadata.user_id", "prompt_cache_key", "session_id")


def read_hints(headers: Mapping[str, str], body: Mapping[str, str]) -> Hints:
    """Session, turn type and flags from headers, else from the body."""
    session, source = None, "history"
    for name, place in [
        *((n, headers) for n in SESSION_HEADERS),
        *((n, body) for n in SESSION_FIELDS),
    ]:
        if found := _in_user_id(place.get(name)) if name == "metadata.user_id" else place.get(name):
            session, source = _session_id(found, name, header=place is headers), name
            break
    return Hints(
        session=session,
        session_from=source,
        kind=_kind(headers.get("x-turn-type"), "X-Turn-Type")
        or _kind(body.get("turn_type"), "turn_type"),
        errand=header_errand(headers),
        no_train=wished(headers.get("x-no-train")) or wished(body.get("no_train")),
        no_record=wished(headers.get("x-no-record")),
        done=flag(headers.get("x-session-done") or body.get("session_done")),
        group=name_in(headers, "x-group-id"),
        run=name_in(headers, "x-run-id"),
    )


def name_in(headers: Mapping[str, str], name: str) -> str | None:
    """A name that a header gives, or None where it gives none."""
    found = headers.get(name)
    return _session_id(found, name, header=True) if found else None


def wished(value: str | None) -> bool:
    """Whether somebody asks to be left out: who says anything but no may well mean it."""
    return value is not None and value.strip().lower() not in _FALSE


def flag(value: str | None) -> bool:
    return value is not None and value.strip().lower() in _TRUE


def _session_id(value: str, name: str, *, header: bool) -> str:
    value = (_as_sent(value) if header else value).strip()
    if len(value) > MAX_SESSION_ID or _CONTROL.search(value) or not value:
        raise RequestError(
            f"{name} has {len(value)} characters"
            f"{' and control characters' if _CONTROL.search(value) else ''}; it must be 1 to "
            f"{MAX_SESSION_ID} printable characters",
            param=name,
        )
    if name in (_NUMBERED_HEADERS if header else ("prompt_cache_key",)):
        head, _, tail = value.rpartition(":")
        return head if head and tail.isdigit() else value
    return value


def _as_sent(value: str) -> str:
    """A header's text, which servers hand on as Latin-1 though clients write UTF-8."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _in_user_id(value: str | None) -> str | None:
    """The session in Claude Code's `metadata.user_id`, which is JSON or, before, joined words.

    Example: {"device_id": "..", "session_id": "ID"}, or user_X_account_Y_session_ID.
    """
    if value is None:
        return None
    try:
        found = orjson.loads(value)
    except ValueError:
        return value.rpartition("_session_")[2] if "_session_" in value else None
    session = found.get("session_id") if isinstance(found, dict) else None
    return session if isinstance(session, str) else None


def _kind(value: str | None, name: str) -> Kind | None:
    if value is None or value == "":
        return None
    lowered = value.strip().lower()
    if lowered == "main":
        return "main"
    if lowered == "side":
        return "side"
    raise RequestError(f"the turn type is {value[:40]!r}; it must be main or side", param=name)
