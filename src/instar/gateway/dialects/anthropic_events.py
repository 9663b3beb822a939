"""The reply of Anthropic Messages: its blocks, the events that tell of them, and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from instar.errors import InstarError
from instar.gateway.call import Call, Step
from instar.gateway.dialects.shared import thought
from instar.gateway.wire import status_of
from instar.protocols import Renderer
from instar.text import StopScanner
from instar.types import Delta, Turn


class MessagesWriter:
    """Writes one reply in this dialect."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, call: Call, renderer: Renderer) -> None:
        self._call = call
        self._renderer = renderer
        self._name = ""
        self._open = ""
        """The type of the block that is being written."""
        self._index = -1

    def begin(self, step: Step) -> bytes:
        """The first bytes of a stream, before those of its first step."""
        self._name = step.name
        usage = _usage(step.prompt_tokens, step.cached, sampled=0, thought=0)
        message = self._message([], usage=usage, reason=None, stop=None)
        return _event("message_start", message=message) + _event("ping")

    def step(self, step: Step) -> bytes:
        """The bytes of one step of a stream."""
        return b"".join(self._write(delta) for delta in step.deltas)

    def end(self, turn: Turn, cached: int) -> bytes:
        """The last bytes of a stream."""
        reason, stop = self._reason(turn)
        usage = self._cost(turn, cached)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        # A message without any block would leave clients without a text to show.
        empty = self._start({"type": "text", "text": ""}) if self._index < 0 else b""
        return (
            empty
            + self._stop()
            + _event("message_delta", delta=delta, usage=usage)
            + _event("message_stop")
        )

    def whole(self, steps: Sequence[Step], turn: Turn, cached: int) -> bytes:
        """A reply in one body."""
        self._name = turn.id
        blocks: list[dict[str, Any]] = []
        for delta in (delta for step in steps for delta in step.deltas):
            if delta.kind == "tool_call":
                # As it was written: numbers may be larger than JSON writers take.
                blocks.append(_tool_use(delta, orjson.Fragment(_arguments(delta))))
            elif blocks and blocks[-1]["type"] == _TYPES[delta.kind]:
                blocks[-1][_TYPES[delta.kind]] += delta.text
            else:
                blocks.append(self._block(delta.kind, delta.text))
        reason, stop = self._reason(turn)
        usage = self._cost(turn, cached)
        return orjson.dumps(
            self._message(
                blocks or [{"type": "text", "text": ""}], usage=usage, reason=reason, stop=stop
            )
        )

    def broken(self, error: InstarError) -> bytes:
        """The bytes that tell a client that a stream it was reading has failed."""
        return _event("error", error=error_body(error)["error"])

    def _write(self, delta: Delta) -> bytes:
        if delta.kind == "tool_call":
            written = {"type": "input_json_delta", "partial_json": _arguments(delta)}
            head = self._stop() + self._start(_tool_use(delta, {}))
            return head + self._delta(written) + self._stop()
        kind = _TYPES[delta.kind]
        head = b""
        if self._open != kind:
            empty = {"type": kind, kind: ""}
            head = self._stop() + self._start(empty | _unsigned(kind))
        return head + self._delta({"type": f"{kind}_delta", kind: delta.text})

    def _start(self, block: dict[str, Any]) -> bytes:
        self._index += 1
        self._open = block["type"]
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> bytes:
        if not self._open:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": self._signature})
        self._open = ""
        return signed + _event("content_block_stop", index=self._index)

    def _block(self, kind: str, text: str) -> dict[str, Any]:
        name = _TYPES[kind]
        block = {"type": name, name: text}
        return block | ({"signature": self._signature} if name == "thinking" else {})

    @property
    def _signature(self) -> str:
        """Clients send it back unread; the recorded turn is what counts."""
        return self._name

    def _message(
        self,
        content: list[dict[str, Any]],
        *,
        usage: dict[str, Any],
        reason: str | None,
        stop: str | None,
    ) -> dict[str, Any]:
        return {
            "id": f"msg_{self._name}",
            "type": "message",
            "role": "assistant",
            "model": self._call.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        }

    def _cost(self, turn: Turn, cached: int) -> dict[str, Any]:
        spent = thought(turn, self._renderer)
        return _usage(len(turn.prompt_ids), cached, sampled=len(turn.sampled_ids), thought=spent)

    def _reason(self, turn: Turn) -> tuple[str, str | None]:
        """Why the reply ended, and at which stop sequence if at one."""
        if turn.finish == "stop" and self._call.stop:
            scanner = StopScanner(self._call.stop)
            kept = [i for i in turn.sampled_ids if i not in self._renderer.eos_ids]
            said = b"".join(map(self._renderer.token_bytes, kept))
            scanner.push(said.decode("utf-8", "replace"))
            if scanner.hit is not None:
                return "stop_sequence", scanner.hit
        return _REASONS.get(turn.finish, "end_turn"), None


_TYPES = {"content": "text", "reasoning": "thinking"}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


def _unsigned(kind: str) -> dict[str, str]:
    return {"signature": ""} if kind == "thinking" else {}


def _arguments(delta: Delta) -> str:
    return str(delta.call["function"]["arguments"])


def _tool_use(delta: Delta, arguments: Any) -> dict[str, Any]:
    name = delta.call["function"]["name"]
    return {"type": "tool_use", "id": delta.call["id"], "name": name, "input": arguments}


def _usage(prompt: int, cached: int, *, sampled: int, thought: int) -> dict[str, Any]:
    """Anthropic counts what came from a cache apart."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": sampled,
        "output_tokens_details": {"thinking_tokens": thought},
    }


def _event(kind: str, **fields: Any) -> bytes:
    body = orjson.dumps({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def error_body(error: InstarError) -> dict[str, Any]:
    """Anthropic's error shape."""
    status = status_of(error)
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}
