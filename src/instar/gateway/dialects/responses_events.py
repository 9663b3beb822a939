"""The reply of OpenAI Responses: its items, and the events that tell of them as they grow.

Thinking, text and calls are items of their own, in the order in which the model wrote them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from instar.errors import InstarError
from instar.gateway.call import Call, Step
from instar.gateway.dialects.shared import thought
from instar.protocols import Renderer
from instar.types import Delta, Turn

PREFIX = "resp_"
"""Comes before a turn's id in the id of its response."""


class ResponsesWriter:
    """Writes one reply in this dialect."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, call: Call, renderer: Renderer) -> None:
        self._call = call
        self._renderer = renderer
        self._created = int(time.time())
        self._name = ""
        self._count = 0
        self._output: list[dict[str, Any]] = []
        """Items that are done, and last the one being written."""
        self._open = False

    def begin(self, step: Step) -> bytes:
        """The first bytes of a stream, before those of its first step."""
        self._name = step.name
        started = self._response("in_progress")
        return self._event("response.created", response=started) + self._event(
            "response.in_progress", response=started
        )

    def step(self, step: Step) -> bytes:
        """The bytes of one step of a stream."""
        return b"".join(self._write(delta) for delta in step.deltas)

    def end(self, turn: Turn, cached: int) -> bytes:
        """The last bytes of a stream."""
        state = "incomplete" if turn.finish == "length" else "completed"
        closing = self._finish(state)
        done = self._response(state, usage=self._usage(turn, cached))
        return closing + self._event(f"response.{state}", response=done)

    def whole(self, steps: Sequence[Step], turn: Turn, cached: int) -> bytes:
        """A reply in one body."""
        self._name = turn.id
        for step in steps:
            self.step(step)
        state = "incomplete" if turn.finish in ("length", "cancelled") else "completed"
        self._finish(state)
        return orjson.dumps(self._response(state, usage=self._usage(turn, cached)))

    def broken(self, error: InstarError) -> bytes:
        """The bytes that tell a client that a stream it was reading has failed."""
        told = {"code": "server_error", "message": str(error)}
        return self._event("response.failed", response=self._response("failed", error=told))

    def _write(self, delta: Delta) -> bytes:
        if delta.kind == "tool_call":
            return self._close("completed") + self._write_call(delta)
        kind = "message" if delta.kind == "content" else "reasoning"
        out = b""
        if not self._open or self._output[-1]["type"] != kind:
            out = self._close("completed") + self._start(kind)
        part = self._output[-1]["content"][0]
        part["text"] += delta.text
        name = f"response.{part['type']}.delta"
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return out + self._event(name, **self._at(), delta=delta.text, **logprobs)

    def _start(self, kind: str) -> bytes:
        item: dict[str, Any] = {
            "id": f"{_IDS[kind]}_{self._name}_{len(self._output)}",
            "type": kind,
            "status": "in_progress",
            "content": [],
        }
        if kind == "message":
            item["role"] = "assistant"
        else:
            item["summary"] = []
        self._output.append(item)
        self._open = True
        out = self._event("response.output_item.added", output_index=self._last, item=item)
        part = _text_part(kind)
        out += self._event("response.content_part.added", **self._at(), part=part)
        item["content"] = [part]
        return out

    def _close(self, status: str) -> bytes:
        """End the item that is being written, if one is."""
        if not self._open:
            return b""
        self._open = False
        item = self._output[-1]
        item["status"] = status
        part = item["content"][0]
        logprobs: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
        return (
            self._event(
                f"response.{part['type']}.done", **self._at(), text=part["text"], **logprobs
            )
            + self._event("response.content_part.done", **self._at(), part=part)
            + self._event("response.output_item.done", output_index=self._last, item=item)
        )

    def _finish(self, status: str) -> bytes:
        """End the last item; a reply without any is an empty message, not nothing."""
        empty = b"" if self._output else self._start("message")
        return empty + self._close(status)

    def _write_call(self, delta: Delta) -> bytes:
        name, arguments = (delta.call["function"][key] for key in ("name", "arguments"))
        kind, space, own = self._call.kept.get("kinds", {}).get(name, ("function", None, name))
        field, text = ("arguments", arguments)
        if kind == "custom":
            field, text = "input", _custom_input(arguments)
        item: dict[str, Any] = {
            "id": f"{_IDS[kind]}_{self._name}_{len(self._output)}",
            "type": "custom_tool_call" if kind == "custom" else "function_call",
            "status": "in_progress",
            "call_id": delta.call["id"],
            "name": own,
            field: "",
        }
        if space:
            item["namespace"] = space
        self._output.append(item)
        out = self._event("response.output_item.added", output_index=self._last, item=item)
        item |= {"status": "completed", field: text}
        where = {"item_id": item["id"], "output_index": self._last}
        name = "custom_tool_call_input" if kind == "custom" else "function_call_arguments"
        out += self._event(f"response.{name}.delta", **where, delta=text)
        out += self._event(f"response.{name}.done", **where, **{field: text})
        return out + self._event("response.output_item.done", output_index=self._last, item=item)

    @property
    def _last(self) -> int:
        return len(self._output) - 1

    def _at(self) -> dict[str, Any]:
        item = self._output[-1]["id"]
        return {"item_id": item, "output_index": self._last, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = orjson.dumps({"type": kind, "sequence_number": self._count, **fields})
        self._count += 1
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"

    def _response(
        self,
        status: str,
        *,
        usage: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        cut = status == "incomplete"
        return {
            "id": PREFIX + self._name,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self._call.model,
            "output": self._output if status != "in_progress" else [],
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": usage,
            **self._call.kept.get("said", {}),
        }

    def _usage(self, turn: Turn, cached: int) -> dict[str, Any]:
        prompt, sampled = len(turn.prompt_ids), len(turn.sampled_ids)
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": thought(turn, self._renderer)},
            "total_tokens": prompt + sampled,
        }


_IDS = {"message": "msg", "reasoning": "rs", "function": "fc", "custom": "ctc"}


def _text_part(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _custom_input(arguments: str) -> str:
    """The text of a custom tool's call; a model that wrote no such field wrote only that."""
    found = orjson.loads(arguments)
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
