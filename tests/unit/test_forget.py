"""Forgetting a session: what goes, what is marked, who serves then, and what is rebuilt."""

from __future__ import annotations

import pytest
from store_turns import make_turn
from test_lineage import grow, record, states

from instar.errors import StoreError
from instar.record.controls import is_paused, pause_learning, paused_since, resume_learning
from instar.record.forget import finish_rebuild, forget_session, pending_rebuilds
from instar.record.store import TurnStore
from instar.record.versions import VersionBook
from instar.types import Version


@pytest.fixture
async def book(store: TurnStore) -> VersionBook:
    """v1 to v4 in one line, the last one live; session s2 went into v2 and v3."""
    book = VersionBook(store)
    await record(store, "a1", "a2", "a3", "a4", session="s1")
    await record(store, "b2", "b3", session="s2")
    await grow(book, "base", "a1", live=True)
    await grow(book, "v1", "a2", "b2", live=True)
    await grow(book, "v2", "b3", "a3", live=True)
    await grow(book, "v3", "a4", live=True)
    return book


async def test_a_session_is_gone_and_its_versions_with_it(
    store: TurnStore, book: VersionBook
) -> None:
    assert await book.of_session("anna", "s2") == ["v2", "v3", "v4"]
    done = await forget_session(store, "anna", "s2")
    assert (done.turns, done.trained) == (2, ("v2", "v3"))
    assert [one.name for one in done.tainted] == ["v2", "v3", "v4"]
    assert (done.was_live, done.live) == ("v4", "v1")
    assert await store.turns("anna", "s2") == []
    assert await states(book) == {"v1": "live", "v2": "retired", "v3": "retired", "v4": "retired"}
    with pytest.raises(StoreError, match="v3 of anna learned from a session that was forgotten"):
        await book.promote("anna", "v3", anyway=True)
    [rebuild] = await pending_rebuilds(store)
    assert (rebuild.ids, rebuild.start) == ((done.rebuild,), "v1")
    assert rebuild.batches == (("a2",), ("a3",), ("a4",))
    again = await forget_session(store, "anna", "s2")
    assert (again.turns, again.trained, again.rebuild) == (0, ("v2", "v3"), None)
    # The turns that are left may train a line that starts before what was lost.
    await grow(book, "v1", "a2", "a3", "a4", live=True)
    assert await finish_rebuild(store, rebuild, "v5")
    assert not await finish_rebuild(store, rebuild, "v5")
    assert await pending_rebuilds(store, "anna") == []
    assert await book.turns("anna", "v5") == ["a1", "a2", "a3", "a4"]


async def test_a_session_that_trained_nothing_live_changes_no_service(
    store: TurnStore, book: VersionBook
) -> None:
    await record(store, "c1", session="s3")
    await grow(book, "v4", "c1")
    done = await forget_session(store, "anna", "s3")
    assert (done.trained, done.live, done.rebuild) == (("v5",), "v4", None)
    untrained = await forget_session(store, "anna", "nobody")
    assert (untrained.turns, untrained.tainted, untrained.live) == (0, (), "v4")
    assert await pending_rebuilds(store) == []


async def test_owners_do_not_touch_each_other(store: TurnStore, book: VersionBook) -> None:
    assert await store.record(make_turn("z1", owner="ben", session="s2"))
    await grow(book, "base", "z1", live=True, owner="ben")
    await forget_session(store, "ben", "s2")
    assert await book.live_name("anna") == "v4"
    assert await book.live_name("ben") == "base"
    assert [one.owner for one in await pending_rebuilds(store)] == ["ben"]
    assert await pending_rebuilds(store, "anna") == []


async def test_what_is_forgotten_before_a_rebuild_is_done_joins_it(
    store: TurnStore, book: VersionBook
) -> None:
    await forget_session(store, "anna", "s2")
    await record(store, "d1", session="s4")
    await grow(book, "v1", "d1", live=True)
    done = await forget_session(store, "anna", "s1")
    assert (done.was_live, done.live) == ("v5", "base")
    [rebuild] = await pending_rebuilds(store)
    assert rebuild.versions == ("v4", "v5") and rebuild.start == "base"
    assert rebuild.batches == (("d1",),)
    assert await finish_rebuild(store, rebuild, None)
    assert await pending_rebuilds(store) == []


async def test_a_version_that_was_being_trained_meanwhile_is_not_taken(
    store: TurnStore, book: VersionBook
) -> None:
    await forget_session(store, "anna", "s2")
    await record(store, "e1")
    late = Version(
        name="v5", owner="anna", parent="v4", state="candidate", folder="", turns=("e1",)
    )
    assert not await book.add(late)


async def test_learning_is_paused_for_one_or_for_all(store: TurnStore) -> None:
    assert not await is_paused(store, "anna")
    assert await pause_learning(store, "anna")
    assert not await pause_learning(store, "anna")
    assert await is_paused(store, "anna") and not await is_paused(store, "ben")
    assert await pause_learning(store)
    assert await is_paused(store, "ben")
    assert set(await paused_since(store)) == {"", "anna"}
    assert await resume_learning(store) and not await resume_learning(store)
    assert not await is_paused(store, "ben")
    assert await resume_learning(store, "anna")
    assert await paused_since(store) == {}
