"""One attempt at one task: the conversation between a model and an environment.

Whose fault an end is decides what it is worth. A model that runs out of steps or of context was
truncated; one whose reply cannot be acted on made an error; both are scored and trained. What goes
wrong in the environment, on the way or in the gateway says nothing of the model and has no reward.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeVar

from instar.envs.client import Draw, GatewayClient, Reply, Talk
from instar.errors import ConfigError, ContextError, EnvironmentFailure, ReplyError, RequestError
from instar.protocols import Environment
from instar.types import AttemptStatus, Message, Tool

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When an attempt is cut."""

    max_turns: int = 30
    step_timeout_s: float = 120.0
    """How long the environment may take over one step."""


@dataclass(slots=True, kw_only=True)
class Played:
    """How an attempt went."""

    status: AttemptStatus = "completed"
    reward: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    tokens: int = 0
    tools: list[Tool] = field(default_factory=list)
    seconds: float = 0.0
    acting_s: float = 0.0
    """Of those, spent in the environment."""

    @property
    def turns(self) -> tuple[str, ...]:
        """The ids of the replies that were acted on."""
        return tuple(reply.turn for reply in self.replies)


async def play(
    environment: Environment,
    task: str,
    *,
    client: GatewayClient,
    talk: Talk,
    draw: Draw,
    limits: Limits,
    seed: int,
) -> Played:
    """Play a task to its end. Only ConfigError comes out: nothing else stops a run."""
    attempt = _Attempt(environment, client, talk, draw, limits)
    started = time.monotonic()
    played = attempt.played
    try:
        await attempt.run(task, seed)
    except (EnvironmentFailure, TimeoutError) as error:
        _end(played, "environment_error", str(error) or "the environment took too long")
    except ReplyError as error:
        _end(played, "model_error", str(error), reward=0.0)
    except (ConfigError, asyncio.CancelledError):
        raise
    except Exception as error:
        # Whatever an environment raises is its own fault, and one attempt's only.
        _end(played, "environment_error", f"{type(error).__name__}: {error}")
    played.seconds = time.monotonic() - started
    return played


class _Attempt:
    def __init__(
        self,
        environment: Environment,
        client: GatewayClient,
        talk: Talk,
        draw: Draw,
        limits: Limits,
    ) -> None:
        self._environment = environment
        self._client = client
        self._talk = talk
        self._draw = draw
        self._limits = limits
        self.played = Played()

    async def run(self, task: str, seed: int) -> None:
        played = self.played
        played.messages, played.tools = await self._act(self._environment.reset(task))
        for turn in range(self._limits.max_turns):
            try:
                reply = await self._client.reply(
                    played.messages,
                    played.tools,
                    talk=self._talk,
                    draw=self._draw,
                    seed=draw_seed(seed, task, turn),
                )
            except ContextError as error:
                return await self._cut(str(error))
            except RequestError as error:
                raise EnvironmentFailure(f"the gateway refused a request: {error}") from error
            played.replies.append(reply)
            played.tokens += reply.tokens
            played.messages.append(reply.message)
            if reply.finish == "length":
                return await self._cut(f"reply {turn + 1} was cut at its length limit")
            if not (reply.message.get("tool_calls") or reply.message.get("content")):
                raise ReplyError(f"reply {turn + 1} is empty")
            answer, done = await self._act(self._environment.step(reply.message))
            played.messages += answer
            if done:
                return await self._score("completed")
        return await self._cut(f"not done after {self._limits.max_turns} turns")

    async def _cut(self, why: str) -> None:
        await self._score("truncated")
        self.played.details["why"] = why

    async def _score(self, status: AttemptStatus) -> None:
        reward, details = await self._act(self._environment.score())
        if not (isinstance(reward, int | float) and math.isfinite(reward) and 0 <= reward <= 1):
            raise EnvironmentFailure(f"the environment gave the reward {reward!r}; it must be 0..1")
        self.played.status, self.played.reward = status, float(reward)
        self.played.details |= details

    async def _act(self, work: Awaitable[T]) -> T:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._limits.step_timeout_s):
                return await work
        finally:
            self.played.acting_s += time.monotonic() - started


def _end(played: Played, status: AttemptStatus, why: str, *, reward: float | None = None) -> None:
    played.status, played.reward = status, reward
    played.details["why"] = why[:1000]


def draw_seed(seed: int, task: str, turn: int) -> int:
    """The seed of one reply: the same for every version that is compared."""
    name = f"{seed}/{turn}/{task}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=7).digest(), "big")
