"""Who plays the customer: rules, a script, a model behind an API, or a person at the terminal.

A customer that cannot be asked raises EnvironmentFailure; that never counts against the agent.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import httpx

from instar.config import SECRETS, secret
from instar.envs.tau.world import ENDINGS, STOP, Scenario
from instar.errors import ConfigError, EnvironmentFailure
from instar.types import Message, Tool

Use = Callable[[str, dict[str, Any]], Awaitable[str]]
"""Lets the customer use a tool of their own."""

GREETING = "Hi! How can I help you today?"
_MOST_CALLS = 20
"""Tools a customer may use before they must say something."""


class User(Protocol):
    """The customer of one task."""

    async def first(self) -> str:
        """What they say first."""
        ...

    async def reply(self, text: str) -> str:
        """What they answer; the conversation is over if one of ENDINGS is in it."""
        ...


class RuleUser:
    """Answers by rule: gives what it is asked for, agrees, and leaves when told of an end."""

    _ASKED = (("booking", r"booking (id|number)|which booking"), ("phone", r"phone|number"))
    _DONE = re.compile(
        r"\b(cancelled|canceled|moved|changed|added|done|cannot|can't|unable|not possible|costs?)\b"
    )

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._patience = 3

    async def first(self) -> str:
        return self._scenario.opening or self._scenario.instruction

    async def reply(self, text: str) -> str:
        said = text.lower()
        if "?" in said:
            for fact, pattern in self._ASKED:
                if fact in self._scenario.facts and re.search(pattern, said):
                    known = self._scenario.facts
                    return f"It is {known['booking']}, and my phone number is {known['phone']}."
            if re.search(r"\b(confirm|proceed|shall i|should i|sure|want me|ok)\b", said):
                return "Yes, please."
        if self._DONE.search(said):
            return f"Thank you, that is all. {STOP}"
        self._patience -= 1
        return "Can you do that for me?" if self._patience else f"Never mind. {STOP}"


class ScriptUser:
    """Says these things in order, and then that it is over."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = list(lines)

    async def first(self) -> str:
        return self._next()

    async def reply(self, text: str) -> str:
        return self._next()

    def _next(self) -> str:
        return self._lines.pop(0) if self._lines else STOP


class HumanUser:
    """A person at the terminal plays the customer."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    async def first(self) -> str:
        print(f"\nYou are the customer.\n{self._scenario.instruction}\n", file=sys.stderr)
        print(f"Say {STOP} when you are done.", file=sys.stderr)
        return await self.reply(GREETING)

    async def reply(self, text: str) -> str:
        print(f"\nagent: {text}", file=sys.stderr)
        return await asyncio.to_thread(_ask)


def _ask() -> str:
    try:
        return input("you: ")
    except EOFError:
        raise EnvironmentFailure("nobody is at the terminal to play the customer") from None


Complete = Callable[[list[Message], list[Tool]], Awaitable[Message]]
"""(history, tools): the next message of the model that plays the customer."""


class LlmUser:
    """A model plays the customer, with the task's own instructions."""

    def __init__(
        self,
        scenario: Scenario,
        complete: Complete,
        *,
        guidelines: str,
        tools: Sequence[Tool] = (),
        use: Use | None = None,
    ) -> None:
        self._complete = complete
        self._tools = list(tools)
        self._use = use
        text = f"{guidelines or GUIDELINES}\n\n<scenario>\n{scenario.instruction}\n</scenario>"
        # From here the customer is the assistant, and the agent is who it talks to.
        self._history: list[Message] = [{"role": "system", "content": text}]

    async def first(self) -> str:
        return await self.reply(GREETING)

    async def reply(self, text: str) -> str:
        self._history.append({"role": "user", "content": text})
        for _ in range(_MOST_CALLS):
            message = await self._complete(self._history, self._tools)
            self._history.append(message)
            calls = message.get("tool_calls") or []
            if not calls:
                said = str(message.get("content") or "").strip()
                if not said:
                    raise EnvironmentFailure("the model that plays the customer said nothing")
                return said
            for call in calls:
                self._history.append(await self._called(call))
        raise EnvironmentFailure(f"the customer used tools {_MOST_CALLS} times and said nothing")

    async def _called(self, call: dict[str, Any]) -> Message:
        name = str(call["function"]["name"])
        try:
            given = json.loads(call["function"]["arguments"] or "{}")
        except ValueError:
            given = None
        if self._use is None or not isinstance(given, dict):
            found = "Error: the arguments are no JSON object"
        else:
            found = await self._use(name, given)
        return {"role": "tool", "tool_call_id": call.get("id", ""), "content": found}


GUIDELINES = f"""You play a customer who talks to a service agent. Say one thing at a time, in your
own words, and only what the scenario says you know; if you are asked for something it does not say,
you do not know it. Do not do the agent's work. When what you want is settled, or the agent says it
cannot be, answer with {STOP} alone. If you are handed over to a person, answer {ENDINGS[1]}."""


def http_complete(options: dict[str, Any]) -> Complete:
    """A model behind any OpenAI-compatible endpoint: `user_url`, `user_model`, `user_key`."""
    url, model = str(options["user_url"]).rstrip("/"), str(options.get("user_model") or "default")
    key = str(options.get("user_key") or "OPENAI_API_KEY")
    if key not in SECRETS:
        raise ConfigError(f"user_key is {key}; it names one of {', '.join(SECRETS)}")
    headers = {"Authorization": f"Bearer {found}"} if (found := secret(key)) else {}
    # Where the customer is played by instar itself, that teaches the agent nothing.
    headers |= {"X-No-Train": "1", "X-Turn-Type": "side"}
    temperature = float(options.get("user_temperature", 0.0))

    async def complete(history: list[Message], tools: list[Tool]) -> Message:
        body: dict[str, Any] = {"model": model, "messages": history, "temperature": temperature}
        if tools:
            body["tools"] = tools
        try:
            async with httpx.AsyncClient(timeout=120, headers=headers) as http:
                answer = await http.post(f"{url}/chat/completions", json=body)
            answer.raise_for_status()
            message: Message = answer.json()["choices"][0]["message"]
        except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
            raise EnvironmentFailure(f"the customer's model cannot be asked: {error!r}") from error
        return {name: value for name, value in message.items() if value is not None}

    return complete


def litellm_complete(options: dict[str, Any]) -> Complete:
    """A model by LiteLLM's name for it (`user_model`); it finds the provider and its key."""
    try:
        import litellm
    except ImportError:
        raise ConfigError(
            "user: litellm needs the package litellm; install it, or name an OpenAI-compatible "
            "endpoint with user_url"
        ) from None
    model = str(options.get("user_model") or "")
    if not model:
        raise ConfigError("user: litellm needs user_model, such as openai/gpt-4o-mini")
    temperature = float(options.get("user_temperature", 0.0))

    async def complete(history: list[Message], tools: list[Tool]) -> Message:
        try:
            found = await litellm.acompletion(
                model=model, messages=history, tools=tools or None, temperature=temperature
            )
            message: Message = found.choices[0].message.model_dump(exclude_none=True)
        except Exception as error:
            # LiteLLM has an exception for each provider's each problem; all of them mean this.
            raise EnvironmentFailure(f"the customer's model cannot be asked: {error!r}") from error
        return message

    return complete
