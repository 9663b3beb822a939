"""The store, on SQLite and, where INSTAR_TEST_POSTGRES names a server, on PostgreSQL."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given
from hypothesis import settings as runs
from hypothesis import strategies as st
from store_turns import DATABASES, Grower, database_url, follow, make_turn, user

from instar.errors import StoreError
from instar.protocols import Store
from instar.record.schema import VERSION, anchors, metadata, tools, turns
from instar.record.store import TurnStore, open_store
from instar.record.trunks import MAX_DEPTH, Trunks
from instar.types import Hint, NextState, Turn, Verdict


def test_it_is_a_store(store: TurnStore) -> None:
    as_protocol: Store = store
    assert as_protocol is store


@pytest.mark.parametrize("kind", DATABASES)
@runs(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_tree_of_turns_comes_back(kind: str, data: st.DataObject) -> None:
    grower = Grower(data.draw)
    groups = [
        [grower.grow() for _ in range(data.draw(st.integers(1, 5)))]
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    with tempfile.TemporaryDirectory() as folder, database_url(kind, Path(folder)) as url:
        for group in groups:
            # Opened anew each time: what a turn leans on must then be read from the store.
            asyncio.run(record_all(url, group, in_memory=data.draw(st.booleans())))
        assert asyncio.run(read_all(url)) == grower.grown


async def record_all(url: str, recorded: list[Turn], *, in_memory: bool) -> None:
    async with open_store(url, commit_timeout_s=30) as store:
        if not in_memory:
            store._writer._trunks = Trunks(budget=0)
        assert all(await asyncio.gather(*map(store.record, recorded)))


async def read_all(url: str) -> list[Turn]:
    async with open_store(url) as store:
        return await store.turns("anna", "s1")


async def test_a_long_prompt_is_stored_once(store: TurnStore) -> None:
    long = tuple(range(5, 14_005))
    said = ({"role": "system", "content": "Be kind. " * 5000}, user("Hello"))
    first = make_turn("t0", prompt_ids=long, messages=said)
    chain = [first]
    for number in range(1, 10):
        chain.append(follow(chain[-1], f"t{number}"))
    for turn in chain:
        assert await store.record(turn)
    assert await store.turns("anna", "s1") == chain
    size = sa.func.length(turns.c.prompt) + sa.func.length(turns.c.body)
    sizes = await store.read(lambda c: c.scalars(sa.select(size).order_by(turns.c.seq)).all())
    assert max(sizes[1:]) < 200 < 10_000 < sizes[0]


async def test_a_comb_leans_on_the_trunk(store: TurnStore) -> None:
    """Each request ends with a synthetic message that is gone from the next."""
    trunk, said, comb = tuple(range(5, 3000)), (user("Hello " * 500),), []
    for number in range(8):
        note = user(f"[time {number}]")
        turn = make_turn(f"t{number}", prompt_ids=(*trunk, 90000 + number), messages=(*said, note))
        comb.append(turn)
        trunk, said = (*trunk, 3, 4), (*said, turn.reply, user(f"More {number}"))
        assert await store.record(turn)
    assert await store.turns("anna", "s1") == comb
    size = sa.func.length(turns.c.prompt) + sa.func.length(turns.c.body)
    sizes = await store.read(lambda c: c.scalars(sa.select(size).order_by(turns.c.seq)).all())
    assert max(sizes[1:]) < 250


async def test_a_deep_session_loads(store: TurnStore) -> None:
    chain = [make_turn("t0", sampled_ids=(7,))]
    for number in range(1, 5000):
        last = chain[-1]
        grown = replace(
            last,
            id=f"t{number}",
            parent=last.id,
            extends=True,
            prompt_ids=(*last.ids, number),
            anchors=(number,),
            created=last.created + 1,
        )
        chain.append(grown)
    for start in range(0, len(chain), 500):
        assert all(await asyncio.gather(*map(store.record, chain[start : start + 500])))
    assert await store.turns("anna", "s1") == chain
    assert await store.find("anna", [4999]) == chain[4999]
    assert await store.read(lambda c: c.scalar(sa.select(sa.func.max(turns.c.depth)))) == MAX_DEPTH


async def test_find_takes_the_first_known_anchor_and_its_newest_turn(store: TurnStore) -> None:
    old = make_turn("old", anchors=(1, -(2**63)))
    new = make_turn("new", anchors=(1, 2**63 - 1))
    for turn in (old, new):
        await store.record(turn)
    assert await store.find("anna", [404, 1]) == new
    assert await store.find("anna", [-(2**63), 1]) == old
    assert await store.find("anna", [2**63 - 1]) == new
    assert await store.find("anna", [404]) is None
    assert await store.find("anna", []) is None


async def test_owners_never_meet(store: TurnStore) -> None:
    mine = make_turn("mine", anchors=(1,))
    yours = make_turn("yours", owner="ben", anchors=(1, 2), next_state=NextState(messages=()))
    for turn in (mine, yours):
        await store.record(turn)
    assert await store.turns("anna", "s1") == [mine]
    assert await store.find("anna", [1]) == mine
    assert await store.find("anna", [2]) is None
    assert await store.turn("anna", "yours") is None
    assert await store.turn("ben", "yours") == yours
    assert [s.owner for s in await store.sessions("anna")] == ["anna"]
    assert await store.session("cleo", "s1") is None
    assert await store.ready("anna") == []
    assert await store.counts("anna") == {"sessions": 1, "turns": 1, "sampled_tokens": 3}
    assert await store.delete_session("anna", "s1") == 1
    assert await store.turns("ben", "s1") == [yours]
    assert await store.find("ben", [1]) == yours


async def test_sessions_are_counted_titled_and_paged(store: TurnStore) -> None:
    long = "What  is\n a\0 moult?" + "!" * 200
    await store.record(make_turn("t1", session="a", messages=(user(long),), created=5.0))
    await store.record(make_turn("t2", session="b", created=9.0))
    await store.record(make_turn("t3", session="a", kind="side", created=7.0))
    parts = [{"type": "text", "text": "See"}, {"type": "image_url"}, {"type": "text", "text": "it"}]
    said = ({"role": "system", "content": "x"}, {"role": "user", "content": parts})
    await store.record(make_turn("t4", session="c", messages=said, created=9.0))
    listed = await store.sessions()
    assert [session.id for session in listed] == ["c", "b", "a"]
    assert listed[0].title == "See it"
    last = listed[-1]
    assert (last.turns, last.side_turns, last.sampled_tokens) == (2, 1, 6)
    assert (last.created, last.updated, last.closed) == (5.0, 7.0, False)
    assert last.title == ("What is a moult?" + "!" * 200)[:80]
    assert await store.sessions(limit=2) == listed[:2]
    assert await store.sessions(limit=2, before=listed[0]) == listed[1:]
    assert await store.sessions("anna", before=listed[1]) == listed[2:]
    assert await store.session("anna", "a") == last
    assert await store.counts() == {"sessions": 3, "turns": 4, "sampled_tokens": 12}
    assert await store.session_keys(limit=2) == [("anna", "a"), ("anna", "b")]
    assert await store.session_keys("anna", 9, ("anna", "b")) == [("anna", "c")]


async def test_a_closed_session_reopens_when_it_goes_on(store: TurnStore) -> None:
    await store.record(make_turn("t1"))
    assert await store.close_session("anna", "s1", 2000.0)
    assert not await store.close_session("ben", "s1", 2000.0)
    found = await store.session("anna", "s1")
    assert found is not None
    assert found.closed
    await store.record(make_turn("t2"))
    found = await store.session("anna", "s1")
    assert found is not None
    assert not found.closed


async def test_ready_holds_what_a_judge_should_see(store: TurnStore) -> None:
    state = NextState(messages=(user("Shorter."),), turn="next")
    for number, changes in enumerate(
        [{}, {"kind": "side"}, {"no_train": True}, {"owner": "ben"}, {}, {}]
    ):
        values: dict[str, Any] = changes
        await store.record(make_turn(f"t{number}", **values))
    for number in range(5):
        await store.saw_next(f"t{number}", state)
    await settle(store)
    assert [turn.id for turn in await store.ready()] == ["t0", "t3", "t4"]
    assert [turn.id for turn in await store.ready("anna", limit=1)] == ["t0"]
    assert (await store.ready())[0].next_state == state
    await store.set_verdict("t0", Verdict(score=-1, votes=(-1, None)), Hint(text="Be brief."))
    await store.set_verdict("t3", None, None)
    assert [turn.id for turn in await store.ready()] == ["t4"]
    judged = await store.turn("anna", "t0")
    assert judged is not None
    assert judged.verdict == Verdict(score=-1, votes=(-1, None))
    assert judged.hint == Hint(text="Be brief.")


async def settle(store: TurnStore) -> None:
    """A change goes through the same queue: once it is done, so is all before it."""
    await store.write(lambda c: None)


async def test_what_a_person_said_wins(store: TurnStore) -> None:
    await store.record(make_turn("t1"))
    person, judge = Verdict(score=1, source="person"), Verdict(score=-1)
    assert await store.set_verdict("t1", judge, None)
    assert await store.set_verdict("t1", person, Hint(text="Mine", source="person"))
    assert await store.set_verdict("t1", judge, Hint(text="Theirs"))
    assert not await store.set_verdict("unknown", judge, None)
    found = await store.turn("anna", "t1")
    assert found is not None
    assert (found.verdict, found.hint) == (person, Hint(text="Mine", source="person"))


async def test_the_newest_next_state_wins_until_it_is_judged(store: TurnStore) -> None:
    await store.record(make_turn("t1"))
    first, second, third = (NextState(messages=(user(text),)) for text in ("a", "b", "c"))
    await store.saw_next("t1", first)
    await store.saw_next("t1", second)
    await store.saw_next("never recorded", second)
    await store.set_verdict("t1", Verdict(score=0), None)
    await store.saw_next("t1", third)
    await settle(store)
    found = await store.turn("anna", "t1")
    assert found is not None
    assert found.next_state == second


async def test_what_follows_a_persons_own_verdict_is_kept(store: TurnStore) -> None:
    said: list[tuple[str, Literal[-1, 0, 1], Hint | None]] = [
        ("bad", -1, None),
        ("told", -1, Hint(text="Shorter.", source="person")),
        ("neutral", 0, None),
        ("good", 1, None),
    ]
    state = NextState(messages=(user("Too long."),))
    for name, score, hint in said:
        await store.record(make_turn(name, session=name))
        await store.set_verdict(name, Verdict(score=score, source="person"), hint)
        await store.saw_next(name, state)
    await settle(store)
    for name, score, hint in said:
        found = await store.turn("anna", name)
        assert found is not None
        assert found.next_state == state
        assert (found.verdict, found.hint) == (Verdict(score=score, source="person"), hint)
    assert [turn.id for turn in await store.ready()] == ["bad"]


async def test_deleting_a_session_leaves_nothing_of_it(store: TurnStore) -> None:
    first = make_turn("t1", anchors=(1, 1, 2), tools=({"type": "function"},))
    await store.record(first)
    await store.record(follow(first, "t2"))
    await store.record(make_turn("kept", session="s2", anchors=(1,)))
    assert await store.delete_session("anna", "s1") == 2
    assert await store.delete_session("anna", "s1") == 0
    assert await store.turns("anna", "s1") == []
    assert await store.find("anna", [2]) is None
    assert await store.counts() == {"sessions": 1, "turns": 1, "sampled_tokens": 3}
    for table, left in ((anchors, 1), (tools, 0)):
        count = sa.select(sa.func.count()).select_from(table)
        assert await store.read(lambda c, count=count: c.scalar(count)) == left  # type: ignore[misc]
    again = follow(first, "t3")
    await store.record(again)
    assert await store.turns("anna", "s1") == [again]


async def test_another_process_deletes_what_this_one_leans_on(url: str) -> None:
    first = make_turn("t1", prompt_ids=tuple(range(100)))
    second = follow(first, "t2")
    async with open_store(url) as store, open_store(url) as other:
        await store.record(first)
        assert await other.turns("anna", "s1") == [first]
        await other.delete_session("anna", "s1")
        await store.record(second)
        assert await other.turns("anna", "s1") == [second]
        assert await other.counts() == {"sessions": 1, "turns": 1, "sampled_tokens": 3}


async def test_two_writers_take_turns(url: str) -> None:
    async with open_store(url, commit_timeout_s=30) as one, open_store(url) as two:
        chain = [make_turn("t0", prompt_ids=tuple(range(50)))]
        for number in range(1, 40):
            chain.append(follow(chain[-1], f"t{number}"))
        for number, turn in enumerate(chain):
            assert await (one, two)[number % 2].record(turn)
        assert await one.turns("anna", "s1") == chain
        both = [make_turn(f"x{number}", session=f"y{number % 5}") for number in range(100)]
        written = await asyncio.gather(
            *((one, two)[number % 2].record(turn) for number, turn in enumerate(both))
        )
        assert all(written)
        assert await two.counts() == {"sessions": 6, "turns": 140, "sampled_tokens": 420}


async def test_recording_a_turn_twice_counts_it_once(store: TurnStore) -> None:
    turn = make_turn("t1")
    assert await store.record(turn)
    assert await store.record(turn)
    assert await store.turns("anna", "s1") == [turn]
    assert await store.counts() == {"sessions": 1, "turns": 1, "sampled_tokens": 3}
    assert store.lost == 0


async def test_one_unwritable_turn_takes_no_other_with_it(store: TurnStore) -> None:
    good = [make_turn(f"t{number}", session=f"s{number % 3}") for number in range(20)]
    bad = make_turn("bad", prompt_ids=(2**80,))
    child = follow(bad, "child", prompt_ids=(1, 2, 3))
    group = [*good[:7], bad, *good[7:], child]
    assert await asyncio.gather(*map(store.record, group)) == [turn is not bad for turn in group]
    assert store.lost == 1
    assert await store.counts() == {"sessions": 3, "turns": 21, "sampled_tokens": 63}
    assert child in await store.turns("anna", "s1")


async def test_a_store_without_runs_gets_them(url: str) -> None:
    async with open_store(url) as store:
        await store.record(make_turn("t1"))

        def make_older(connection: sa.Connection) -> None:
            connection.execute(sa.text("ALTER TABLE turns DROP COLUMN run"))
            connection.execute(sa.text("UPDATE meta SET version = 3"))

        await store.write(make_older)
    async with open_store(url) as store:
        assert await store.turns("anna", "s1") == [make_turn("t1")]
        await store.record(make_turn("t2", run="r"))
        assert [turn.run for turn in await store.turns("anna", "s1")] == [None, "r"]


async def test_a_newer_schema_is_refused(url: str) -> None:
    async with open_store(url) as store:
        await store.record(make_turn("t1"))
        newer = sa.update(metadata.tables["meta"]).values(version=VERSION + 1)
        await store.write(lambda c: c.execute(newer) and None)
    with pytest.raises(StoreError, match=f"schema version {VERSION + 1}.*Upgrade instar"):
        async with open_store(url):
            pass
