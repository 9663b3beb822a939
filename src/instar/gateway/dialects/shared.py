"""What every dialect has: how it is described, how a body is read, how an error is told.

A dialect parses a body into a Call and writes the steps of the reply; sessions, stitching,
recording, cancelling and statuses are the gateway's. A new one is a file with a `Dialect` in it
and one line in `dialects.DIALECTS`.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
)
from pydantic_core import ErrorDetails

from instar.errors import EngineError, InstarError, RequestError, StoreError
from instar.gateway.call import Call, Step
from instar.gateway.wire import ErrorBody, Writer
from instar.protocols import Renderer
from instar.text import StopScanner
from instar.types import Turn

B = TypeVar("B", bound=BaseModel)

Refused = Mapping[str, Callable[[Any], bool]]
"""Fields that would change the answer: refused where this says so, and never ignored."""

NOT_DRAWN: Refused = {
    "n": lambda v: v not in (None, 1),
    "best_of": lambda v: v not in (None, 1),
    "suffix": bool,
    "logit_bias": bool,
    "frequency_penalty": bool,
    "presence_penalty": bool,
    "repetition_penalty": lambda v: v not in (None, 1),
    "repeat_penalty": lambda v: v not in (None, 1),
    "penalty_alpha": bool,
    "guidance_scale": lambda v: v not in (None, 1),
    "do_sample": lambda v: v is False,
    "num_beams": lambda v: v not in (None, 1),
    "mirostat": bool,
    "mirostat_mode": bool,
    "tfs_z": lambda v: v not in (None, 1),
    "dynatemp_range": bool,
    "smoothing_factor": bool,
    "min_p": bool,
    "min_tokens": bool,
    "bad_words": bool,
    "allowed_token_ids": bool,
    "logits_processors": bool,
    "length_penalty": lambda v: v not in (None, 0, 1),
    "use_beam_search": bool,
    "typical_p": lambda v: v not in (None, 0, 1),
    "top_a": bool,
    "no_repeat_ngram_size": bool,
    "dry_multiplier": bool,
    "xtc_probability": bool,
    "stop_regex": bool,
    "include_stop_str_in_output": bool,
    "truncate_prompt_tokens": bool,
    "skip_special_tokens": lambda v: v is False,
    "detokenize": lambda v: v is False,
    "verbosity": lambda v: v not in (None, "medium"),
    "thinking_budget": lambda v: v is not None,
    "search_parameters": bool,
    "options": bool,
    "format": bool,
    # 0 asks for the log-probs of the prompt's own tokens.
    "prompt_logprobs": lambda v: v is not None and v is not False,
    "lora_path": bool,
    "response_format": lambda v: v is not None and v != {"type": "text"},
    "guided_json": bool,
    "guided_regex": bool,
    "guided_choice": bool,
    "guided_grammar": bool,
    "structured_outputs": bool,
    "regex": bool,
    "grammar": bool,
    "ebnf": bool,
    "json_schema": bool,
}
"""Ways of drawing a reply that OpenAI, vLLM, SGLang and others know, and that are not known here.

Training would have to know them too: a log-prob means nothing without how its token was drawn.
"""

OTHER_NAMES = (
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "max_tokens_to_sample"),
    *("max_new_tokens", "num_predict", "stop", "stop_sequences", "seed"),
    *("system", "instructions", "tools"),
)
"""What some API has under a name that others do not know, Ollama and transformers among them."""


def other_names(own: type[BaseModel]) -> Refused:
    """Those that this dialect does not have: a limit in another API's words is a limit ignored."""
    return {name: _is_given for name in OTHER_NAMES if name not in own.model_fields}


