"""Serves the domains of Sierra's tau2-bench, in a process of its own that has the package.

Loaded by `worker_loop.py`; it imports nothing of instar. The package's own environment runs the
tools and its own evaluators give the reward, without the part that asks a model (NL_ASSERTION): a
task whose reward has that part is said to need a judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
from tau2.data_model.simulation import SimulationRun, TerminationReason
from tau2.data_model.tasks import RewardType
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
from tau2.registry import registry


class World:
    """One task under way."""

    def __init__(self, domain: str, task: Any) -> None:
        self.domain = domain
        self.task = task
        self.env = registry.get_env_constructor(domain)()
        state = task.initial_state
        before = (state.message_history if state else None) or []
        self.env.set_state(
            initialization_data=state.initialization_data if state else None,
            initialization_actions=state.initialization_actions if state else None,
            message_history=before,
        )
        self.messages: list[Any] = [*before, UserMessage(role="user", content="Hello")]

    def call(self, who: str, name: str, given: dict[str, Any]) -> str:
        call = ToolCall(id=f"c{len(self.messages)}", name=name, arguments=given, requestor=who)
        found = self.env.get_response(call)
        kind = AssistantMessage if who == "assistant" else UserMessage
        self.messages += [kind(role=who, tool_calls=[call]), found]
        text = str(found.content or "")
        return text if not found.error or text.startswith("Error") else f"Error: {text}"

    def score(self, said: list[str]) -> tuple[float, dict[str, Any]]:
        spoken = [AssistantMessage(role="assistant", content=one) for one in said]
        run = SimulationRun(
            id="run",
            task_id=self.task.id,
            start_time="",
            end_time="",
            duration=0.0,
            termination_reason=TerminationReason.USER_STOP,
            messages=[*self.messages, *spoken],
        )
        task = self.task.model_copy(deep=True)
        criteria = task.evaluation_criteria
        if criteria is not None:
            judged = RewardType.NL_ASSERTION
            criteria.reward_basis = [one for one in criteria.reward_basis if one != judged]
        found = evaluate_simulation(
            simulation=run,
            task=task,
            evaluation_type=EvaluationType.ALL,
            solo_mode=False,
            domain=self.domain,
        )
        parts = {key.value: value for key, value in (found.reward_breakdown or {}).items()}
        return float(found.reward), parts


class Server:
    """Answers questions."""

    def __init__(self) -> None:
        self._worlds: dict[str, World] = {}
        self._tasks: dict[str, dict[str, Any]] = {}
        self._idle: dict[tuple[str, str], bool] = {}

    def start(self, domain: str, world: str, task: str) -> dict[str, Any]:
        self._worlds[world] = World(domain, self._all(domain)[task])
        return self._scenario(self._worlds[world])

    def call(self, world: str, who: str, name: str, arguments: dict[str, Any]) -> str:
        return self._worlds[world].call(who, name, arguments)

    def score(self, world: str, said: list[str]) -> tuple[float, dict[str, Any]]:
        return self._worlds[world].score(said)

    def close(self, world: str) -> None:
        self._worlds.pop(world, None)

    def _is_idle(self, world: World) -> bool:
        key = (world.domain, str(world.task.id))
        if key not in self._idle:
            self._idle[key] = world.score([])[0] == 1.0
        return self._idle[key]

    def _all(self, domain: str) -> dict[str, Any]:
        if domain not in self._tasks:
            found = registry.get_tasks_loader(domain)(None)
            self._tasks[domain] = {str(task.id): task for task in found}
        return self._tasks[domain]

    def describe(self, domain: str) -> dict[str, Any]:
        env = registry.get_env_constructor(domain)()
        loader = registry.get_task_splits_loader(domain)
        splits = {k: list(map(str, v)) for k, v in loader().items()} if loader else {}
        users = env.get_user_tools() if env.user_tools is not None else []
        return {
            "policy": env.get_policy(),
            "tools": [tool.openai_schema for tool in env.get_tools()],
            "user_tools": [tool.openai_schema for tool in users],
            "splits": splits or {"test": list(self._all(domain))},
            "guidelines": "",
        }

    def _scenario(self, world: World) -> dict[str, Any]:
        criteria = world.task.evaluation_criteria
        actions = (criteria.actions if criteria else None) or []
        gold = [
            {"name": one.name, "arguments": one.arguments, "who": one.requestor} for one in actions
        ]
        basis = criteria.reward_basis if criteria else []
        judged = RewardType.NL_ASSERTION in basis and bool(criteria.nl_assertions)
        return {
            "instruction": str(world.task.user_scenario),
            "gold": gold,
            "outputs": (criteria.communicate_info if criteria else None) or [],
            "idle": self._is_idle(world),
            "needs_judge": judged,
        }


def open_actions() -> dict[str, Callable[..., Any]]:
    server = Server()
    asked = (server.describe, server.start, server.call, server.score, server.close)
    return {one.__name__: one for one in asked}
