"""Serves the domains of Sierra's tau-bench, in a process of its own that has the package.

Run as a file; it imports nothing of instar. The package's own environment keeps the data, runs the
tools and gives the reward. Its customers are not used: who plays the customer is instar's choice.
"""

from __future__ import annotations

import json
import sys
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

    def answer(self, asked: dict[str, Any]) -> Any:
        do = asked["do"]
        if do == "describe":
            return self._describe(asked["domain"])
        if do == "start":
            world = World(asked["domain"], asked["task"])
            self._worlds[asked["world"]] = world
            gold = [{"name": one.name, "arguments": one.kwargs} for one in world.task.actions]
            return {
                "instruction": world.task.instruction,
                "gold": gold,
                "outputs": world.task.outputs,
                "idle": self._is_idle(asked["domain"], asked["task"]),
                "needs_judge": False,
            }
        if do == "close":
            self._worlds.pop(asked["world"], None)
            return None
        world = self._worlds[asked["world"]]
        if do == "call":
            return world.call(asked["name"], asked["arguments"])
        return list(world.score(asked["said"]))

    def _is_idle(self, domain: str, task: str) -> bool:
        """Asked of a world of its own, since scoring one ends it."""
        if (domain, task) not in self._idle:
            self._idle[domain, task] = World(domain, task).score([])[0] == 1.0
        return self._idle[domain, task]

    def _describe(self, domain: str) -> dict[str, Any]:
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


def serve() -> None:
    server, out = Server(), sys.stdout
    # What foreign code prints must not end up among the answers.
    sys.stdout = sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = {"id": asked["id"], "ok": server.answer(asked)}
        except Exception as error:
            found = {"id": asked["id"], "error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(found) + "\n")
        out.flush()


if __name__ == "__main__":
    serve()
