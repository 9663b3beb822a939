"""OpenAI Chat Completions: the body a client sends, and the bytes it gets back.

A field that would change the answer and cannot be honoured is refused by name (REFUSED);
fields that change nothing are ignored, known or not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictStr

from instar.errors import InstarError, RequestError
from instar.gateway.call import Call, Step
from instar.gateway.dialects.shared import (
    NOT_DRAWN,
    Dialect,
    Refused,
    SharedBody,
    TokenLog,
    image_part,
    no_such_part,
    openai_error,
    openai_usage,
    other_names,
    read_body,
    unsupported,
)
from instar.protocols import Renderer
from instar.types import Delta, Finish, Message, Turn


class _Image(BaseModel):
    model_config = ConfigDict(strict=True)

    url: str


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _Image | None = None


class _Function(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str
    arguments: str | dict[str, Any] = "{}"


class _ToolCall(BaseModel):
    model_config = ConfigDict(strict=True)

    id: str | None = None
    type: str = "function"
    function: _Function


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class _ToolFunction(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    function: _ToolFunction


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool = False


Stop = Annotated[list[Annotated[StrictStr, Field(min_length=1)]], Field(max_length=16)]


class ChatBody(SharedBody):
    """What is read of a chat request; other fields are ignored or refused by name."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    stream_options: _StreamOptions | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: Annotated[StrictStr, Field(min_length=1)] | Stop | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    reasoning_effort: str | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None


REFUSED: Refused = {
    **NOT_DRAWN,
    **other_names(ChatBody),
    "modalities": lambda v: v not in (None, ["text"]),
    "audio": bool,
    "functions": bool,
    "function_call": lambda v: v not in (None, "none", "auto"),
    "web_search_options": lambda v: v is not None,
    "prediction": lambda v: v is not None,
    "echo": bool,
    "continue_final_message": bool,
    "add_generation_prompt": lambda v: v not in (None, True),
    "chat_template": bool,
    "documents": bool,
    "enable_thinking": bool,
    "thinking": lambda v: bool(v) and not _is_off(v),
}
"""That a model must think is refused, since only its template knows whether it can."""


def _is_off(thinking: Any) -> bool:
    disabled = isinstance(thinking, dict) and thinking.get("type") == "disabled"
    return disabled or thinking is False


def parse(raw: Mapping[str, Any]) -> Call:
    """A Call, or a RequestError that names the field."""
    body = read_body(ChatBody, raw, REFUSED)
    if body.top_logprobs and not body.logprobs:
        raise RequestError(
            "top_logprobs is only allowed where logprobs is true. Send both or none.",
            param="top_logprobs",
            code="invalid_value",
        )
    return Call(
        **body.sampling(),
        messages=tuple(
            _message(at, message, raw["messages"][at]) for at, message in enumerate(body.messages)
        ),
        tools=_tools(body, raw),
        seed=body.seed,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        one_call=body.parallel_tool_calls is False,
        return_ids=bool(body.return_token_ids),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        options=body.options(
            reasoning_effort=body.reasoning_effort,
            enable_thinking=False if _no_thinking(raw) else None,
        ),
        body_hints=body.hints(),
    )


def _no_thinking(raw: Mapping[str, Any]) -> bool:
    return _is_off(raw.get("enable_thinking")) or _is_off(raw.get("thinking"))


