"""OpenAI Completions: a raw prompt, as text or token ids, and the text that follows it.

There is no conversation here: the prompt is read as it is, special tokens included, and all of
the reply is text. Such a turn is `side` unless the client says `main`, since nothing that
follows it is ever seen. A prompt of ids that begins with an earlier turn of its session extends it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from instar.errors import InstarError, RequestError
from instar.gateway.call import Call, Step
from instar.gateway.dialects.shared import (
    NOT_DRAWN,
    Dialect,
    Refused,
    SharedBody,
    TokenLog,
    openai_error,
    openai_usage,
    other_names,
    read_body,
)
from instar.protocols import Renderer
from instar.types import Turn

_DEFAULT_TOKENS = 16
"""What this API draws where the client names no length."""


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool = False


Stop = Annotated[list[Annotated[StrictStr, Field(min_length=1)]], Field(max_length=16)]


class CompletionsBody(SharedBody):
    """What is read of a request; other fields are ignored or refused by name."""

    prompt: StrictStr | list[StrictInt] | list[StrictStr] | list[list[StrictInt]]
    stream_options: _StreamOptions | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: Annotated[StrictStr, Field(min_length=1)] | Stop | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    ignore_eos: bool | None = None


REFUSED: Refused = {**NOT_DRAWN, **other_names(CompletionsBody)}


def parse(raw: Mapping[str, Any]) -> Call:
    """A Call, or a RequestError that names the field."""
    body = read_body(CompletionsBody, raw, REFUSED)
    if body.echo and body.logprobs is not None:
        raise RequestError(
            "echo with logprobs asks for the log-probs of the prompt, which are not computed "
            "here. Send one of them.",
            param="echo",
            code="unsupported_parameter",
        )
    return Call(
        **body.sampling(),
        messages=(),
        prompt=_prompt(body),
        echo=bool(body.echo),
        seed=body.seed,
        max_tokens=body.max_tokens or _DEFAULT_TOKENS,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        body_hints={"turn_type": "side", **body.hints()},
    )


def _prompt(body: CompletionsBody) -> str | tuple[int, ...]:
    """The one prompt: a text or ids, alone or as the only one of a list."""
    given: Any = body.prompt
    if isinstance(given, list) and given and not isinstance(given[0], int):
        if len(given) != 1:
            raise RequestError(
                f"prompt holds {len(given)} prompts; one request draws one reply here. Send them "
                "one by one.",
                param="prompt",
                code="unsupported_parameter",
            )
        given = given[0]
    if not given:
        raise RequestError("prompt is empty; it must hold at least one token", param="prompt")
    return given if isinstance(given, str) else tuple(given)


class CompletionsWriter:
    """Writes one reply in this dialect."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, call: Call, renderer: Renderer) -> None:
        self._call = call
        self._renderer = renderer
        self._created = int(time.time())
        self._name = ""
        self._log = TokenLog(renderer, call)
        self._offset = 0
        self._echo = ""
        if call.echo and call.prompt is not None:
            self._echo = renderer.raw(call.prompt)[1]

    def begin(self, step: Step) -> bytes:
        """The first bytes of a stream, before those of its first step."""
        self._name = step.name
        return self._event(self._choice(self._echo)) if self._echo else b""

    def step(self, step: Step) -> bytes:
        """The bytes of one step of a stream."""
        self._log.note(step)
        text = "".join(delta.text for delta in step.deltas)
        entries = self._log.take()
        return self._event(self._choice(text, entries)) if text or entries else b""

    def end(self, turn: Turn, cached: int) -> bytes:
        """The last bytes of a stream."""
        out = self._event(self._choice("", self._log.take(last=True), finish=turn.finish))
        if self._call.include_usage:
            out += self._event(None, shown=openai_usage(turn, cached, self._renderer))
        return out + b"data: [DONE]\n\n"

    def whole(self, steps: Sequence[Step], turn: Turn, cached: int) -> bytes:
        """A reply in one body."""
        self._name = turn.id
        for step in steps:
            self._log.note(step)
        text = self._echo + (turn.reply.get("content") or "")
        choice = self._choice(text, self._log.take(last=True), finish=turn.finish)
        return orjson.dumps(
            {**self._body([choice]), "usage": openai_usage(turn, cached, self._renderer)}
        )

    def broken(self, error: InstarError) -> bytes:
        """The bytes that tell a client that a stream it was reading has failed."""
        return b"data: " + orjson.dumps(openai_error(error)) + b"\n\n"

    def _choice(
        self, text: str, entries: Sequence[dict[str, Any]] = (), finish: str | None = None
    ) -> dict[str, Any]:
        shown = self._logprobs(entries) if self._call.logprobs else None
        return {"index": 0, "text": text, "finish_reason": finish, "logprobs": shown}

    def _logprobs(self, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry["token"])
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [
                {one["token"]: one["logprob"] for one in entry["top_logprobs"]} for entry in entries
            ],
            "text_offset": offsets,
        }

    def _event(self, choice: dict[str, Any] | None, shown: dict[str, Any] | None = None) -> bytes:
        body = self._body([choice] if choice else [])
        if self._call.include_usage:
            body["usage"] = shown
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._name}",
            "object": "text_completion",
            "created": self._created,
            "model": self._call.model,
            "choices": choices,
        }


COMPLETIONS = Dialect(
    name="completions",
    path="/v1/completions",
    prefix="cmpl-",
    about="The text that follows a raw prompt, streamed or whole.",
    body=CompletionsBody,
    parse=parse,
    writer=CompletionsWriter,
    error_body=openai_error,
)
