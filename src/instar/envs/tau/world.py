"""What a customer-service domain offers: rules, tools, tasks, and a score at the end.

A world is one copy of a domain's database in which one task is played at a time. Tools never
raise for what a caller did wrong: the text they give back says so, as in the benchmark. What they
do raise is EnvironmentFailure, which is never the model's fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from instar.types import Tool

Who = Literal["assistant", "user"]

STOP = "###STOP###"
ENDINGS = (STOP, "###TRANSFER###", "###OUT-OF-SCOPE###")
"""What a user says when the conversation is over."""
TRANSFER = "transfer_to_human_agents"
"""The tool that hands the customer over: nothing that follows could count."""


INSTRUCTION = """You are a customer service agent that helps the user according to the policy below.
In each turn you either send a message to the user or make one tool call, never both. Changes are
made by tools only: tell the user that something is done once a tool has said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A call of a tool."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    who: Who = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A domain, as it is before any task."""

    policy: str
    tools: tuple[Tool, ...]
    splits: Mapping[str, Sequence[str]]
    """Ids of the tasks of `train` and `test`."""
    user_tools: tuple[Tool, ...] = ()
    """What the customer can do on their own phone."""
    guidelines: str = ""
    """How a model that plays the customer should behave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One task, as its customer knows it."""

    task: str
    instruction: str
    facts: dict[str, str] = field(default_factory=dict)
    """What a rule-based customer says, by what it is asked for."""
    opening: str = ""
    gold: tuple[Action, ...] = ()
    """Calls that solve it; only for tests of the environment itself."""
    outputs: tuple[str, ...] = ()
    """What the agent must tell the customer."""
    idle: bool = False
    """Whether doing nothing at all earns the reward."""
    needs_judge: bool = False
    """Whether the benchmark's own reward asks a model too; here that part is left out."""


class World(Protocol):
    """A copy of a domain."""

    async def describe(self) -> Domain: ...

    async def start(self, task: str) -> Scenario:
        """Put everything as it is at the start of this task."""
        ...

    async def call(self, action: Action) -> str:
        """What a tool says. Wrong names and arguments are answered with an error text."""
        ...

    async def score(self, said: Sequence[str]) -> tuple[float, dict[str, Any]]:
        """The reward of a conversation that came to its end, given what the agent said."""
        ...


def tells(said: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Which outputs the agent never said, compared as the benchmark does."""
    heard = "\n".join(said).lower().replace(",", "")
    return [one for one in outputs if one.lower().replace(",", "") not in heard]
