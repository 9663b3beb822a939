"""Judged turns that trained nothing yet: some wait to be learned from, some will wait for ever.

A store may hold a million of them that teach nothing as things are set: neutral ones, or such as
are too long. So they are read a stretch of turn numbers at a time, and by what a row says of a
turn without its texts; only those that are wanted are read whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from instar.ids import share_of
from instar.record import lineage, reader, rows
from instar.record.lineage import chunks, is_talk, is_trained, may_train
from instar.record.schema import controls, turns
from instar.record.store import TurnStore
from instar.types import Hint, Turn

STRETCH = 2048
"""Turn numbers of one reading."""
_PASSED = "passed_over:"


class Mark(NamedTuple):
    """What a judged turn's row says of it."""

    seq: int
    id: str
    score: int
    hint: bytes | None
    """As it is stored: the same as long as the hint is."""
    finish: str
    version: str
    tokens: int
    """Of the prompt and the reply."""


class Place(NamedTuple):
    """Where a turn stands in its session."""

    parent: str | None
    score: int | None
    """Its verdict, unless that must not be learned from."""


class JudgedTurns:
    """Reads them from a store. `share` is held out: those are never among them."""

    def __init__(self, store: TurnStore) -> None:
        self._store = store

    async def newest(self, owner: str) -> int:
        """The number of the newest judged turn; 0 where there is none."""
        mine = sa.text("score IS NOT NULL"), turns.c.owner == owner
        query = sa.select(sa.func.max(turns.c.seq)).where(*mine)
        return await self._store.read(lambda c: int(c.scalar(query) or 0))

    async def stretch(self, owner: str, number: int, *, share: float) -> list[Mark]:
        """The turns of one stretch, oldest first."""
        first = number * STRETCH
        within = turns.c.seq >= first, turns.c.seq < first + STRETCH
        return await self._store.read(lambda c: _marks(c, owner, share, *within))

    async def again(self, owner: str, seqs: Sequence[int], *, share: float) -> list[Mark]:
        """Those of these turns that are still waiting, as they are now."""

        def query(connection: sa.Connection) -> list[Mark]:
            found: list[Mark] = []
            for part in chunks(seqs):
                found += _marks(connection, owner, share, turns.c.seq.in_(part))
            return found

        return await self._store.read(query)

    async def waiting(self, owner: str, *, share: float) -> list[Mark]:
        """All of them, oldest first: for whoever counts, and not for a store of millions."""
        return await self._store.read(lambda c: _marks(c, owner, share))

    async def turns(self, seqs: Sequence[int]) -> list[Turn]:
        """These turns, oldest first."""

        def query(connection: sa.Connection) -> list[Turn]:
            found: list[Turn] = []
            for part in chunks(seqs):
                found += reader.turns_by_seq(connection, part)
            return found

        return await self._store.read(query)

    async def note_hints(self, hints: Mapping[str, Hint]) -> None:
        """Keep how teachers are told, by turn; a hint that is another by now stays as it is."""

        def change(connection: sa.Connection) -> None:
            for name, hint in hints.items():
                row = sa.select(turns.c.hint).where(turns.c.id == name)
                found = rows.hint_of(connection.scalar(row))
                if found is not None and (found.text, found.source) == (hint.text, hint.source):
                    values = rows.hint_columns(hint)
                    connection.execute(sa.update(turns).where(turns.c.id == name).values(**values))

        await self._store.write(change)

    async def places(
        self, owner: str, sessions: Collection[str], *, share: float
    ) -> dict[str, Place]:
        """Every turn of these sessions, also those that are never learned from."""
        return await self._store.read(lambda c: _places(c, owner, sessions, share))

    async def note_passed(self, owner: str, counts: Mapping[str, int]) -> None:
        """Keep how many turns a learner passes over, by reason, for people who ask."""

        def change(connection: sa.Connection) -> None:
            mine = (controls.c.owner == owner) & controls.c.name.startswith(_PASSED)
            connection.execute(sa.delete(controls).where(mine))
            passed = [
                {"owner": owner, "name": f"{_PASSED}{reason}", "value": float(count)}
                for reason, count in counts.items()
            ]
            if passed:
                connection.execute(sa.insert(controls), passed)

        await self._store.write(change)

    async def passed(self) -> dict[str, dict[str, int]]:
        """How many turns of each owner are passed over, by reason."""
        mine = controls.c.name.startswith(_PASSED)
        query = sa.select(controls).where(mine).order_by(controls.c.owner, controls.c.name)
        found: dict[str, dict[str, int]] = {}
        for row in await self._store.read(lambda c: c.execute(query).all()):
            found.setdefault(row.owner, {})[row.name.removeprefix(_PASSED)] = int(row.value)
        return found


def _marks(
    connection: sa.Connection, owner: str, share: float, *where: sa.ColumnElement[bool]
) -> list[Mark]:
    columns = turns.c.seq, turns.c.id, turns.c.score, turns.c.hint, turns.c.finish, turns.c.version
    query = (
        sa.select(*columns, *lineage.length_columns())
        # The literal: only then do both databases use the partial index.
        .where(sa.text("score IS NOT NULL"), may_train(owner), is_talk(), ~is_trained(), *where)
        .order_by(turns.c.seq)
    )
    found_rows, known = connection.execute(query), len(columns)
    found = (Mark._make((*row[:known], lineage.tokens(*row[known:]))) for row in found_rows)
    return [one for one in found if not _is_held_out(one.id, one.score, one.hint, share)]


def _places(
    connection: sa.Connection, owner: str, sessions: Collection[str], share: float
) -> dict[str, Place]:
    counts = sa.and_(may_train(owner), is_talk(), turns.c.finish != "cancelled")
    columns = turns.c.id, turns.c.parent, turns.c.score, turns.c.hint, counts.label("counts")
    found = {}
    for part in chunks(sorted(sessions)):
        mine = (turns.c.owner == owner) & turns.c.session.in_(part)
        for name, parent, score, hint, countable in connection.execute(
            sa.select(*columns).where(mine)
        ):
            known = score is not None and countable and not _is_held_out(name, score, hint, share)
            found[name] = Place(parent, score if known else None)
    return found


def _is_held_out(name: str, score: int, hint: bytes | None, share: float) -> bool:
    """As `lineage.held_out` has it."""
    return (score > 0 or hint is not None) and share_of(name) < share
