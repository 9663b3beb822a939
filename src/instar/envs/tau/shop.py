"""A bicycle rental shop: a small domain of our own, so that tau runs with nothing installed.

Its tasks are made by rule from a fixed number, so they are the same everywhere: requests that the
rules of the shop allow, and some that they do not allow, where the right thing is to change
nothing. The level is how much the customer says unasked.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from instar.envs.tau.world import TRANSFER, Action, Domain, Scenario, tells
from instar.errors import EnvironmentFailure
from instar.types import Tool

POLICY = """You work at the desk of Spoke & Co, a bicycle rental shop. Today is 2026-05-10.
- Before you change a booking, look it up with get_booking and make sure that it belongs to the
  customer: its phone number must be the one the customer gives.
- A booking can be cancelled or moved to another day only if it starts after today.
- A helmet can be added to any booking that is not cancelled. It costs 4 a day.
- You cannot change prices or give refunds yourself. Hand a customer who insists on that over with
  transfer_to_human_agents.
- Make at most one tool call at a time. Tell the customer what you did, or why you cannot."""

TODAY = "2026-05-10"
_BIKES = {"city": 18, "road": 35, "cargo": 42, "gravel": 38, "kids": 12}
_NAMES = ("Ada", "Ben", "Cleo", "Dev", "Ewa", "Finn", "Gita", "Hugo", "Ida", "Jon", "Kira", "Leo")
_TRAIN, _TEST = 48, 24


def _tool(name: str, description: str, **fields: str) -> Tool:
    properties = {key: {"type": "string", "description": text} for key, text in fields.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(fields),
            },
        },
    }


_BOOKING = "The id of the booking, such as B103."
TOOLS: tuple[Tool, ...] = (
    _tool("get_booking", "Look a booking up.", booking_id=_BOOKING),
    _tool("find_bookings", "All bookings under a phone number.", phone="Such as 555-0103."),
    _tool("cancel_booking", "Cancel a booking.", booking_id=_BOOKING),
    _tool("move_booking", "Move a booking.", booking_id=_BOOKING, day="As 2026-05-31."),
    _tool("add_helmet", "Add a helmet to a booking.", booking_id=_BOOKING),
    _tool("get_price", "What a kind of bike costs a day.", kind=f"One of {', '.join(_BIKES)}."),
    _tool(TRANSFER, "Hand the customer over to a person.", summary="What they want."),
)


def _database() -> dict[str, dict[str, Any]]:
    chance = random.Random(7)
    found = {}
    for number in range(100, 160):
        who = number % len(_NAMES)
        kind = chance.choice(list(_BIKES))
        day = chance.choice(("2026-05-08", "2026-05-10", "2026-05-14", "2026-05-20", "2026-06-02"))
        found[f"B{number}"] = {
            "name": _NAMES[who],
            "phone": f"555-0{100 + who}",
            "kind": kind,
            "day": day,
            "helmet": False,
            "status": "booked",
        }
    return found


DATABASE = _database()


class Shop:
    """One shop with one task under way."""

    def __init__(self) -> None:
        self._db: dict[str, dict[str, Any]] = {}
        self._scenario: Scenario | None = None
        self._calls: list[Action] = []

    async def describe(self) -> Domain:
        names = list(TASKS)
        return Domain(
            policy=POLICY,
            tools=TOOLS,
            splits={"train": names[:_TRAIN], "test": names[_TRAIN:]},
        )

    async def start(self, task: str) -> Scenario:
        if task not in TASKS:
            raise EnvironmentFailure(f"the shop has no task {task!r}; they are shop-0 and so on")
        self._db = copy.deepcopy(DATABASE)
        self._scenario = TASKS[task]
        self._calls = []
        return self._scenario

    async def call(self, action: Action) -> str:
        self._calls.append(action)
        return act(self._db, action)

    async def score(self, said: Sequence[str]) -> tuple[float, dict[str, Any]]:
        assert self._scenario is not None
        gold = copy.deepcopy(DATABASE)
        for action in self._scenario.gold:
            act(gold, action)
        same = self._db == gold
        missing = tells(said, self._scenario.outputs)
        handed = any(one.name == TRANSFER for one in self._scenario.gold)
        transferred = any(one.name == TRANSFER for one in self._calls)
        right = same and not missing and (transferred or not handed)
        details = {"database": same, "missing": missing, "transferred": transferred}
        return float(right), details


def act(db: dict[str, dict[str, Any]], action: Action) -> str:
    """Let a tool act on a database."""
    if action.name not in _ACTS:
        return f"Error: there is no tool {action.name}"
    tool = next(one for one in TOOLS if one["function"]["name"] == action.name)
    wanted = tool["function"]["parameters"]["required"]
    if sorted(action.arguments) != sorted(wanted) or not all(
        isinstance(value, str) for value in action.arguments.values()
    ):
        return f"Error: {action.name} takes the texts {', '.join(wanted)}"
    return _ACTS[action.name](db, action.arguments)


def _get(db: dict[str, dict[str, Any]], given: dict[str, Any]) -> str:
    found = db.get(given["booking_id"])
    return json.dumps(found) if found else f"Error: there is no booking {given['booking_id']}"


def _find(db: dict[str, dict[str, Any]], given: dict[str, Any]) -> str:
    mine = {key: one for key, one in db.items() if one["phone"] == given["phone"]}
    return json.dumps(mine) if mine else f"Error: no bookings under {given['phone']}"


def _changeable(db: dict[str, dict[str, Any]], given: dict[str, Any]) -> str | dict[str, Any]:
    found = db.get(given["booking_id"])
    if found is None:
        return f"Error: there is no booking {given['booking_id']}"
    if found["status"] != "booked":
        return "Error: this booking is cancelled"
    return found


def _cancel(db: dict[str, dict[str, Any]], given: dict[str, Any]) -> str:
    found = _changeable(db, given)
    if isinstance(found, str):
        return found
    found["status"] = "cancelled"
    return json.dumps(found)


def _move(db: dict[str, dict[str, Any]], given: dict[str, Any]) -> str:
    found = _changeable(db, given)
    if isinstance(found, str):
        return found
    found["day"] = given["day"]
    return json.dumps(found)


def _helmet(db: dict[str, dict[str, Any]], given: dict[str, Any]) -> str:
    found = _changeable(db, given)
    if isinstance(found, str):
        return found
    found["helmet"] = True
    return json.dumps(found)


def _price(db: dict[str, dict[str, Any]], given: dict[str, Any]) -> str:
    cost = _BIKES.get(given["kind"])
    return f"{cost} a day" if cost else f"Error: no such kind; there are {', '.join(_BIKES)}"


def _transfer(db: dict[str, dict[str, Any]], given: dict[str, Any]) -> str:
    return "The customer is handed over."


_ACTS: dict[str, Callable[[dict[str, dict[str, Any]], dict[str, Any]], str]] = {
    "get_booking": _get,
    "find_bookings": _find,
    "cancel_booking": _cancel,
    "move_booking": _move,
    "add_helmet": _helmet,
    "get_price": _price,
    TRANSFER: _transfer,
}


def _tasks() -> dict[str, Scenario]:
    chance = random.Random(11)
    bookings = list(DATABASE)
    chance.shuffle(bookings)
    makers = (_cancelling, _moving, _helmets, _pricing, _refunding)
    found = {}
    for number in range(_TRAIN + _TEST):
        booking = bookings[number % len(bookings)]
        level = 1 + number // len(makers) % 2
        found[f"shop-{number}"] = makers[number % len(makers)](f"shop-{number}", booking, level)
    return found


def _cancelling(task: str, booking: str, level: int) -> Scenario:
    allowed = DATABASE[booking]["day"] > TODAY
    gold = [Action(name="cancel_booking", arguments={"booking_id": booking})] if allowed else []
    return _scenario(task, booking, level, "cancel my booking", gold)


def _moving(task: str, booking: str, level: int) -> Scenario:
    allowed = DATABASE[booking]["day"] > TODAY
    given = {"booking_id": booking, "day": "2026-06-15"}
    gold = [Action(name="move_booking", arguments=given)] if allowed else []
    return _scenario(task, booking, level, "move my booking to 2026-06-15", gold)


def _helmets(task: str, booking: str, level: int) -> Scenario:
    gold = [Action(name="add_helmet", arguments={"booking_id": booking})]
    return _scenario(task, booking, level, "add a helmet to my booking", gold)


def _pricing(task: str, booking: str, level: int) -> Scenario:
    kind = DATABASE[booking]["kind"]
    gold = [Action(name="get_price", arguments={"kind": kind})]
    wish = f"know what a {kind} bike costs a day"
    return _scenario(task, booking, level, wish, gold, outputs=(str(_BIKES[kind]),))


def _refunding(task: str, booking: str, level: int) -> Scenario:
    gold = [Action(name=TRANSFER, arguments={"summary": "refund"})]
    return _scenario(task, booking, level, "get my money back for my booking, now", gold)


def _scenario(
    task: str,
    booking: str,
    level: int,
    wish: str,
    gold: Sequence[Action],
    *,
    outputs: tuple[str, ...] = (),
) -> Scenario:
    about = DATABASE[booking]
    facts = {"booking": booking, "phone": about["phone"], "name": about["name"]}
    known = f" It is {booking}, and my phone number is {about['phone']}."
    opening = f"Hello, I would like to {wish}." + (known if level == 1 else "")
    looked = [] if gold and gold[0].name in ("get_price", TRANSFER) else [_look(booking)]
    return Scenario(
        task=task,
        instruction=f"You are {about['name']}. You want to {wish}.{known}",
        facts=facts,
        opening=opening,
        gold=(*looked, *gold),
        outputs=outputs,
        idle=not gold,
    )


def _look(booking: str) -> Action:
    return Action(name="get_booking", arguments={"booking_id": booking})


TASKS = _tasks()
