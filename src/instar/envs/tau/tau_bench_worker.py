"""Serves the domains of Sierra's tau-bench, in a process of its own that has the package.

Loaded by `worker_loop.py`; it imports nothing of instar. The package's own environment keeps the
data, runs the tools and gives the reward. Its customers are not used: who plays the customer is
instar's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tau_bench.envs import get_env
from tau_bench.types import RESPOND_ACTION_NAME, Action

SPLITS = {"airline": ("test",), "retail": ("train", "dev", "test")}


class World:
    """One task under way."""

    def __init__(self, domain: str, task: str) -> None:
        split, _, index = task.partition("-")
        # `human` makes no call when it is made; nobody asks it.
        self.env = get_env(domain, "human", "", split, task_index=int(index))
        self.task = self.env.task

    def call(self, name: str, given: dict[str, Any]) -> str:
        if name not in self.env.tools_map:
            self.env.actions.append(Action(name=name, kwargs=given))
            return f"Error: there is no tool {name}"
        return str(self.env.step(Action(name=name, kwargs=given)).observation)

    def score(self, said: list[str]) -> tuple[float, dict[str, Any]]:
        self.env.actions += [
            Action(name=RESPOND_ACTION_NAME, kwargs={"content": one}) for one in said
        ]
        found = self.env.calculate_reward()
        return float(found.reward), found.info.model_dump()


class Server:
    """Answers questions."""

    def __init__(self) -> None:
        self._worlds: dict[str, World] = {}
        self._idle: dict[tuple[str, str], bool] = {}

    def start(self, domain: str, world: str, task: str) -> dict[str, Any]:
        self._worlds[world] = begun = World(domain, task)
        gold = [{"name": one.name, "arguments": one.kwargs} for one in begun.task.actions]
        return {
            "instruction": begun.task.instruction,
            "gold": gold,
            "outputs": begun.task.outputs,
            "idle": self._is_idle(domain, task),
            "needs_judge": False,
        }

    def call(self, world: str, who: str, name: str, arguments: dict[str, Any]) -> str:
        """The tools are the agent's alone: this benchmark's customers (`who`) have none."""
        return self._worlds[world].call(name, arguments)

    def score(self, world: str, said: list[str]) -> tuple[float, dict[str, Any]]:
        return self._worlds[world].score(said)

    def close(self, world: str) -> None:
        self._worlds.pop(world, None)

    def _is_idle(self, domain: str, task: str) -> bool:
        """Asked of a world of its own, since scoring one ends it."""
        if (domain, task) not in self._idle:
            self._idle[domain, task] = World(domain, task).score([])[0] == 1.0
        return self._idle[domain, task]

    def describe(self, domain: str) -> dict[str, Any]:
        splits = {}
        for split in SPLITS[domain]:
            env = get_env(domain, "human", "", split, task_index=0)
            splits[split] = [f"{split}-{number}" for number in range(len(env.tasks))]
        return {
            "policy": env.wiki,
            "tools": env.tools_info,
            "user_tools": [],
            "splits": splits,
            "guidelines": "",
        }


def open_actions() -> dict[str, Callable[..., Any]]:
    server = Server()
    asked = (server.describe, server.start, server.call, server.score, server.close)
    return {one.__name__: one for one in asked}
