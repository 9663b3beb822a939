"""Tool-call tasks from skills: one family for each thing that can be hard.

A task follows from its id and the seed alone, so that every place, process and resumed run sees
the same one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from instar.envs.toolcall_grade import Call
from instar.envs.toolcall_skills import CHAT, Skill, Slot
from instar.types import Message, Tool

SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What makes the tasks of one family as hard as they are."""

    tools: int
    """How many tools are offered."""
    arguments: tuple[int, int]
    """The least and the most arguments that the wanted tool takes."""
    examples: int
    """How many requests and their calls the conversation begins with."""
    answer: bool = False
    """A second turn: the tool's result comes back, and the reply must state what it found."""
    decline: bool = False
    """No tool fits the request, and none may be called."""


FAMILIES: dict[str, Family] = {
    "one": Family(tools=1, arguments=(1, 1), examples=2),
    "fill": Family(tools=1, arguments=(2, 3), examples=2),
    "pick": Family(tools=3, arguments=(1, 1), examples=3),
    "answer": Family(tools=1, arguments=(1, 1), examples=2, answer=True),
    "decline": Family(tools=2, arguments=(1, 1), examples=2, decline=True),
    "cold": Family(tools=4, arguments=(1, 3), examples=0),
}
CONFIGURED = Family(tools=3, arguments=(0, 99), examples=2)
"""For the tools of a tools_config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task: what the agent sees, and what it should do."""

    messages: list[Message]
    tools: list[Tool]
    wanted: Call | None
    """None: nothing may be called."""
    result: str = ""
    """What the tool answers to the right call; empty where the attempt ends with the call."""
    fact: str = ""
    """What the last reply must state."""


def make_task(
    family: Family, skills: Sequence[Skill], *, split: str, seed: str, examples: int | None = None
) -> Task:
    """The task that this seed stands for."""
    rng = Random(seed)
    fit = [skill for skill in skills if _fits(skill, family)]
    skill = rng.choice(fit)
    offered = _offered(rng, skill, skills, family)
    count = family.examples if examples is None else examples
    values = _draw(rng, skill, split)
    shown = _examples(rng, [skill, *(one for one in offered if one is not skill)], count, values)
    if family.decline:
        request = rng.choice(Slot("string", "", CHAT).values(split))
        wanted = None
    else:
        request = _request(rng, skill, values, split)
        wanted = Call(skill.name, values)
    result = fact = ""
    if family.answer:
        fact = _fact(rng)
        result = json.dumps({skill.found: float(fact) if "." in fact else int(fact)})
        request += f" Tell me the {skill.found}."
    return Task(
        messages=[*shown, {"role": "user", "content": request}],
        tools=[one.tool for one in offered],
        wanted=wanted,
        result=result,
        fact=fact,
    )


def _fits(skill: Skill, family: Family) -> bool:
    least, most = family.arguments
    return least <= len(skill.slots) <= most and bool(skill.found or not family.answer)


def _offered(rng: Random, skill: Skill, skills: Sequence[Skill], family: Family) -> list[Skill]:
    others = [one for one in skills if one.name != skill.name]
    offered = [skill, *rng.sample(others, min(family.tools - 1, len(others)))]
    rng.shuffle(offered)
    return offered


def _examples(
    rng: Random, order: Sequence[Skill], count: int, wanted: dict[str, Any]
) -> list[Message]:
    """Requests with their calls, one for each tool in turn, all from the train split.

    Their results are left out: with them, a small model writes results instead of calls.
    """
    picked = [order[place % len(order)] for place in range(count)]
    rng.shuffle(picked)
    used = list(wanted.values())
    shown: list[Message] = []
    for number, one in enumerate(picked):
        values = _draw(rng, one, "train", used)
        used += values.values()
        shown.append({"role": "user", "content": _request(rng, one, values, "train")})
        shown.append(call_message(f"call_{number}", Call(one.name, values)))
    return shown


def call_message(name: str, call: Call) -> Message:
    """A reply that makes one call and says nothing."""
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": function}],
    }


def _draw(rng: Random, skill: Skill, split: str, used: Sequence[Any] = ()) -> dict[str, Any]:
    """A value for each slot, and where the pools allow it none that was used before."""
    taken = list(used)
    values: dict[str, Any] = {}
    for name, slot in skill.slots.items():
        free = [value for value in slot.values(split) if value not in taken]
        values[name] = rng.choice(free or slot.values(split))
        taken.append(values[name])
    return values


def _request(rng: Random, skill: Skill, values: dict[str, Any], split: str) -> str:
    written = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }
    return rng.choice(skill.phrases(split)).format(**written)


def _fact(rng: Random) -> str:
    """A number that no request contains by chance: three digits, or one after the point."""
    return str(rng.randrange(100, 1000)) if rng.random() < 0.5 else f"{rng.randrange(100, 999)}.5"


def task_ids(families: Sequence[str], split: str, count: int) -> list[str]:
    """Ids of a split, one family after the other in turn, so that any first part has them all."""
    return [f"{family}-{split}-{number}" for number in range(count) for family in families]
