"""What is read of judged turns without reading the turns."""

from __future__ import annotations

from typing import Any

import pytest
from store_turns import make_turn

from instar.ids import share_of
from instar.record.judged import JudgedTurns
from instar.record.store import TurnStore
from instar.record.versions import VersionBook
from instar.types import Hint, Verdict, Version


@pytest.fixture
def judged(store: TurnStore) -> JudgedTurns:
    return JudgedTurns(store)


async def record(store: TurnStore, *names: str, score: Any = -1, **changes: Any) -> None:
    for name in names:
        verdict = None if score is None else Verdict(score=score)
        await store.record(make_turn(name, **({"verdict": verdict} | changes)))


async def test_a_mark_says_what_the_turn_is(store: TurnStore, judged: JudgedTurns) -> None:
    prompt = tuple(range(1, 70))
    await record(store, "a", prompt_ids=prompt, session="s1", version="v2")
    # Stored as what it adds to the first one; as a number it counts whole.
    longer = (*prompt, 7, 8, 9, *[70] * 5000)
    hint = Hint(text="Be brief.")
    await record(
        store, "b", prompt_ids=longer, session="s1", parent="a", finish="length", hint=hint
    )
    first, second = await judged.stretch("anna", 0, share=0.0)
    assert (first.id, first.score, first.version, first.tokens) == ("a", -1, "v2", 72)
    assert (second.id, second.finish, second.tokens) == ("b", "length", 69 + 3 + 5000 + 3)
    assert first.hint is None and second.hint is not None
    assert [len(turn.ids) for turn in await judged.turns([first.seq, second.seq])] == [72, 5075]
    book = VersionBook(store)
    assert [one.id for one in await book.held_out("anna", share=1.0)] == ["b"]
    assert await book.held_out("anna", share=1.0, longest=5074) == []
    assert [one.id for one in await book.held_out("anna", share=1.0, longest=5075)] == ["b"]


async def test_only_what_may_be_trained_is_among_them(
    store: TurnStore, judged: JudgedTurns
) -> None:
    held = next(f"h{n}" for n in range(99) if share_of(f"h{n}") < 0.2)
    await record(store, held, score=1)
    await record(store, "unjudged", score=None)
    await record(store, "side", kind="side")
    await record(store, "private", no_train=True)
    await record(store, "task", group="g")
    await record(store, "ben", owner="ben", session="s9")
    await record(store, "used", "neutral", score=0)
    book = VersionBook(store)
    name = await book.reserve("anna")
    await book.add(
        Version(
            name=name, owner="anna", parent="base", state="candidate", folder="", turns=("used",)
        )
    )
    (mark,) = await judged.stretch("anna", 0, share=0.2)
    assert (mark.id, mark.score) == ("neutral", 0)
    assert await judged.again("anna", [mark.seq, 999], share=0.2) == [mark]
    assert await judged.newest("anna") == mark.seq
    assert await judged.newest("nobody") == 0
    await store.set_verdict("neutral", Verdict(score=-1), None)
    (now,) = await judged.again("anna", [mark.seq], share=0.2)
    assert now.score == -1
    await store.delete_session("anna", "s1")
    assert await judged.again("anna", [mark.seq], share=0.2) == []


async def test_a_store_is_read_in_stretches(
    store: TurnStore, judged: JudgedTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("instar.record.judged.STRETCH", 8)
    await record(store, "first")
    # Numbers between that no judged turn of hers has, as where others talk much.
    await record(store, *[f"x{n}" for n in range(8)], score=None, owner="ben", session="b")
    await record(store, "second")
    newest = await judged.newest("anna")
    found = [await judged.stretch("anna", n, share=0.0) for n in range(newest // 8 + 1)]
    assert [[one.id for one in part] for part in found] == [["first"], ["second"]]


async def test_places_lead_through_a_session(store: TurnStore, judged: JudgedTurns) -> None:
    held = next(f"h{n}" for n in range(99) if share_of(f"h{n}") < 0.2)
    await record(store, "a", score=1)
    await record(store, "b", score=None, parent="a")
    await record(store, "c", parent="b", no_train=True)
    await record(store, held, parent="c", score=1)
    await record(store, "d", parent=held, score=-1)
    await record(store, "e", parent="d", finish="cancelled")
    await record(store, "other", session="s2")
    # Without a hint or praise nothing is held out.
    countable = {"d"} if share_of("a") < 0.2 else {"a", "d"}
    found = await judged.places("anna", {"s1"}, share=0.2)
    parents = {"a": None, "b": "a", "c": "b", held: "c", "d": held, "e": "d"}
    assert {name: one.parent for name, one in found.items()} == parents
    assert {name for name, one in found.items() if one.score is not None} == countable
