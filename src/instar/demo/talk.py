"""The person's side of the conversation: plain HTTP, like any client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx

from instar.errors import EngineError
from instar.ids import new_id

_TEMPERATURE = 0.7
"""As most clients ask for; at 1 a small model says much that it does not mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One exchange: what was asked, answered and said to the answer."""

    prompt: str
    answer: str
    reply: str = ""
    turn: str = ""
    """The id of the answer."""


class Client:
    """Talks to one gateway; at most `at_once` conversations at a time."""

    def __init__(
        self, address: str, model: str, *, at_once: int = 8, max_tokens: int = 128
    ) -> None:
        self._http = httpx.AsyncClient(base_url=address, timeout=600)
        self._model = model
        self._max_tokens = max_tokens
        self._places = asyncio.Semaphore(at_once)

    async def close(self) -> None:
        await self._http.aclose()

    async def answer(
        self, prompt: str, *, likeliest: bool = False, version: str | None = None
    ) -> str:
        """An answer that leaves no trace in training, by chance or the likeliest words.

        The live version gives it, or the one that is named.
        """
        more: dict[str, float | str] = {"temperature": 0} if likeliest else {}
        if version is not None:
            more["model"] = f"{self._model}:{version}"
        async with self._places:
            found = await self._ask([("user", prompt)], _traceless(), **more)
            return _text(found)

    async def version(self) -> str:
        """The one that answers now."""
        found = await self._ask([("user", "Hello")], _traceless(), max_tokens=1)
        return str(found["system_fingerprint"])

    async def converse(self, prompt: str, respond: object) -> Said:
        """Ask, read the answer, and say what one thinks of it."""
        headers = {"X-Session-Id": new_id("d")}
        async with self._places:
            found = await self._ask([("user", prompt)], headers)
            answer, turn = _text(found), str(found["id"]).removeprefix("chatcmpl-")
            reply = str(respond(prompt, answer))  # type: ignore[operator]
            history = [("user", prompt), ("assistant", answer), ("user", reply)]
            # Nobody reads this answer: the request is how the reply gets to the server.
            await self._ask(history, headers, max_tokens=1)
        return Said(prompt=prompt, answer=answer, reply=reply, turn=turn)

    async def feedback(self, turn: str, score: int) -> None:
        """Say outright how an answer was."""
        await self._post("/feedback", {"turn": turn, "score": score})

    async def _ask(
        self, history: list[tuple[str, str]], headers: dict[str, str], **more: float | str
    ) -> dict[str, Any]:
        body = {
            "model": self._model,
            "messages": [{"role": role, "content": text} for role, text in history],
            "max_tokens": self._max_tokens,
            "temperature": _TEMPERATURE,
            **more,
        }
        return await self._post("/chat/completions", body, headers)

    async def _post(
        self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        try:
            answer = await self._http.post(path, json=body, headers=headers)
        except httpx.TransportError as error:
            raise EngineError(
                f"the gateway at {self._http.base_url} does not answer "
                f"({str(error) or type(error).__name__}); it ended or hangs, what it said is above"
            ) from error
        if answer.status_code != 200:
            raise EngineError(f"the gateway answered {answer.status_code}: {answer.text[:300]}")
        found: dict[str, Any] = answer.json()
        return found


def _traceless() -> dict[str, str]:
    """For a request of which nothing is learned."""
    return {"X-Turn-Type": "side", "X-No-Train": "1", "X-Session-Id": new_id("e")}


def _text(found: dict[str, Any]) -> str:
    return str(found["choices"][0]["message"]["content"] or "")
