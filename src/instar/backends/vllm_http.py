"""A vLLM server that somebody else runs, by its OpenAI-compatible API.

Slower than our own process (one JSON document a token), and its adapters must lie in a folder
that the server sees under the same path.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import orjson

from instar.backends.vllm_wire import Ask, Part, Ready
from instar.config import VllmEngine
from instar.errors import EngineError, ModelError, RequestError

_ADAPTERS_OFF = (
    "Start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment."
)


class Http:
    """The link to a server by URL. A key for it is given as in http://:KEY@host:port."""

    def __init__(self, client: httpx.AsyncClient, *, model: str, ready: Ready) -> None:
        self._client = client
        self._model = model
        self._adapters: dict[int, str] = {}
        self.ready = ready

    @classmethod
    async def open(cls, config: VllmEngine, *, model: Path, name: str) -> Http:
        url = httpx.URL(config.url or "")
        headers = {"Content-Type": "application/json"}
        if url.password:
            headers["Authorization"] = f"Bearer {url.password}"
        client = httpx.AsyncClient(
            base_url=url.copy_with(username=None, password=None),
            headers=headers,
            # A reply may wait long for its turn; a server that hangs is not told from a busy one.
            timeout=httpx.Timeout(10.0, read=None, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )
        try:
            cards = (await _json(client, "GET", "/v1/models")).get("data", [])
            card = _card(cards, model=model, name=name)
            release = (await _json(client, "GET", "/version")).get("version", "unknown")
            ready = Ready(context=card["max_model_len"], device="remote", release=release)
        except BaseException:
            await client.aclose()
            raise
        return cls(client, model=card["id"], ready=ready)

    async def close(self) -> None:
        try:
            for number, name in list(self._adapters.items()):
                await self.drop(number, name=name)
        except EngineError:
            pass  # The server is gone, and its adapters with it.
        finally:
            await self._client.aclose()

    async def ask(self, ask: Ask) -> AsyncGenerator[Part]:
        """Parts of a reply; closing the iterator hangs up, which aborts it."""
        body = _body(ask, self._adapters[ask.lora] if ask.lora else self._model)
        try:
            async with self._client.stream("POST", "/v1/completions", content=body) as answer:
                if answer.status_code != 200:
                    raise _refusal(answer.status_code, await answer.aread())
                async for line in answer.aiter_lines():
                    if line == "data: [DONE]":
                        return
                    if line.startswith("data: ") and (part := _read(line[6:], ask)):
                        yield part
        except httpx.HTTPError as error:
            raise _gone(self._client, error) from error

    async def load(self, lora: int, *, name: str, folder: Path) -> None:
        # Names must be new to the server, which may have outlived another instar.
        unique = f"instar-{id(self):x}-{name}"
        body = {"lora_name": unique, "lora_path": str(folder)}
        await self._change("/v1/load_lora_adapter", body, folder)
        self._adapters[lora] = unique

    async def drop(self, lora: int, *, name: str) -> None:
        body = {"lora_name": self._adapters.pop(lora)}
        await self._change("/v1/unload_lora_adapter", body, name)

    async def _change(self, path: str, body: dict[str, str], what: object) -> None:
        try:
            answer = await self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise _gone(self._client, error) from error
        if answer.status_code == 404:
            raise EngineError(f"{self._client.base_url} cannot change adapters. {_ADAPTERS_OFF}")
        if answer.status_code != 200:
            raise ModelError(f"vLLM refused {path} for {what}: {answer.text[:500]}")


def _body(ask: Ask, model: str) -> bytes:
    return orjson.dumps(
        {
            "model": model,
            "prompt": ask.prompt_ids,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            "top_k": ask.top_k or -1,
            "seed": ask.seed,
            "stop_token_ids": ask.stop_ids,
            "logprobs": ask.top,
            "stream": True,
            "ignore_eos": True,
            "add_special_tokens": False,
            "skip_special_tokens": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
    )


def _read(data: str, ask: Ask) -> Part | None:
    """An event; one that was cut off or is none is the server's failure."""
    try:
        return _part(orjson.loads(data), ask)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise EngineError(
            f"The vLLM server sent {data[:80]!r}, which is no whole event of a reply: {error}"
        ) from error


def _part(event: Any, ask: Ask) -> Part | None:
    if "error" in event:
        raise EngineError(f"The vLLM server failed during a reply: {event['error']}")
    if not event.get("choices"):
        return None
    choice = event["choices"][0]
    ids = choice.get("token_ids")
    found = (choice.get("logprobs") or {}).get("token_logprobs")
    if choice.get("finish_reason") and not ids:
        ids, found = [], []
    if ids is None or found is None or None in found or len(ids) != len(found):
        raise EngineError(
            f"The vLLM server gave token ids {ids} with log-probs {found}; expected one log-prob "
            "a token. It must know return_token_ids (0.11 or newer)."
        )
    top: list[list[tuple[int, float]]] = []
    if ask.top:
        rows = choice["logprobs"]["top_logprobs"] if ids else []
        top = [_top(row, ask.top) for row in rows]
    return Part(id=0, ids=ids, logprobs=found, top=top, finish=choice.get("finish_reason"))


def _top(row: dict[str, float], count: int) -> list[tuple[int, float]]:
    """The likeliest; vLLM adds the sampled token where it is not among them."""
    pairs = [(int(token.removeprefix("token_id:")), value) for token, value in row.items()]
    return sorted(pairs, key=lambda pair: -pair[1])[:count]


def _card(cards: list[dict[str, Any]], *, model: Path, name: str) -> dict[str, Any]:
    """What the server says of our model: by name, by folder, or since there is only one."""
    bases = [card for card in cards if not card.get("parent")]
    same = [card for card in bases if card["id"] == name or card.get("root") == str(model)]
    found = same or bases
    if len(found) != 1:
        names = ", ".join(card["id"] for card in bases) or "none"
        raise EngineError(f"The vLLM server serves {names}; expected one model, named {name}.")
    if not isinstance(found[0].get("max_model_len"), int):
        raise EngineError(f"{name}: no max_model_len in /v1/models; is this a vLLM server?")
    return found[0]


def _refusal(status: int, body: bytes) -> Exception:
    text = body.decode("utf-8", errors="replace")[:500]
    if 400 <= status < 500 and status not in (401, 403, 404):
        return RequestError(f"vLLM refused the request: {text}", status=status)
    hint = ", so its key is wrong (http://:KEY@host:port)" if status in (401, 403) else ""
    return EngineError(f"The vLLM server answered {status}{hint}: {text}")


def _gone(client: httpx.AsyncClient, error: httpx.HTTPError) -> EngineError:
    what = str(error) or type(error).__name__
    return EngineError(f"The vLLM server at {client.base_url} cannot be reached: {what}")


async def _json(client: httpx.AsyncClient, method: str, path: str) -> dict[str, Any]:
    try:
        answer = await client.request(method, path)
    except httpx.HTTPError as error:
        raise _gone(client, error) from error
    if answer.status_code != 200:
        raise _refusal(answer.status_code, answer.content)
    try:
        found = orjson.loads(answer.content)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"{client.base_url}{path} is not JSON; is this a vLLM server?") from error
    if not isinstance(found, dict):
        raise EngineError(f"{client.base_url}{path} is not an object; is this a vLLM server?")
    return found
