"""tau: an agent serves a customer with tools, after the rules of a domain.

Domains: `shop` comes with instar; `airline`, `retail` and `telecom` are those of tau2-bench, read
from the package inspect-evals; `tau2/airline`, `tau_bench/airline` and the like are Sierra's own
packages, where they are installed. Customers: `rule`, `script`, `llm`, `litellm`, `human`.

Example:
    async with open_environment({"domain": "shop"}) as environment:
        messages, tools = await environment.reset("shop-0")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from instar.envs.tau import worker_world
from instar.envs.tau.replies import NOT_MADE, read_call, said_to_user, told
from instar.envs.tau.shop import Shop
from instar.envs.tau.users import (
    HumanUser,
    LlmUser,
    RuleUser,
    ScriptUser,
    User,
    http_complete,
    litellm_complete,
)
from instar.envs.tau.world import (
    ENDINGS,
    INSTRUCTION,
    TRANSFER,
    Action,
    Domain,
    Scenario,
    World,
)
from instar.errors import ConfigError, EnvironmentFailure
from instar.types import Message, Tool

OPTIONS = (
    *("domain", "user", "lines", "user_url", "user_model", "user_key", "user_temperature"),
    *("python", "workers"),
)
MAX_OUTPUT = 20_000
"""Characters of a tool's output that the agent is shown."""

MakeUser = Callable[[Scenario, World, Domain], User]


@asynccontextmanager
async def open_environment(options: dict[str, Any]) -> AsyncIterator[TauEnvironment]:
    """A place to serve one customer after the other."""
    if unknown := sorted(options.keys() - set(OPTIONS)):
        raise ConfigError(f"tau has no option {unknown[0]!r}; known are {', '.join(OPTIONS)}")
    domain = str(options.get("domain") or "shop")
    async with _open_world(domain, options) as world:
        yield TauEnvironment(world, user_maker(options, domain))


@asynccontextmanager
async def _open_world(domain: str, options: dict[str, Any]) -> AsyncIterator[World]:
    if domain == "shop":
        yield Shop()
        return
    if domain in worker_world.DOMAINS:
        async with worker_world.open_world(domain, options) as world:
            yield world
        return
    known = ", ".join(("shop", *worker_world.DOMAINS))
    raise ConfigError(f"tau has no domain {domain!r}; there are {known}")


class TauEnvironment:
    """Satisfies `Environment`. A truncated conversation earns nothing, as in the benchmark."""

    one_call = True
    """The runner asks for replies with one tool call at most."""

    def __init__(self, world: World, make_user: MakeUser) -> None:
        self._world = world
        self._make_user = make_user
        self._domain: Domain | None = None
        self._user: User | None = None
        self._said: list[str] = []
        self._done = False
        self.scenario: Scenario | None = None

    async def tasks(self, split: str) -> list[str]:
        splits = (await self._described()).splits
        if split not in splits:
            raise ConfigError(f"there is no split {split!r}; there are {', '.join(splits)}")
        return list(splits[split])

    async def reset(self, task: str) -> tuple[list[Message], list[Tool]]:
        domain = await self._described()
        self._said, self._done = [], False
        self.scenario = await self._world.start(task)
        self._user = self._make_user(self.scenario, self._world, domain)
        first = await self._user.first()
        system = f"{INSTRUCTION}\n\n<policy>\n{domain.policy}\n</policy>"
        messages: list[Message] = [
            {"role": "system", "content": system},
            {"role": "user", "content": first},
        ]
        return messages, list(domain.tools)

    async def step(self, reply: Message) -> tuple[list[Message], bool]:
        if calls := reply.get("tool_calls"):
            return await self._call(calls)
        text = said_to_user(reply)
        if self._user is None:
            raise EnvironmentFailure("step was called before reset")
        self._said.append(text)
        answer = await self._user.reply(text)
        self._done = any(one in answer for one in ENDINGS)
        return [{"role": "user", "content": answer}], self._done

    async def score(self) -> tuple[float, dict[str, Any]]:
        known: dict[str, Any] = {"done": self._done}
        if self.scenario is not None and self.scenario.idle:
            known["idle"] = True
        if not self._done:
            return 0.0, known
        reward, details = await self._world.score(self._said)
        return reward, {**known, **details}

    async def _described(self) -> Domain:
        if self._domain is None:
            self._domain = await self._world.describe()
        return self._domain

    async def _call(self, calls: list[dict[str, Any]]) -> tuple[list[Message], bool]:
        """Make the first call; more than one a turn are told that they were not made."""
        name, given, wrong = read_call(calls[0])
        output = wrong or await self._world.call(Action(name=name, arguments=given))
        messages = [told(calls[0], name, output[:MAX_OUTPUT])]
        messages += [told(call, read_call(call)[0], NOT_MADE) for call in calls[1:]]
        self._done = name == TRANSFER and not output.startswith("Error")
        return messages, self._done


def user_maker(options: dict[str, Any], domain: str) -> MakeUser:
    """The customer that the options ask for; by default rules in the shop, else a model."""
    kind = str(options.get("user") or ("rule" if domain == "shop" else "llm"))
    if kind == "rule":
        return lambda scenario, world, about: RuleUser(scenario)
    if kind == "script":
        return lambda scenario, world, about: ScriptUser(options.get("lines") or [])
    if kind == "human":
        return lambda scenario, world, about: HumanUser(scenario)
    if kind not in ("llm", "litellm"):
        raise ConfigError(f"user is {kind!r}; it is one of rule, script, llm, litellm, human")
    if kind == "llm" and not options.get("user_url"):
        raise ConfigError(
            "a model plays the customer here: name its endpoint with user_url (OpenAI-compatible), "
            "or choose user=litellm, script or human"
        )
    complete = http_complete(options) if kind == "llm" else litellm_complete(options)

    def make(scenario: Scenario, world: World, about: Domain) -> User:
        async def use(name: str, given: dict[str, Any]) -> str:
            return await world.call(Action(name=name, arguments=given, who="user"))

        return LlmUser(
            scenario, complete, guidelines=about.guidelines, tools=about.user_tools, use=use
        )

    return make
