"""Versions in the store: who is live, what trained what, and what may be given up."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_turns import make_turn

from instar.errors import StoreError
from instar.ids import share_of
from instar.record.controls import EVERYBODY, pause_learning, resume_learning
from instar.record.judged import JudgedTurns
from instar.record.schema import VERSION
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.types import Hint, Verdict, Version


@pytest.fixture
def book(store: TurnStore) -> VersionBook:
    return VersionBook(store)


async def record(store: TurnStore, *names: str, **changes: Any) -> None:
    for name in names:
        assert await store.record(make_turn(name, **changes))


async def grow(
    book: VersionBook, parent: str, *turns: str, live: bool = False, owner: str = "anna"
) -> str:
    """A new version from this parent, trained on these turns."""
    name = await book.reserve(owner)
    folder = f"{owner}/{name}"
    version = Version(
        name=name, owner=owner, parent=parent, state="candidate", folder=folder, turns=turns
    )
    assert await book.add(version)
    if live:
        await book.promote(owner, name, instead_of=parent)
    return name


async def states(book: VersionBook, owner: str = "anna") -> dict[str, str]:
    return {one.name: one.state for one in await book.versions(owner)}


async def test_a_version_comes_back_with_all_it_carries(
    store: TurnStore, book: VersionBook
) -> None:
    await record(store, "t1", "t2")
    given = Version(
        name=await book.reserve("anna"),
        owner="anna",
        parent="base",
        state="candidate",
        folder="anna/v1",
        turns=("t2", "t1"),
        metrics={"loss": 0.5},
        config={"lora_rank": 16, "targets": ["q_proj"]},
        created=12.5,
    )
    assert await book.add(given)
    assert await book.get("anna", "v1") == given
    assert await book.get("ben", "v1") is None
    await book.note_gate("anna", "v1", {"accepted": True, "why": "better"})
    found = await book.get("anna", "v1")
    assert found == replace(given, gate={"accepted": True, "why": "better"})


async def test_names_count_up_for_each_owner_and_never_come_back(book: VersionBook) -> None:
    assert [await book.reserve("anna") for _ in range(3)] == ["v1", "v2", "v3"]
    assert await book.reserve("ben") == "v1"


async def test_going_live_retires_the_one_before(store: TurnStore, book: VersionBook) -> None:
    await record(store, "t1", "t2")
    assert await book.live() == {}
    await grow(book, "base", "t1", live=True)
    await grow(book, "v1", "t2", live=True)
    assert await states(book) == {"v1": "retired", "v2": "live"}
    live = await book.live()
    assert live["anna"].name == await book.live_name("anna") == "v2"
    assert await book.live_name("ben") == "base"
    assert await book.promote("anna", "v1", keep=True) == "v2"
    assert await states(book) == {"v1": "live", "v2": "retired"}
    assert await book.promote("anna", "base") == "v1"
    assert await states(book) == {"v1": "retired", "v2": "retired"}


async def test_nothing_trained_goes_live_while_learning_is_paused(
    store: TurnStore, book: VersionBook
) -> None:
    await grow(book, "base")
    for owner in ("anna", EVERYBODY):
        await pause_learning(store, owner)
        assert not await book.go_live("anna", "v1", instead_of="base")
        assert await states(book) == {"v1": "candidate"}
        await resume_learning(store, owner)
    await pause_learning(store, "ben")
    assert await book.go_live("anna", "v1", instead_of="base")
    assert await states(book) == {"v1": "live"}
    with pytest.raises(StoreError, match="was to replace base, but v1 is live"):
        await book.go_live("anna", "v1", instead_of="base")
    # A person may still choose by hand.
    await pause_learning(store, "anna")
    assert await book.promote("anna", "base") == "v1"


async def test_what_cannot_go_live_is_refused_by_name(store: TurnStore, book: VersionBook) -> None:
    await grow(book, "base", live=True)
    await grow(book, "v1")
    with pytest.raises(StoreError, match="was to replace base, but v1 is live"):
        await book.promote("anna", "v2", instead_of="base")
    with pytest.raises(StoreError, match="anna has no version v9; there are base, v1, v2"):
        await book.promote("anna", "v9")
    await book.note_gate("anna", "v2", {"accepted": False})
    with pytest.raises(StoreError, match="gate rejected version v2"):
        await book.promote("anna", "v2")
    assert await states(book) == {"v1": "live", "v2": "rejected"}
    assert await book.promote("anna", "v2", anyway=True) == "v1"
    assert store.health()["backlog"] == 0


async def test_rollback_goes_to_the_nearest_good_ancestor(book: VersionBook) -> None:
    with pytest.raises(StoreError, match="nothing before it"):
        await book.rollback("anna")
    await grow(book, "base", live=True)
    await grow(book, "v1")
    await book.note_gate("anna", "v2", {"accepted": False})
    await book.promote("anna", "v2", anyway=True)
    await grow(book, "v2", live=True)
    await book.note_gate("anna", "v2", {"accepted": False})
    assert await book.rollback("anna") == ("v3", "v2")
    assert await book.rollback("anna") == ("v2", "v1")
    assert await book.rollback("anna") == ("v1", "base")
    assert await book.live() == {}


async def test_rollback_passes_over_the_damaged_and_what_went_live_meanwhile(
    book: VersionBook,
) -> None:
    for parent in ("base", "v1", "v2", "v3"):
        await grow(book, parent, live=True)
    with pytest.raises(StoreError, match="v2 of anna was to replace v3, but v4 is live now"):
        await book.rollback("anna", damaged=["v3"], instead_of="v3")
    assert await book.live_name("anna") == "v4"
    assert await book.rollback("anna", damaged=["v3"], instead_of="v4") == ("v4", "v2")
    assert await book.rollback("anna", damaged=["v1"], instead_of="v2") == ("v2", "base")


async def test_a_version_that_was_left_grows_old_with_the_live_line(book: VersionBook) -> None:
    """Else what it sampled would count as new for ever."""
    assert await book.ages("anna") == {"base": 0}
    for parent in ("base", "v1", "v2"):
        await grow(book, parent, live=True)
    assert await book.ages("anna") == {"v3": 0, "v2": 1, "v1": 2, "base": 3}
    await book.rollback("anna")
    assert await book.ages("anna") == {"v3": 0, "v2": 0, "v1": 1, "base": 2}
    await grow(book, "v2", live=True)
    await grow(book, "v4", live=True)
    ages = {"v5": 0, "v4": 1, "v3": 2, "v2": 2, "v1": 3, "base": 4}
    assert await book.ages("anna") == ages


async def test_no_turn_trains_twice_in_a_line(store: TurnStore, book: VersionBook) -> None:
    await record(store, "t1", "t2", "t3")
    await grow(book, "base", "t1", live=True)
    await grow(book, "v1", "t2")
    again = Version(
        name="v3", owner="anna", parent="v2", state="candidate", folder="", turns=("t3", "t1")
    )
    with pytest.raises(StoreError, match="v3 would be trained twice on t1"):
        await book.add(again)
    with pytest.raises(StoreError, match="twice on one of its own"):
        await book.add(replace(again, turns=("t3", "t3")))
    # Another line may use the turn: it starts before the version that did.
    assert await book.add(replace(again, parent="base"))
    assert await book.turns("anna", "v2") == ["t1", "t2"]
    assert await book.turns("anna", "v3") == ["t3", "t1"]
    assert await book.trained("anna", ["t1", "t2", "t9"]) == {"t1", "t2"}
    assert await book.trained("anna", ["t1", "t2"], line="v1") == {"t1"}
    assert [one.name for one in await book.line("anna", "v2")] == ["v2", "v1"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "v1"}, "reserve"),
        ({"name": "best"}, "reserve"),
        ({"state": "live"}, "reserve"),
        ({"parent": "v7"}, "v7, which is unknown"),
    ],
)
async def test_a_version_that_cannot_be_is_refused(
    book: VersionBook, changes: dict[str, Any], why: str
) -> None:
    await grow(book, "base")
    good = Version(name="v2", owner="anna", parent="v1", state="candidate", folder="")
    with pytest.raises(StoreError, match=why):
        await book.add(replace(good, **changes))
    assert await states(book) == {"v1": "candidate"}


async def test_what_was_forgotten_while_it_was_trained_never_becomes_a_version(
    store: TurnStore, book: VersionBook
) -> None:
    await record(store, "t1")
    await record(store, "t2", session="s2")
    await store.delete_session("anna", "s2")
    version = Version(
        name="v1", owner="anna", parent="base", state="candidate", folder="", turns=("t1", "t2")
    )
    assert not await book.add(version)
    assert await book.versions() == []
    assert await book.trained("anna", ["t1", "t2"]) == set()


async def test_pruning_keeps_what_the_rule_says(book: VersionBook) -> None:
    for number in range(10):
        await grow(book, "base" if not number else f"v{number}", live=True)
    await book.promote("anna", "v2", keep=True)
    await book.promote("anna", "v8")
    given_up = await book.prune("anna", keep=2, named=["v3"])
    # v8 is live, v7 and v6 are its ancestors, v9 and v10 are the last, v2 and v3 were named.
    assert [one.name for one in given_up] == ["v1", "v4", "v5"]
    assert await book.prune("anna", keep=2, named=["v3"]) == []
    with pytest.raises(StoreError, match="v4 of anna were pruned"):
        await book.promote("anna", "v4")
    assert [one.name for one in await book.line("anna", "v10")][-1] == "v1"
    assert await book.rollback("anna") == ("v8", "v7")


async def test_waiting_and_held_out_turns(store: TurnStore, book: VersionBook) -> None:
    hint, good = Hint(text="Be brief."), Verdict(score=1)
    names = [f"t{number}" for number in range(40)]
    out = {name for name in names if share_of(name) < 0.15}
    assert 0 < len(out) < 15
    await record(store, *names, verdict=Verdict(score=-1), hint=hint)
    await record(store, "plain", verdict=Verdict(score=0))
    kept = next(f"p{n}" for n in range(99) if share_of(f"p{n}") < 0.15)
    await record(store, kept, verdict=good)
    await record(store, "side", verdict=good, hint=hint, kind="side")
    await record(store, "private", verdict=good, hint=hint, no_train=True)
    await record(store, "unjudged")
    await record(store, "other", owner="ben", session="s9", verdict=good)
    assert {one.id for one in await book.held_out("anna", share=0.15)} == out
    assert len(await book.held_out("anna", share=1.0, limit=5)) == 5
    assert [one.id for one in await book.held_out("anna", share=0.15, praised=True)] == [kept]
    judged = JudgedTurns(store)
    found = [one.id for one in await judged.waiting("anna", share=0.15)]
    assert found == [*(name for name in names if name not in out), "plain"]
    await grow(book, "base", *found[:10])
    await book.note_gate("anna", "v1", {"accepted": False})
    assert [one.id for one in await judged.waiting("anna", share=0.15)] == found[10:]


async def test_what_was_told_in_a_line(store: TurnStore, book: VersionBook) -> None:
    """Only what a version or its ancestors name, so that who is forgotten is not shown."""
    good = Verdict(score=1)
    await record(store, "a", "b", "c", "d", "waiting", verdict=good)
    await record(store, "bad", verdict=Verdict(score=-1))
    await record(store, "hinted", verdict=Verdict(score=-1), hint=Hint(text="Be brief."))
    await record(store, "other", owner="ben", session="s9", verdict=good)
    first = await grow(book, "base", "a", "bad", "hinted", live=True)
    second = await grow(book, first, "b", "c", live=True)
    await grow(book, first, "d")  # a branch that never went live
    await grow(book, "base", "other", live=True, owner="ben")

    async def found(line: str, limit: int = 9) -> list[str]:
        return [one.id for one in await book.told("anna", line=line, limit=limit)]

    assert await found(second) == ["a", "b", "c", "hinted"]
    assert await found(second, limit=2) == ["c", "hinted"]
    assert await found(first) == ["a", "hinted"]
    assert [one.id for one in await book.turns_in("anna", second)] == ["b", "c"]
    assert await found("base") == []


def test_shares_are_even() -> None:
    drawn = [share_of(f"t{number}") for number in range(4000)]
    assert all(0 <= value < 1 for value in drawn)
    assert 0.12 < sum(value < 0.15 for value in drawn) / 4000 < 0.18


async def test_a_store_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/instar.db"
    async with open_store(url) as store:
        await record(store, "t1")
    with sqlite3.connect(tmp_path / "instar.db") as old:
        for table in ("versions", "trained", "rebuilds", "controls", "attempts"):
            old.execute(f"DROP TABLE {table}")
        for column in ("group_id", "run"):
            old.execute(f"ALTER TABLE turns DROP COLUMN {column}")
        for index in ("turns_judged", "turns_hinted"):
            old.execute(f"DROP INDEX {index}")
        old.execute("UPDATE meta SET version = 1")
    old.close()
    async with open_store(url) as store:
        assert len(await store.turns("anna", "s1")) == 1
        await grow(VersionBook(store), "base", "t1", live=True)
    with sqlite3.connect(tmp_path / "instar.db") as new:
        assert new.execute("SELECT version FROM meta").fetchone() == (VERSION,)
        found = {row[0] for row in new.execute("SELECT name FROM sqlite_master")}
    new.close()
    assert {"turns_judged", "turns_hinted", "versions_live", "controls"} <= found