class ChatWriter:
    """Writes one reply in this dialect."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, call: Call, renderer: Renderer) -> None:
        self._call = call
        self._renderer = renderer
        self._created = int(time.time())
        self._id = ""
        self._version = ""
        self._log = TokenLog(renderer, call)
        self._parts: tuple[bytes, bytes, bytes] | None = None

    def begin(self, step: Step) -> bytes:
        """The first bytes of a stream, before those of its first step."""
        self._id = f"chatcmpl-{step.name}"
        self._version = step.version
        return self._event([self._choice({"role": "assistant", "content": ""})])

    def step(self, step: Step) -> bytes:
        """The bytes of one step of a stream."""
        self._note(step)
        entries = self._log.take()
        events = []
        for delta in step.deltas:
            if not entries and delta.kind != "tool_call":
                events.append(self._text_event(delta))
                continue
            events.append(self._event([self._choice(_delta(delta), logprobs=entries)]))
            entries = []
        if entries:
            events.append(self._event([self._choice({}, logprobs=entries)]))
        return b"".join(events)

    def end(self, turn: Turn, cached: int) -> bytes:
        """The last bytes of a stream: the usage comes in its last chunk.

        Who asks for it gets it in one of its own, as OpenAI gives it; others with the finish.
        """
        usage = openai_usage(turn, cached, self._renderer)
        last = [self._choice({}, finish=turn.finish, logprobs=self._log.take(last=True))]
        if self._call.include_usage:
            out = self._event(last) + self._event([], usage=usage)
        else:
            out = self._event(last, usage=usage)
        return out + b"data: [DONE]\n\n"

    def whole(self, steps: Sequence[Step], turn: Turn, cached: int) -> bytes:
        """A reply in one body."""
        for step in steps:
            self._note(step)
        choice: dict[str, Any] = {
            "index": 0,
            "message": turn.reply,
            "finish_reason": turn.finish,
            "logprobs": {"content": self._log.take(last=True)} if self._call.logprobs else None,
        }
        ids: dict[str, Any] = {}
        if self._call.return_ids:
            # Named as vLLM names them.
            choice["token_ids"] = turn.sampled_ids
            ids["prompt_token_ids"] = turn.prompt_ids
        return orjson.dumps(
            {
                **ids,
                "id": f"chatcmpl-{turn.id}",
                "object": "chat.completion",
                "created": self._created,
                "model": self._call.model,
                "system_fingerprint": turn.version,
                "choices": [choice],
                "usage": openai_usage(turn, cached, self._renderer),
            }
        )

    def broken(self, error: InstarError) -> bytes:
        """The bytes that tell a client that a stream it was reading has failed."""
        return b"data: " + orjson.dumps(openai_error(error)) + b"\n\n"

    def _note(self, step: Step) -> None:
        if step.piece is not None:
            self._version = step.version
            self._log.note(step)

    def _choice(
        self,
        delta: dict[str, Any],
        *,
        finish: Finish | None = None,
        logprobs: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        shown = {"content": logprobs} if logprobs and self._call.logprobs else None
        return {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": shown}

    def _text_event(self, delta: Delta) -> bytes:
        """The same as `_event` for plain text, of which there is one a token: made from parts."""
        if self._parts is None:
            whole = self._event([self._choice({"\ufdd0": "\ufdd1"})])
            head, rest = whole.split('{"\ufdd0":'.encode())
            tail = rest.split('"\ufdd1"}'.encode())[1]
            self._parts = (head + b'{"content":', head + b'{"reasoning_content":', b"}" + tail)
        content, reasoning, tail = self._parts
        head = content if delta.kind == "content" else reasoning
        return head + orjson.dumps(delta.text) + tail

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        body: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._call.model,
            "system_fingerprint": self._version,
            "choices": choices,
        }
        if usage is not None or self._call.include_usage:
            body["usage"] = usage
        return b"data: " + orjson.dumps(body) + b"\n\n"


def _delta(delta: Delta) -> dict[str, Any]:
    if delta.kind == "tool_call":
        return {"tool_calls": [{"index": delta.index, **delta.call}]}
    name = "content" if delta.kind == "content" else "reasoning_content"
    return {name: delta.text}


def _tools(body: ChatBody, raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    choice = body.tool_choice
    if choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", choice, "Send auto or none.")
    return () if choice == "none" or not body.tools else tuple(raw["tools"])


_NOT_SHOWN = {
    "function_call": "Send it as one of tool_calls.",
    "audio": "Send its transcript as content.",
}
"""Fields of a message that no template here shows the model, and what to send instead."""


def _message(at: int, message: _Message, raw: Message) -> Message:
    """As it was sent, without nulls: templates take a field's presence for a value."""
    for name, instead in _NOT_SHOWN.items():
        if raw.get(name):
            raise unsupported(f"messages[{at}].{name}", raw[name], instead)
    out = {name: value for name, value in raw.items() if value is not None or name == "content"}
    if isinstance(message.content, list):
        out["content"] = [
            _part(at, part, given)
            for part, given in zip(message.content, raw["content"], strict=True)
        ]
    if out.pop("refusal", None) and not out.get("content"):
        out["content"] = message.refusal
    return out


def _part(at: int, part: _Part, raw: dict[str, Any]) -> dict[str, Any]:
    if part.type == "image_url" and part.image_url is not None:
        return image_part(part.image_url.url)
    if part.type == "text" and part.text is not None:
        return raw
    # OpenAI's has its text in `refusal`; others copy the form of a text part.
    refusal = part.text if part.refusal is None else part.refusal
    if part.type == "refusal" and refusal is not None:
        return {"type": "text", "text": refusal}
    raise no_such_part(f"messages[{at}].content", part.type)


CHAT = Dialect(
    name="chat",
    path="/v1/chat/completions",
    prefix="chatcmpl-",
    about="One reply to a conversation, streamed or whole.",
    body=ChatBody,
    parse=parse,
    writer=ChatWriter,
    error_body=openai_error,
)
