"""Serves tau2-bench's domains from the package inspect-evals, in a process of its own.

Loaded by `worker_loop.py` under whichever Python has inspect-evals; it imports nothing of instar.
Many worlds live here at once; each has a store of its own, in which the package's own tools work.
A database is copied entry by entry as tools touch it, so a task starts at once, and its end state
is compared entry by entry with that of the gold actions, which says the same as comparing hashes
of all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gzip
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

from inspect_ai.model._call_tools import tool_params, validate_tool_input
from inspect_ai.tool import ToolDef, ToolError
from inspect_ai.tool._tool import ToolParsingError
from inspect_ai.util import Store
from inspect_ai.util._store import init_subtask_store
from inspect_evals.tau2.airline.AirlineAgentTools import get_airline_tools
from inspect_evals.tau2.airline.tools import all_airline_tools
from inspect_evals.tau2.data_model.tasks import Task
from inspect_evals.tau2.retail.tools import all_retail_tools, get_retail_tools
from inspect_evals.tau2.telecom.environment import get_environment
from inspect_evals.tau2.telecom.solver import perform_action
from inspect_evals.tau2.telecom.tools import all_telecom_agent_tools
from inspect_evals.tau2.telecom.user_tools import all_telecom_user_tools
from inspect_evals.tau2.utils import (
    TAU2_DATA_DIR,
    USER_SIMULATOR_GUIDELINES,
    USER_SIMULATOR_GUIDELINES_WITH_TOOLS,
    deep_equal_unordered,
)

GET_TOOLS = {"airline": get_airline_tools, "retail": get_retail_tools}
AGENT_TOOLS = {
    "airline": all_airline_tools,
    "retail": all_retail_tools,
    "telecom": all_telecom_agent_tools,
}
KEYS = {"airline": "AirlineAgentTools:AirlineTools", "retail": "RetailAgentTools:RetailTools"}
"""Under which names the package keeps its tools in a store."""
NOT_REPLAYED = ("calculate", "transfer_to_human_agents")


class Shared(dict[str, Any]):
    """A table of which an entry is copied when it is first asked for by name.

    The package's tools change only what they get so; what they walk over they only read.
    """

    def __init__(self, base: dict[str, Any]) -> None:
        super().__init__(base)
        self.base = base
        self.touched: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self.touched and key in self.base:
            self.touched.add(key)
            super().__setitem__(key, copy.deepcopy(self.base[key]))
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.touched.add(key)
        super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def changes(self) -> Iterator[tuple[str, Any]]:
        for key in self.touched:
            now = super().__getitem__(key)
            if key not in self.base or now != self.base[key]:
                yield key, now


class Domain:
    """One domain with its tasks; its database is read once."""

    def __init__(self, name: str) -> None:
        self.name = name
        folder = TAU2_DATA_DIR / "domains" / name
        plain, packed = folder / "tasks.json", folder / "tasks.json.gz"
        text = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
        every = {str(one["id"]): one for one in json.loads(text)}
        found = json.loads((folder / "split_tasks.json").read_text("utf-8"))
        self.splits = {
            split: [name for name in every if name in set(map(str, names))]
            for split, names in found.items()
        }
        self._raw = every
        self._expected: dict[str, dict[str, Any]] = {}
        self.tools = {ToolDef(make()).name: make() for make in AGENT_TOOLS[name]}
        users = all_telecom_user_tools if name == "telecom" else []
        self.user_tools = {ToolDef(make()).name: make() for make in users}
        self._base: Any = None

    def task(self, name: str) -> Any:
        if name not in self._raw:
            raise KeyError(f"{self.name} has no task {name!r}")
        return Task.model_validate(self._raw[name])

    def policy(self) -> str:
        folder = TAU2_DATA_DIR / "domains" / self.name
        if self.name != "telecom":
            return str((folder / "policy.txt").read_text("utf-8"))
        rules = (folder / "main_policy.txt").read_text("utf-8")
        manual = (folder / "tech_support_manual.txt").read_text("utf-8")
        return f"{rules}\n\n{manual}"

    def fresh(self, task: Any) -> Store:
        """A store in which this task begins."""
        store = Store()
        init_subtask_store(store)
        if self.name == "telecom":
            world = get_environment()
            state = task.initial_state
            for action in (state.initialization_actions if state else None) or []:
                perform_action(world, action)
            return store
        if self._base is None:
            self._base = GET_TOOLS[self.name]().db
            store = Store()
            init_subtask_store(store)
        tables = {name: Shared(getattr(self._base, name)) for name in type(self._base).model_fields}
        # Not validated: validating would copy everything.
        db = type(self._base).model_construct(**tables)
        store.set(f"{KEYS[self.name]}:initialized", True)
        store.set(f"{KEYS[self.name]}:db", db)
        return store

    def expected(self, task: Any) -> dict[str, Any]:
        """What the gold actions change."""
        if task.id not in self._expected:
            init_subtask_store(self.fresh(task))
            tools = GET_TOOLS[self.name]()
            for action in task.evaluation_criteria.actions or []:
                if action.name in NOT_REPLAYED:
                    continue
                # Some gold actions fail, as in the benchmark itself.
                with contextlib.suppress(ToolError):
                    getattr(tools, action.name)(**copy.deepcopy(action.arguments))
            self._expected[task.id] = changed(tools.db)
        return self._expected[task.id]


def changed(db: Any) -> dict[str, Any]:
    """Entries that differ from how they were, as plain values."""
    return {
        f"{table}/{key}": value.model_dump(mode="json")
        for table in type(db).model_fields
        for key, value in getattr(db, table).changes()
    }


class World:
    """One task under way."""

    def __init__(self, domain: Domain, task: str) -> None:
        self.domain = domain
        self.task = domain.task(task)
        self.store = domain.fresh(self.task)
        self.calls: list[tuple[str, str, dict[str, Any]]] = []

    async def call(self, who: str, name: str, given: dict[str, Any]) -> str:
        init_subtask_store(self.store)
        tools = self.domain.tools if who == "assistant" else self.domain.user_tools
        self.calls.append((who, name, given))
        if name not in tools:
            return f"Error: there is no tool {name}"
        about = ToolDef(tools[name])
        if wrong := validate_tool_input(given, about.parameters):
            return f"Error: {wrong}"
        try:
            found = tools[name](**tool_params(given, tools[name]))
            return str(await found if inspect.isawaitable(found) else found)
        except (ToolError, ToolParsingError) as error:
            return f"Error: {getattr(error, 'message', error)}"
        except Exception as error:
            # What a tool cannot digest is what it was called with: the benchmark says so too.
            return f"Error: {type(error).__name__}: {error}"

    def score(self, said: list[str]) -> tuple[float, dict[str, Any]]:
        init_subtask_store(self.store)
        if self.domain.name == "telecom":
            return self._score_telecom()
        same = changed(GET_TOOLS[self.domain.name]().db) == self.domain.expected(self.task)
        heard = "\n".join(said).lower().replace(",", "")
        wanted = self.task.evaluation_criteria.communicate_info or []
        missing = [one for one in wanted if one.lower() not in heard]
        return float(same and not missing), {"database": same, "missing": missing}

    def _score_telecom(self) -> tuple[float, dict[str, Any]]:
        criteria = self.task.evaluation_criteria
        world = get_environment()
        failed = []
        for one in criteria.env_assertions or []:
            tools = world.tools if one.env_type == "assistant" else world.user_tools
            if getattr(tools, one.func_name)(**one.arguments) != one.assert_value:
                failed.append(one.func_name)
        unused = []
        if "ACTION" in [getattr(one, "value", one) for one in criteria.reward_basis]:
            unused = [one.name for one in criteria.actions or [] if not self._used(one)]
        details = {"assertions_failed": failed, "actions_missing": unused}
        return float(not failed and not unused), details

    def _used(self, action: Any) -> bool:
        for who, name, given in self.calls:
            if who != action.requestor or name != action.name:
                continue
            keys = action.compare_args
            if name == "transfer_to_human_agents" or keys == []:
                return True
            wanted, found = action.arguments, given
            if keys is not None:
                wanted = {key: wanted.get(key) for key in keys}
                found = {key: found.get(key) for key in keys}
            if deep_equal_unordered(found, wanted):
                return True
        return False


def described(tools: dict[str, Any]) -> list[dict[str, Any]]:
    out = []
    for tool in tools.values():
        about = ToolDef(tool)
        parameters = about.parameters.model_dump(exclude_none=True)
        function = {"name": about.name, "description": about.description, "parameters": parameters}
        out.append({"type": "function", "function": function})
    return out


class Server:
    """Answers questions."""

    def __init__(self) -> None:
        self._domains: dict[str, Domain] = {}
        self._worlds: dict[str, World] = {}
        self._runner = asyncio.Runner()

    def describe(self, domain: str) -> dict[str, Any]:
        found = self._domain(domain)
        guidelines = USER_SIMULATOR_GUIDELINES
        if found.user_tools:
            guidelines = USER_SIMULATOR_GUIDELINES_WITH_TOOLS
        return {
            "policy": found.policy(),
            "tools": described(found.tools),
            "user_tools": described(found.user_tools),
            "splits": found.splits,
            "guidelines": guidelines,
        }

    def start(self, domain: str, world: str, task: str) -> dict[str, Any]:
        self._worlds[world] = World(self._domain(domain), task)
        return self._scenario(self._worlds[world])

    def call(self, world: str, who: str, name: str, arguments: dict[str, Any]) -> str:
        return self._runner.run(self._worlds[world].call(who, name, arguments))

    def score(self, world: str, said: list[str]) -> tuple[float, dict[str, Any]]:
        return self._worlds[world].score(said)

    def close(self, world: str) -> None:
        self._worlds.pop(world, None)

    def _domain(self, name: str) -> Domain:
        if name not in self._domains:
            self._domains[name] = Domain(name)
        return self._domains[name]

    def _scenario(self, world: World) -> dict[str, Any]:
        criteria = world.task.evaluation_criteria
        gold = [
            {"name": one.name, "arguments": one.arguments, "who": one.requestor}
            for one in criteria.actions or []
        ]
        basis = [getattr(one, "value", one) for one in criteria.reward_basis]
        return {
            "instruction": str(world.task.user_scenario),
            "gold": gold,
            "outputs": criteria.communicate_info or [],
            "idle": world.score([])[0] == 1.0,
            "needs_judge": "NL_ASSERTION" in basis and bool(criteria.nl_assertions),
        }


def open_actions() -> dict[str, Callable[..., Any]]:
    server = Server()
    asked = (server.describe, server.start, server.call, server.score, server.close)
    return {one.__name__: one for one in asked}