def _is_given(value: Any) -> bool:
    return value not in (None, "", [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One wire format."""

    name: str
    """Its label in /metrics."""
    path: str
    prefix: str
    """Comes before a turn's id in the id of its reply."""
    about: str
    body: type[BaseModel]
    """What is read of a body, for the OpenAPI description."""
    parse: Callable[[Mapping[str, Any]], Call]
    writer: Callable[[Call, Renderer], Writer]
    error_body: ErrorBody
    extras: tuple[Extra, ...] = ()


class Desk(Protocol):
    """What a dialect's further routes may ask of the gateway."""

    @property
    def renderer(self) -> Renderer: ...

    async def count(self, owner: str, call: Call) -> int:
        """How many tokens the prompt of this call has."""
        ...

    async def turn(self, owner: str, name: str) -> Turn:
        """A recorded turn of this owner, or a 404."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A further route of a dialect, answered with JSON and without the model."""

    method: str
    path: str
    """May end with `{name}`, which `answer` is then given in place of a body."""
    about: str
    answer: Callable[[Desk, str, dict[str, Any]], Awaitable[dict[str, Any]]]
    """(desk, owner, body or path parameters): the answer."""
    body: type[BaseModel] | None = None


StopIds = Annotated[list[Annotated[StrictInt, Field(ge=0, lt=2**31)]], Field(max_length=128)]


class SharedBody(BaseModel):
    """Fields that every dialect takes."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    model: str
    stream: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    stop_token_ids: StopIds | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    session_id: StrictStr | None = None
    prompt_cache_key: StrictStr | None = None
    turn_type: StrictStr | None = None
    session_done: StrictBool | StrictStr | int | None = None
    no_train: StrictBool | StrictStr | int | None = None

    def sampling(self) -> dict[str, Any]:
        """The fields of a Call that are read the same way everywhere."""
        return {
            "model": self.model,
            "stream": bool(self.stream),
            "temperature": self.temperature,
            "top_p": None if self.top_p is None else max(self.top_p, 1e-6),
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "stop_ids": tuple(dict.fromkeys(self.stop_token_ids or ())),
        }

    def hints(self, **more: Any) -> dict[str, str]:
        """What the body says of session and turn."""
        found = {
            "prompt_cache_key": self.prompt_cache_key,
            "session_id": self.session_id,
            "turn_type": self.turn_type,
            "session_done": self.session_done,
            "no_train": self.no_train,
            **more,
        }
        return {name: str(value) for name, value in found.items() if value is not None}

    def options(self, **more: Any) -> dict[str, Any]:
        """What the chat template is told; the client's own words win."""
        given = dict(self.chat_template_kwargs or {})
        reserved = given.keys() & {"messages", "tools", "add_generation_prompt", "documents"}
        if reserved:
            raise RequestError(
                f"chat_template_kwargs may not set {', '.join(sorted(reserved))}",
                param="chat_template_kwargs",
            )
        return {**{name: value for name, value in more.items() if value is not None}, **given}


def read_body(kind: type[B], raw: Mapping[str, Any], refused: Refused) -> B:
    """The body, or a RequestError that names the field."""
    for name, changes in refused.items():
        if name in raw and changes(raw[name]):
            raise unsupported(name, raw[name])
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise _refusal(error, raw) from error


def unsupported(name: str, value: Any, instead: str = "Leave it out.") -> RequestError:
    return RequestError(
        f"{name}={short(value)} is not supported here, and ignoring it would change the answer. "
        f"{instead}",
        param=name,
        code="unsupported_parameter",
    )


def no_such_part(where: str, kind: str) -> RequestError:
    """For content that no model served here reads."""
    return RequestError(
        f"{where} has a part of type {kind[:40]!r}, which is not known here. Known are text and "
        "images. Leave the part out.",
        param=where,
        code="unsupported_content",
    )


def openai_error(error: InstarError) -> dict[str, Any]:
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


_CODES: dict[type[InstarError], str] = {EngineError: "engine_error", StoreError: "store_error"}


def openai_usage(turn: Turn, cached: int, renderer: Renderer) -> dict[str, Any]:
    """What a reply cost, as OpenAI counts it: the cached and the thinking are part of the sums."""
    prompt, sampled = len(turn.prompt_ids), len(turn.sampled_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought(turn, renderer)},
    }


def thought(turn: Turn, renderer: Renderer) -> int:
    """How many tokens were spent on thinking, its marks included."""
    if not turn.reply.get("reasoning_content"):
        return 0
    tail = b""
    for count, token in enumerate(turn.sampled_ids, 1):
        tail = tail[-16:] + renderer.token_bytes(token)
        if b"</think>" in tail:
            return count
    return len(turn.sampled_ids)


class TokenLog:
    """Log-probs of the tokens that clients are shown; those that end a reply are left out.

    So are those of a stop string: what may be the beginning of one waits, as its text does.
    """

    def __init__(self, renderer: Renderer, call: Call) -> None:
        self._renderer = renderer
        self._wanted = call.logprobs
        self._hidden = frozenset((*renderer.eos_ids, *call.stop_ids))
        self._scanner = StopScanner(call.stop)
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._entries: list[tuple[int, dict[str, Any]]] = []
        """Each with how many characters there are up to its end."""
        self._seen = self._passed = 0
        """Characters that came, and those that no stop string can begin with any more."""

    def note(self, step: Step) -> None:
        piece = step.piece
        if piece is None or not self._wanted:
            return
        tops: Sequence[Sequence[tuple[int, float]]] = piece.top or [()] * len(piece.ids)
        for token, logprob, top in zip(piece.ids, piece.logprobs, tops, strict=True):
            if token in self._hidden:
                continue
            entry = self._entry(token, logprob)
            entry["top_logprobs"] = [self._entry(i, p) for i, p in top]
            text = self._decode(bytes(entry["bytes"]))
            self._seen += len(text)
            self._passed += len(self._scanner.push(text))
            self._entries.append((self._seen, entry))

    def take(self, *, last: bool = False) -> list[dict[str, Any]]:
        """What has come since the last time, as far as its text is shown."""
        if last:
            self._passed += len(self._scanner.flush())
        out = [entry for end, entry in self._entries if end <= self._passed]
        self._entries = [one for one in self._entries if one[0] > self._passed]
        return out

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._renderer.token_bytes(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


def short(value: Any) -> str:
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= 60 else text[:57] + "..."


def image_part(url: str) -> dict[str, Any]:
    """An image in the one form that the gateway knows."""
    return {"type": "image_url", "image_url": {"url": url}}


def _refusal(error: ValidationError, raw: Mapping[str, Any]) -> RequestError:
    """What is wrong and where: of a field that may be this or that, the form that came furthest."""
    found = error.errors(include_url=False, include_input=False)
    # A form whose kind of value was sent came further than one that wants another kind.
    at, first = max(
        ((_steps(one, raw), one) for one in found),
        key=lambda pair: (len(pair[0]), not pair[1]["type"].endswith("_type")),
    )
    path = ""
    for step in at:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    # What pydantic calls a dictionary, or an instance of a class of ours, JSON calls an object.
    wrong = "Input should be an object" if first["type"] in _NO_OBJECT else first["msg"]
    return RequestError(f"{path}: {wrong}", param=path or None, code="invalid_value")


_NO_OBJECT = {"dict_type", "model_type", "model_attributes_type"}


def _steps(error: ErrorDetails, raw: Any) -> list[int | str]:
    """The way to the fault through what was sent, without pydantic's names of forms."""
    steps: list[int | str] = []
    for step in error["loc"]:
        of_list = isinstance(step, int)
        if isinstance(raw, list) if of_list else isinstance(raw, dict) and step in raw:
            raw = raw[step]
            steps.append(step)
    # What is missing is not among what was sent.
    return [*steps, error["loc"][-1]] if error["type"] == "missing" else steps
