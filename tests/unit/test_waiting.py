"""Looking for turns to learn from, past all that teach nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from store_turns import make_turn

from instar.config import TrainingConfig
from instar.ids import share_of
from instar.learn.waiting import Waiting
from instar.record.judged import JudgedTurns
from instar.record.store import TurnStore
from instar.record.versions import VersionBook
from instar.train.limits import Limit
from instar.types import Hint, Verdict, Version

SMALL = 8
HINT = Hint(text="Be brief.")
ANNA = "anna"


@pytest.fixture(autouse=True)
def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("instar.record.judged.STRETCH", SMALL)


async def record(store: TurnStore, names: list[str], score: Any = -1, **changes: Any) -> None:
    for name in names:
        verdict = None if score is None else Verdict(score=score)
        await store.record(make_turn(name, **({"verdict": verdict} | changes)))


def waiting(store: TurnStore, *, longest: int = 100, **training: Any) -> Waiting:
    options = {"batch_size": 2, "holdout_share": 0.0} | training
    limit = Limit(tokens=longest, why="training.max_tokens")
    return Waiting(JudgedTurns(store), training=TrainingConfig(**options), limit=limit)


async def names(looking: Waiting, **more: Any) -> list[str]:
    return [mark.id for mark in await looking.look(ANNA, "base", **more)]


def many(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number:03}" for number in range(count)]


@pytest.mark.parametrize(
    ("training", "changes", "reason"),
    [
        ({}, {"score": 0}, "neutral"),
        ({}, {"prompt_ids": tuple(range(98))}, "too_long"),
        ({}, {"version": "v1"}, "stale"),
        ({}, {"finish": "cancelled"}, "cancelled"),
        ({"truncated": "drop"}, {"finish": "length"}, "truncated_dropped"),
        ({"method": "binary"}, {"score": 1, "finish": "length"}, "no_praise"),
        ({"method": "opd"}, {"score": -1}, "no_hint"),
        ({"method": "opd"}, {"score": 1}, "no_hint"),
        ({"method": "combine", "binary_weight": 0.0}, {"score": 1}, "no_hint"),
    ],
)
async def test_what_teaches_nothing_stands_in_nobodys_way(
    store: TurnStore,
    caplog: pytest.LogCaptureFixture,
    training: dict[str, Any],
    changes: dict[str, Any],
    reason: str,
) -> None:
    """In any number: here many times what is looked at together."""
    caplog.set_level(logging.INFO, logger="instar.learn")
    await record(store, many("n", 5 * SMALL), **changes)
    looking = waiting(store, **training)
    assert await names(looking, stale={"v1"}) == []
    assert looking.counts(ANNA) == {reason: 5 * SMALL}
    await record(store, ["c1", "c2"], hint=HINT)
    assert (await names(looking, stale={"v1"}))[:2] == ["c1", "c2"]
    assert await JudgedTurns(store).passed() == {ANNA: {reason: 5 * SMALL}}
    await looking.look(ANNA, "base", stale={"v1"})
    told = [one.getMessage() for one in caplog.records if "teach nothing" in one.getMessage()]
    assert len(told) == 1 and f"{5 * SMALL} " in told[0], "said once"
    if reason == "too_long":
        assert "longer than training.max_tokens (100 tokens)" in told[0]


async def test_another_setting_finds_what_was_passed_over(store: TurnStore) -> None:
    await record(store, ["long"], prompt_ids=tuple(range(98)))
    await record(store, ["praise"], score=1)
    strict = waiting(store, method="opd")
    assert await names(strict) == []
    assert strict.counts(ANNA) == {"too_long": 1, "no_hint": 1}
    assert await names(waiting(store, longest=101)) == ["long", "praise"]


async def test_praise_fills_up_a_batch_that_may_say_what_is_wanted(store: TurnStore) -> None:
    """Where only hints teach, and no version has been told yet what the person keeps asking for."""
    await record(store, many("p", 5), score=1)
    looking = waiting(store, method="opd", batch_size=3)
    assert await names(looking) == []
    await record(store, ["c"], hint=HINT)
    assert await names(looking) == ["c", "p000", "p001"]
    assert looking.pass_over(ANNA, "base", {"p000": "nothing_known"})
    assert await names(looking) == ["c", "p001", "p002"]
    assert await names(looking, standing=True) == ["p001", "p002", "p003", "p004", "c"]
    assert await names(waiting(store, method="opd", standing_hints=False)) == ["c"]
    assert await names(waiting(store, method="opd", opd="sampled")) == ["c"]


async def test_what_was_read_in_vain_comes_back_when_something_changed(store: TurnStore) -> None:
    await record(store, ["a", "b", "c"])
    looking = waiting(store)
    await names(looking)
    reasons = {"a": "images", "b": "no_credit", "gone": "images"}
    assert looking.pass_over(ANNA, "base", reasons)
    assert not looking.pass_over(ANNA, "base", reasons), "once"
    assert looking.counts(ANNA) == {"images": 1, "no_credit": 1}
    assert await names(looking) == ["c"]
    # The next version may make something of a verdict; it makes nothing of an image.
    assert [mark.id for mark in await looking.look(ANNA, "v1")] == ["b", "c"]
    await store.set_verdict("a", Verdict(score=1, source="person"), None)
    assert [mark.id for mark in await looking.look(ANNA, "v1")] == ["a", "b", "c"]


async def test_what_is_trained_forgotten_or_held_out_is_seen_at_once(store: TurnStore) -> None:
    out = next(f"h{n}" for n in range(99) if share_of(f"h{n}") < 0.15)
    await record(store, ["used", "kept"], session="s1")
    await record(store, ["gone"], session="s2")
    await record(store, [out], score=0, session="s1")
    looking = waiting(store, holdout_share=0.15)
    assert await names(looking) == ["used", "kept", "gone"]
    book = VersionBook(store)
    candidate = Version(
        name=await book.reserve(ANNA),
        owner=ANNA,
        parent="base",
        state="candidate",
        folder="",
        turns=("used",),
    )
    await book.add(candidate)
    await store.delete_session(ANNA, "s2")
    await store.set_verdict(out, Verdict(score=1), None)
    assert await names(looking) == ["kept"]
    assert looking.counts(ANNA) == {}


async def test_a_look_reads_little_of_a_large_store(
    store: TurnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record(store, many("n", 10 * SMALL), score=0)
    looking = waiting(store)
    read: list[int] = []
    stretch = JudgedTurns.stretch

    async def counted(self: JudgedTurns, owner: str, number: int, *, share: float) -> Any:
        read.append(number)
        return await stretch(self, owner, number, share=share)

    monkeypatch.setattr(JudgedTurns, "stretch", counted)
    await names(looking)
    assert sorted(read) == list(range(11)), "all of it, once"
    read.clear()
    # An old verdict that changes is found within one round, a new one at once.
    await store.set_verdict("n020", Verdict(score=-1, source="person"), None)
    await record(store, ["new"])
    found: dict[str, int] = {}
    for look in range(10):
        before = len(read)
        found |= {name: look for name in await names(looking) if name not in found}
        assert len(read) - before <= 2
    assert found == {"new": 0, "n020": 1}
    assert looking.counts(ANNA) == {"neutral": 10 * SMALL - 1}


async def test_owners_are_apart(store: TurnStore) -> None:
    await record(store, ["a"])
    await record(store, ["b"], owner="ben", session="s9")
    looking = waiting(store)
    assert await names(looking) == ["a"]
    assert [mark.id for mark in await looking.look("ben", "base")] == ["b"]
    assert await looking.look("nobody", "base") == []
    assert looking.counts("nobody") == {}
