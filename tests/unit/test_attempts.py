"""Attempts in the store: kept once, grouped, and never in a loss before their group is whole."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa
from store_turns import make_turn

from instar.record.attempts import AttemptBook
from instar.record.judged import JudgedTurns
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.types import Attempt, NextState, Verdict, Version


def attempt(group: str, number: int, reward: float | None = 1.0, **changes: object) -> Attempt:
    values = {
        "owner": "anna",
        "session": f"{group}/{number}",
        "environment": "tau",
        "run": "r",
        "task": group,
        "group": group,
        "number": number,
        "size": 2,
        "status": "completed" if reward is not None else "environment_error",
        "reward": reward,
        "turns": (f"t{group}{number}",),
        "details": {"why": "ä", "n": [1, 2.5, None]},
        "created": 1000.0 + number,
    }
    return Attempt(**values | changes)  # type: ignore[arg-type]


async def test_attempts_come_back_as_they_were_told(store: TurnStore) -> None:
    book = AttemptBook(store)
    told = [attempt("a", 0), attempt("a", 1, None), attempt("b", 0, 0.25, run="other")]
    for one in told:
        assert await book.add(one) == one
    assert await book.of_run("anna", "r") == told[:2]
    assert await book.of_run("anna", "other") == told[2:]
    assert await book.of_run("ben", "r") == []


async def test_the_first_that_is_told_for_a_place_stays(store: TurnStore) -> None:
    book = AttemptBook(store)
    first = await book.add(attempt("a", 0, 1.0))
    late = attempt("a", 0, 0.0, session="another")
    kept = await asyncio.gather(*(book.add(late) for _ in range(5)))
    assert kept == [first] * 5
    # A session is one attempt, whatever place is claimed for it.
    assert await book.add(attempt("a", 1, session="a/0")) == first
    # Places are an owner's own.
    assert (await book.add(replace(late, owner="ben"))).session == "another"


async def test_a_group_waits_until_it_is_whole_and_until_something_became_of_it(
    store: TurnStore,
) -> None:
    book = AttemptBook(store)
    await book.add(attempt("a", 1, None))
    assert await book.groups("anna", limit=9) == []
    await book.add(attempt("a", 0))
    await book.add(attempt("b", 0))
    await book.add(attempt("measured", 0, size=1, used="no_train"))
    (group,) = await book.groups("anna", limit=9)
    assert [(one.number, one.reward) for one in group] == [(0, 1.0), (1, None)]
    assert await book.waiting("anna", "r") == 1
    assert await book.waiting("anna", "other") == 0
    await book.set_used("anna", ["a"], "v1")
    assert await book.groups("anna", limit=9) == []
    assert [one.used for one in await book.of_run("anna", "r") if one.group == "a"] == ["v1"] * 2
    assert [g[0].group for g in await book.latest("anna", "v1", limit=9)] == ["a"]


async def test_groups_come_oldest_first_and_no_more_than_asked_for(store: TurnStore) -> None:
    book = AttemptBook(store)
    for at, name in enumerate(("c", "a", "b")):
        for number in (1, 0):
            await book.add(attempt(name, number, created=float(10 * at + number)))
    names = [group[0].group for group in await book.groups("anna", limit=2)]
    assert names == ["c", "a"]
    everything = await book.of_sessions("anna", ["a/0", "none"])
    assert sorted(one.session for one in everything) == ["a/0", "a/1"]


async def test_what_was_put_aside_is_counted_since_the_last_that_was_not(store: TurnStore) -> None:
    book = AttemptBook(store)
    for at, name in enumerate("abc"):
        await book.add(attempt(name, 0, size=1, created=float(at + 1)))
    assert await book.held_since("anna", "held_out") == 0
    await book.set_used("anna", ["a", "c"], "held_out")
    assert await book.held_since("anna", "held_out") == 2
    await book.set_used("anna", ["b"], "v1")
    assert await book.held_since("anna", "held_out") == 1


async def test_what_trained_a_version_does_not_wait_though_nobody_said_so(
    store: TurnStore,
) -> None:
    book = AttemptBook(store)
    for number in (0, 1):
        await store.record(make_turn(f"t{number}", session=f"a/{number}", group="a"))
        await book.add(attempt("a", number, turns=(f"t{number}",)))
    assert len(await book.groups("anna", limit=9)) == 1
    versions = VersionBook(store)
    made = Version(
        name=await versions.reserve("anna"),
        owner="anna",
        parent="base",
        state="candidate",
        folder="anna/v1",
        turns=("t0", "t1"),
    )
    assert await versions.add(made)
    assert await book.groups("anna", limit=9) == []


async def test_a_turn_keeps_its_group_and_is_no_talk(store: TurnStore) -> None:
    turn = make_turn("t1", group="g")
    await store.record(turn)
    await store.record(make_turn("t2", session="s2"))
    assert await store.turns("anna", "s1") == [turn]
    state = NextState(messages=({"role": "user", "content": "x"},))
    for name in ("t1", "t2"):
        await store.saw_next(name, state)
    await store.close_session("anna", "s1", 1.0)
    assert [one.id for one in await store.ready()] == ["t1", "t2"]
    assert [one.id for one in await store.ready(steps=False)] == ["t2"]
    for name in ("t1", "t2"):
        await store.set_verdict(name, Verdict(score=1), None)
    assert [one.id for one in await JudgedTurns(store).waiting("anna", share=0.0)] == ["t2"]


async def test_a_session_that_is_deleted_takes_its_attempt_along(store: TurnStore) -> None:
    book = AttemptBook(store)
    await store.record(make_turn("t0", session="a/0", group="a"))
    await book.add(attempt("a", 0))
    await store.delete_session("anna", "a/0")
    assert await book.of_run("anna", "r") == []


async def test_a_store_without_attempts_gets_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/instar.db"
    async with open_store(url) as store:
        await store.record(make_turn("t1"))
    engine = sa.create_engine(url)
    with engine.begin() as old:
        old.execute(sa.text("DROP TABLE attempts"))
        for column in ("group_id", "run"):
            old.execute(sa.text(f"ALTER TABLE turns DROP COLUMN {column}"))
        old.execute(sa.text("UPDATE meta SET version = 2"))
    engine.dispose()
    async with open_store(url) as store:
        assert await store.turns("anna", "s1") == [make_turn("t1")]
        await AttemptBook(store).add(attempt("a", 0))
        await store.record(make_turn("t2", group="g"))
        assert [turn.group for turn in await store.turns("anna", "s1")] == [None, "g"]
