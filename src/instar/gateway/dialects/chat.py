"""OpenAI Chat Completions: the body a client sends, and the bytes it gets back.

A field that would change the answer and cannot be honoured is refused by name (REFUSED);
fields that change nothing are ignored, known or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationError

from instar.errors import EngineError, InstarError, RequestError, StoreError
from instar.gateway.call import Call, Step
from instar.protocols import Renderer
from instar.types import Delta, Finish, Message, Turn


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    text: str | None = None


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


class ChatBody(BaseModel):
    """What is read of a chat request; other fields are ignored or refused by name."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: Annotated[StrictStr, Field(min_length=1)] | Stop | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    session_id: StrictStr | None = None
    prompt_cache_key: StrictStr | None = None
    turn_type: StrictStr | None = None
    session_done: StrictBool | StrictStr | int | None = None
    no_train: StrictBool | StrictStr | int | None = None


REFUSED: dict[str, Callable[[Any], bool]] = {
    "n": lambda v: v not in (None, 1),
    "logit_bias": bool,
    "frequency_penalty": bool,
    "presence_penalty": bool,
    "repetition_penalty": lambda v: v not in (None, 1),
    "min_p": bool,
    "response_format": lambda v: v is not None and v != {"type": "text"},
    "modalities": lambda v: v not in (None, ["text"]),
    "audio": bool,
    "functions": bool,
    "function_call": lambda v: v not in (None, "none", "auto"),
    "web_search_options": lambda v: v is not None,
    "prediction": lambda v: v is not None,
    "best_of": lambda v: v not in (None, 1),
    "suffix": bool,
    "guided_json": bool,
    "guided_regex": bool,
    "guided_choice": bool,
    "guided_grammar": bool,
    "structured_outputs": bool,
}
"""Fields that would change the answer: refused where this says so, and never ignored."""


def parse(raw: Mapping[str, Any]) -> Call:
    """A Call, or a RequestError that names the field."""
    for name, changes in REFUSED.items():
        if name in raw and changes(raw[name]):
            raise RequestError(
                f"{name}={_short(raw[name])} is not supported here, and ignoring it would change "
                "the answer. Leave it out.",
                param=name,
                code="unsupported_parameter",
            )
    try:
        body = ChatBody.model_validate(raw)
    except ValidationError as error:
        raise _refusal(error) from error
    _check_parts(body)
    return Call(
        model=body.model,
        messages=tuple(_clean(message) for message in raw["messages"]),
        tools=_tools(body, raw),
        temperature=body.temperature,
        top_p=None if body.top_p is None else max(body.top_p, 1e-6),
        top_k=None if body.top_k is None else max(body.top_k, 0),
        seed=body.seed,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=bool(body.logprobs),
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else 0,
        one_call=body.parallel_tool_calls is False,
        return_ids=bool(body.return_token_ids),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        options=_options(body),
        body_hints=_hints(body),
    )


