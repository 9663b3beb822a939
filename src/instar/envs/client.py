"""The runner's side of the conversation: plain HTTP to a gateway, like any client.

What a gateway answers is sorted here: a reply, a prompt that no longer fits, or a failure of the
machinery, which says nothing of the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from instar.errors import ConfigError, ContextError, EnvironmentFailure, RequestError
from instar.types import Attempt, Finish, Message, Tool

_RETRIES = 6
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_LONGEST_NAME = 100
_PRINTABLE = "/ :;,.+=@!~*'()[]{}|<>&%$#^?-_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """What every request of one attempt carries."""

    session: str
    group: str
    no_train: bool = False

    def headers(self) -> dict[str, str]:
        found = {"X-Session-Id": self.session, "X-Group-Id": self.group}
        return found | ({"X-No-Train": "1"} if self.no_train else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One reply of the model."""

    message: Message
    finish: Finish
    turn: str
    tokens: int
    version: str
    prompt_ids: tuple[int, ...] = ()
    sampled_ids: tuple[int, ...] = ()
    """Both only where the request asked for them (return_token_ids)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How replies are drawn; None leaves it to the gateway."""

    max_tokens: int | None = None
    temperature: float | None = None
    one_call: bool = False
    """Ask for at most one tool call a reply."""
    options: dict[str, Any] = field(default_factory=dict)
    """More fields of the request body."""

    def body(self, seed: int | None) -> dict[str, Any]:
        found: dict[str, Any] = dict(self.options)
        given = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": seed}
        found |= {name: value for name, value in given.items() if value is not None}
        return found | ({"parallel_tool_calls": False} if self.one_call else {})


class GatewayClient:
    """Talks to one gateway; many attempts share it."""

    def __init__(
        self,
        address: str,
        *,
        model: str,
        key: str | None = None,
        timeout_s: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`address` ends in /v1. A `transport` replaces the network, for tests."""
        self.model = model
        verify = httpx.create_ssl_context() if address.startswith("https:") else False
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._new: Callable[[], httpx.AsyncClient] = lambda: httpx.AsyncClient(
            base_url=address, timeout=timeout_s, headers=headers, transport=transport, verify=verify
        )
        # One client a connection: the pool inside of one looks at all of them for each request,
        # which at 64 at once takes longer than the request.
        self._free: list[httpx.AsyncClient] = []

    async def close(self) -> None:
        free, self._free = self._free, []
        for http in free:
            await http.aclose()

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        *,
        talk: Talk,
        draw: Draw,
        seed: int | None = None,
    ) -> Reply:
        """The model's reply to this history.

        Raises ContextError where the history no longer fits, RequestError where the gateway
        refuses it, EnvironmentFailure where it could not be asked.
        """
        body = {"model": self.model, "messages": list(messages), **draw.body(seed)}
        if tools:
            body["tools"] = list(tools)
        found = await self._post("/chat/completions", body, talk.headers())
        choice = found["choices"][0]
        message = {name: value for name, value in choice["message"].items() if value is not None}
        return Reply(
            message={"content": None, **message},
            finish=choice["finish_reason"],
            turn=str(found["id"]).removeprefix("chatcmpl-"),
            tokens=int(found["usage"]["completion_tokens"]),
            version=str(found.get("system_fingerprint") or ""),
            prompt_ids=tuple(found.get("prompt_token_ids") or ()),
            sampled_ids=tuple(choice.get("token_ids") or ()),
        )

    async def tell(self, attempt: Attempt) -> bool:
        """Tell how an attempt ended; False where that place in its group was taken already."""
        told = {**asdict(attempt), "no_train": attempt.used == "no_train"}
        for name in ("owner", "created", "used"):
            told.pop(name)
        found = await self._post("/attempts", told, {})
        return bool(found["kept"])

    async def attempts(self, run: str) -> tuple[list[Attempt], int]:
        """The attempts of a run that are over, and how many of its groups wait for training."""
        answer = await self._send("GET", "/attempts", params={"run": run})
        found = self._read(answer)
        listed = [
            Attempt(owner="", **{**one, "turns": tuple(one["turns"])}) for one in found["attempts"]
        ]
        return listed, int(found["waiting"])

    async def _post(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str]
    ) -> dict[str, Any]:
        sent = {**headers, "Content-Type": "application/json"}
        answer = await self._send("POST", path, content=orjson.dumps(body), headers=sent)
        return self._read(answer)

    async def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Try again what may pass: a full queue, an engine that is being started again."""
        why = ""
        for tried in range(_RETRIES):
            pause = min(_PAUSE_S * 2**tried, _LONGEST_PAUSE_S)
            http = self._free.pop() if self._free else self._new()
            try:
                answer = await http.request(method, path, **request)
            except httpx.TransportError as error:
                await http.aclose()
                why = f"{type(error).__name__}: {error}"
            except BaseException:
                await http.aclose()
                raise
            else:
                self._free.append(http)
                if answer.status_code != 429 and answer.status_code < 500:
                    return answer
                why = f"it answered {answer.status_code}: {answer.text[:200]}"
                wanted = answer.headers.get("retry-after", "")
                pause = min(float(wanted), _LONGEST_PAUSE_S) if wanted.isdigit() else pause
            if tried + 1 < _RETRIES:
                await asyncio.sleep(pause)
        raise EnvironmentFailure(f"the gateway could not be asked {_RETRIES} times; {why}")

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
        try:
            error = answer.json()["error"]
            message, code = str(error["message"]), error.get("code")
        except (ValueError, KeyError, TypeError):
            message, code = answer.text[:300], None
        if code == "context_length_exceeded":
            full = ContextError(0, 0)
            full.args = (message,)
            raise full
        if answer.status_code in (401, 403, 404):
            raise ConfigError(f"the gateway refuses the runner: {message}")
        raise RequestError(message, status=answer.status_code, code=code)


def plain_name(name: str) -> str:
    """A name that a header can carry, and short enough to be part of a session's id."""
    quoted = quote(name, safe=_PRINTABLE)
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    return f"{quoted[: _LONGEST_NAME - 17]}~{blake2b(name.encode(), digest_size=8).hexdigest()}"


async def model_name(address: str, key: str | None) -> str:
    """The name of the model that a gateway serves."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with httpx.AsyncClient(base_url=address, headers=headers, timeout=30) as http:
            answer = await http.get("/models")
            answer.raise_for_status()
            return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise ConfigError(
            f"{address} does not answer as a gateway does: {error!r}; --url ends in /v1"
        ) from error
