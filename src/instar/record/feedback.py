"""What a person says of a turn, kept with it."""

from __future__ import annotations

import sqlalchemy as sa

from instar.record import reader, rows
from instar.record.schema import turns
from instar.record.store import TurnStore
from instar.types import Hint, Turn, Verdict


async def give_feedback(
    store: TurnStore,
    owner: str,
    *,
    turn: str | None = None,
    session: str | None = None,
    verdict: Verdict,
    hint: Hint | None,
) -> Turn | None:
    """Set a person's verdict on a turn, or on the last main turn of a session.

    It replaces what a judge said, whenever it comes, and the hint with it: words of the person
    take its place, and a reply that was good needs none. A private turn (`no_train`) keeps
    nothing. Returns the turn as it is then, or None if the owner has no such turn.
    """

    def change(connection: sa.Connection) -> Turn | None:
        mine = turns.c.owner == owner
        if turn is not None:
            mine &= turns.c.id == turn
        else:
            mine &= (turns.c.session == session) & (turns.c.kind == "main")
        query = sa.select(turns.c.seq, turns.c.no_train).where(mine)
        found = connection.execute(query.order_by(turns.c.seq.desc()).limit(1)).first()
        if found is None:
            return None
        if not found.no_train:
            values = {"ready": 0, **rows.verdict_columns(verdict)}
            if hint is not None or verdict.score == 1:
                values |= rows.hint_columns(hint)
            connection.execute(sa.update(turns).where(turns.c.seq == found.seq).values(values))
        return reader.turns_by_seq(connection, [found.seq])[0]

    return await store.write(change)


async def feedback_counts(store: TurnStore) -> dict[str, int]:
    """By owner, how many turns have a person's verdict and were followed by something."""

    def query(connection: sa.Connection) -> dict[str, int]:
        found = (
            sa.select(turns.c.owner, sa.func.count().label("pairs"))
            .where(_told())
            .group_by(turns.c.owner)
        )
        return {row.owner: row.pairs for row in connection.execute(found)}

    return await store.read(query)


async def feedback_turns(store: TurnStore, owner: str, *, limit: int) -> list[Turn]:
    """The latest of these turns."""

    def query(connection: sa.Connection) -> list[Turn]:
        mine = sa.select(turns.c.seq).where(_told() & (turns.c.owner == owner))
        seqs = connection.scalars(mine.order_by(turns.c.seq.desc()).limit(limit)).all()
        return reader.turns_by_seq(connection, seqs)

    return await store.read(query)


def _told() -> sa.ColumnElement[bool]:
    return (turns.c.verdict_source == "person") & turns.c.next_state.is_not(None)
