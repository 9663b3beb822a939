"""Run by the Python that has inspect-evals: our worker's scores against the package's own scorers.

Prints how many scores were compared, and those that differ, as JSON.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelName
from inspect_ai.scorer import CORRECT, Target
from inspect_ai.solver import TaskState
from inspect_ai.tool import ToolCall
from inspect_ai.util import store_as
from inspect_ai.util._store import init_subtask_store
from inspect_evals.tau2.common.agents import StoredAgentState
from inspect_evals.tau2.common.metadata import Tau2MetaData
from inspect_evals.tau2.common.scorer import db_match, score_communicated_info
from inspect_evals.tau2.telecom.scorer import env_assertions, evaluate_required_actions

FILE = Path(__file__).parents[2] / "src" / "instar" / "envs" / "tau" / "inspect_worker.py"


def worker() -> Any:
    spec = importlib.util.spec_from_file_location("inspect_worker", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def official(world: Any, said: list[str]) -> float:
    """What the package's scorers say of the same end."""
    name = world.domain.name
    instance = f"{name.title()}Agent"
    calls = [
        (who, ChatMessageAssistant(content="", tool_calls=[ToolCall("c", tool, given)]))
        for who, tool, given in world.calls
    ]
    told = [ChatMessageUser(content=one) for one in said]
    state = TaskState(
        ModelName("none/none"),
        "s",
        1,
        "",
        [*told, *(message for who, message in calls if who == "user")],
        metadata=Tau2MetaData(instance=instance, task=world.task).model_dump(),
    )
    init_subtask_store(world.store)
    stored = store_as(StoredAgentState, instance)
    stored.messages = [message for who, message in calls if who == "assistant"]
    if name == "telecom":
        scorers = [evaluate_required_actions(check_reward_basis=True), env_assertions()]
    else:
        scorers = [db_match(domain=name), score_communicated_info()]
    values = [(await one(state, Target(""))).value for one in scorers]
    return float(all(value == CORRECT for value in values))


async def compare(domain_name: str) -> dict[str, Any]:
    """Nothing done, everything done, and everything but the last action."""
    module = worker()
    domain = module.Domain(domain_name)
    compared, differ = 0, []
    for task in domain.splits["base"]:
        actions = domain.task(task).evaluation_criteria.actions or []
        outputs = " ".join(domain.task(task).evaluation_criteria.communicate_info or [])
        for part, said in (
            (actions, [outputs]),
            (actions[:-1], [outputs]),
            ([], []),
            (actions, []),
        ):
            world = module.World(domain, task)
            for one in part:
                await world.call(one.requestor, one.name, one.arguments)
            ours = world.score(said)[0]
            theirs = await official(world, said)
            compared += 1
            if ours != theirs:
                differ.append([task, len(part), len(said), ours, theirs])
    return {"compared": compared, "differ": differ}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(compare(sys.argv[1]))))
