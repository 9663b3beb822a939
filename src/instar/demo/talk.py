"""The person's side of the conversation: plain HTTP, like any client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx

from instar.errors import EngineError
from instar.ids import new_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One exchange: what was asked, answered and said to the answer."""

    prompt: str
    answer: str
    reply: str = ""


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

    async def answer(self, prompt: str, *, model: str | None = None) -> str:
        """An answer that leaves no trace in training."""
        headers = {"X-Turn-Type": "side", "X-No-Train": "1", "X-Session-Id": new_id("e")}
        async with self._places:
            return await self._ask([("user", prompt)], headers, model=model)

    async def converse(self, prompt: str, respond: object) -> Said:
        """Ask, read the answer, and say what one thinks of it."""
        headers = {"X-Session-Id": new_id("d")}
        async with self._places:
            answer = await self._ask([("user", prompt)], headers)
            reply = str(respond(prompt, answer))  # type: ignore[operator]
            history = [("user", prompt), ("assistant", answer), ("user", reply)]
            # Nobody reads this answer: the request is how the reply gets to the server.
            await self._ask(history, headers, max_tokens=1)
        return Said(prompt=prompt, answer=answer, reply=reply)

    async def _ask(
        self,
        history: list[tuple[str, str]],
        headers: dict[str, str],
        *,
        model: str | None = None,
        max_tokens: int | None = None,
    ) -> str:
        body = {
            "model": model or self._model,
            "messages": [{"role": role, "content": text} for role, text in history],
            "max_tokens": max_tokens or self._max_tokens,
        }
        found = await self._http.post("/chat/completions", json=body, headers=headers)
        if found.status_code != 200:
            raise EngineError(f"the gateway answered {found.status_code}: {found.text[:300]}")
        return str(found.json()["choices"][0]["message"]["content"] or "")