class ChatWriter:
    """Writes one reply in this dialect."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, call: Call, *, model: str, renderer: Renderer) -> None:
        self._call = call
        self._model = model
        self._renderer = renderer
        self._created = int(time.time())
        self._id = ""
        self._version = ""
        self._logprobs: list[dict[str, Any]] = []
        self._parts: tuple[bytes, bytes, bytes] | None = None

    def begin(self, step: Step) -> bytes:
        """The first bytes of a stream, before those of its first step."""
        self._id = f"chatcmpl-{step.name}"
        self._version = step.piece.version if step.piece else ""
        return self._event([self._choice({"role": "assistant", "content": ""})])

    def step(self, step: Step) -> bytes:
        """The bytes of one step of a stream."""
        self._note(step)
        entries = self._logprobs
        if self._call.logprobs:
            self._logprobs = []
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
        """The last bytes of a stream."""
        out = self._event([self._choice({}, finish=turn.finish)])
        if self._call.include_usage:
            out += self._event([], usage=_usage(turn, cached))
        return out + b"data: [DONE]\n\n"

    def whole(self, steps: Sequence[Step], turn: Turn, cached: int) -> bytes:
        """A reply in one body."""
        for step in steps:
            self._note(step)
        choice: dict[str, Any] = {
            "index": 0,
            "message": turn.reply,
            "finish_reason": turn.finish,
            "logprobs": {"content": self._logprobs} if self._call.logprobs else None,
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
                "model": self._model,
                "system_fingerprint": turn.version,
                "choices": [choice],
                "usage": _usage(turn, cached),
            }
        )

    def broken(self, error: InstarError) -> bytes:
        """The bytes that tell a client that a stream it was reading has failed."""
        return b"data: " + orjson.dumps(error_body(error)) + b"\n\n"

    def _note(self, step: Step) -> None:
        piece = step.piece
        if piece is None:
            return
        self._version = piece.version
        if self._call.logprobs:
            tops: Sequence[Sequence[tuple[int, float]]] = piece.top or [()] * len(piece.ids)
            for token, logprob, top in zip(piece.ids, piece.logprobs, tops, strict=True):
                if token in self._renderer.eos_ids:
                    continue
                entry = self._logprob(token, logprob)
                entry["top_logprobs"] = [self._logprob(i, p) for i, p in top]
                self._logprobs.append(entry)

    def _logprob(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._renderer.token_text(token)
        return {"token": text, "logprob": logprob, "bytes": list(self._renderer.token_bytes(token))}

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
            "model": self._model,
            "system_fingerprint": self._version,
            "choices": choices,
        }
        if self._call.include_usage:
            body["usage"] = usage
        return b"data: " + orjson.dumps(body) + b"\n\n"


_CODES: dict[type[InstarError], str] = {EngineError: "engine_error", StoreError: "store_error"}


def error_body(error: InstarError) -> dict[str, Any]:
    """OpenAI's error shape."""
    known = error if isinstance(error, RequestError) else None
    return {
        "error": {
            "message": str(error),
            "type": known.kind if known else "server_error",
            "param": known.param if known else None,
            "code": known.code if known else _CODES.get(type(error), "server_error"),
        }
    }


def _delta(delta: Delta) -> dict[str, Any]:
    if delta.kind == "tool_call":
        return {"tool_calls": [{"index": delta.index, **delta.call}]}
    name = "content" if delta.kind == "content" else "reasoning_content"
    return {name: delta.text}


def _usage(turn: Turn, cached: int) -> dict[str, Any]:
    prompt, sampled = len(turn.prompt_ids), len(turn.sampled_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _tools(body: ChatBody, raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    choice = body.tool_choice
    if choice == "none" or not body.tools:
        return ()
    if choice not in (None, "auto"):
        raise RequestError(
            f"tool_choice={_short(choice)} cannot be enforced here. Send auto or none.",
            param="tool_choice",
            code="unsupported_parameter",
        )
    return tuple(raw["tools"])


def _options(body: ChatBody) -> dict[str, Any]:
    given = dict(body.chat_template_kwargs or {})
    reserved = given.keys() & {"messages", "tools", "add_generation_prompt", "documents"}
    if reserved:
        raise RequestError(
            f"chat_template_kwargs may not set {', '.join(sorted(reserved))}",
            param="chat_template_kwargs",
        )
    if body.reasoning_effort is not None:
        given.setdefault("reasoning_effort", body.reasoning_effort)
    return given


def _hints(body: ChatBody) -> dict[str, str]:
    found = {
        "prompt_cache_key": body.prompt_cache_key,
        "session_id": body.session_id,
        "turn_type": body.turn_type,
        "session_done": body.session_done,
        "no_train": body.no_train,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _check_parts(body: ChatBody) -> None:
    for at, message in enumerate(body.messages):
        if not isinstance(message.content, list):
            continue
        for part in message.content:
            if part.type not in ("text", "refusal") or part.text is None:
                raise RequestError(
                    f"messages[{at}] has a part of type {part.type[:40]!r}; this model reads text "
                    "only. Leave the part out, or serve a model that can see.",
                    param=f"messages[{at}].content",
                    code="unsupported_content",
                )


def _clean(message: Message) -> Message:
    """Without fields that are null: templates take their presence for a value."""
    return {
        name: value for name, value in message.items() if value is not None or name == "content"
    }


def _refusal(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_input=False)[0]
    path = ""
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return RequestError(f"{path}: {first['msg']}", param=path or None, code="invalid_value")


def _short(value: Any) -> str:
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= 60 else text[:57] + "..."
