"""The seams between stages: what a back-end must offer, and nothing of how.

Each protocol has at most four methods. A new engine, judge, trainer or environment is one
file that satisfies one of these, and one line in a table.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from instar.types import (
    Delta,
    EngineInfo,
    Hint,
    Message,
    NextState,
    Piece,
    Request,
    Tool,
    Turn,
    Verdict,
)


class Engine(Protocol):
    """Draws replies: token ids in; token ids, log-probs and a finish reason out."""

    @property
    def info(self) -> EngineInfo:
        """What is served now. Cheap: it never asks the engine's process."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Stream a reply; closing the iterator cancels it.

        The version is fixed when the request starts and never changes within a reply.
        Raises EngineError if the engine fails, RequestError if the request cannot be served.
        """
        ...

    async def load(self, version: str, folder: Path) -> None:
        """Make an adapter (PEFT's folder form) resident under this name."""
        ...

    async def activate(self, version: str) -> None:
        """Serve new requests with this version; replies under way keep theirs."""
        ...

    async def drop(self, version: str) -> None:
        """Forget a version once the replies that use it are done. The live one is refused."""
        ...


class Versions(Protocol):
    """Which weights serve whom. Names are an owner's own: `base`, `v1`, `v2`, ..."""

    def use(self, owner: str, name: str | None) -> AbstractAsyncContextManager[tuple[str, str]]:
        """For one reply: the owner's name of a version, and the engine's.

        None means the owner's live version as of now. It stays loaded while this is entered.
        Raises RequestError (404) where the owner has no such version.
        """
        ...

    def names(self, owner: str) -> list[str]:
        """Versions that this owner may ask for and that are loaded now."""
        ...


class Renderer(Protocol):
    """Turns messages into prompt ids and sampled ids back into a message, for one model."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        replies: Mapping[int, Turn] | None = None,
        options: dict[str, Any] | None = None,
    ) -> Prompt:
        """Prompt ids for these messages. `replies` maps positions to what was sampled there."""
        ...

    def raw(self, prompt: str | Sequence[int]) -> tuple[tuple[int, ...], str]:
        """Ids and text of a prompt that is read as it is, without a template."""
        ...

    def reader(
        self, *, tools: bool, thinking: bool, stop: Sequence[str], one_call: bool, raw: bool
    ) -> ReplyReader:
        """A fresh reader for one reply; `raw` takes all of it for text."""
        ...

    def token_bytes(self, token: int) -> bytes: ...


class Prompt(Protocol):
    """A rendered prompt."""

    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def dropped(self) -> tuple[int, ...]:
        """Positions whose sampled ids could not be reused, since the template rewrites them."""
        ...

    @property
    def thinking(self) -> bool:
        """Whether the prompt ends inside a <think> block."""
        ...


class ReplyReader(Protocol):
    """Sampled ids to deltas for the client and, in the end, the whole message."""

    done: bool
    """The last id pushed and all that follow do not matter; the caller may stop generating."""

    def push(self, ids: Sequence[int]) -> list[Delta]: ...
    def close(self) -> tuple[list[Delta], Message]: ...


class Store(Protocol):
    """Durable memory of turns, as the gateway needs it."""

    async def record(self, turn: Turn) -> bool:
        """Return once the turn is on disk, or False if it could not be written in time."""
        ...

    async def saw_next(self, turn: str, state: NextState) -> None:
        """Note what followed a turn; does not wait for the disk."""
        ...

    async def find(self, owner: str, anchors: Sequence[int]) -> Turn | None:
        """The newest turn of this owner that carries the first of these anchors to be known."""
        ...

    async def turns(self, owner: str, session: str) -> list[Turn]:
        """All turns of a session, oldest first."""
        ...


class Judge(Protocol):
    """Turns what happened next into a verdict and, where it can, a hint."""

    async def judge(self, turn: Turn) -> tuple[Verdict | None, Hint | None]: ...


class Environment(Protocol):
    """A world an agent acts in, one task at a time. It knows nothing of tokens or weights.

    What goes wrong in the world itself (a worker that died, a user model that did not answer)
    raises EnvironmentFailure: such an attempt is left out of the loss and of the baseline.
    """

    async def tasks(self, split: str) -> list[str]:
        """Ids of the tasks of `train` or `test`, always in the same order."""
        ...

    async def reset(self, task: str) -> tuple[list[Message], list[Tool]]:
        """Start a task: the first messages, and the tools that the agent may call."""
        ...

    async def step(self, reply: Message) -> tuple[list[Message], bool]:
        """Let the agent's reply act: the messages that answer it, and whether that was the end."""
        ...

    async def score(self) -> tuple[float, dict[str, Any]]:
        """The reward of the attempt as it stands, 0 to 1, and what it is made of."""
        ...
