"""What a person says of a turn, kept with it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from instar.record import changes, reader, rows
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

    It replaces what a judge said, whenever it comes, and `hint`, what the person's own words ask
    for, replaces any other. Without words a -1 keeps the hint that the turn has, for it was taken
    from what they said next; or the judge looks for one there, if something followed the turn. A 1
    or a 0 says that nothing has to change, so the hint goes. A private turn (`no_train`) keeps
    nothing.
    Returns the turn as it is then, or None if the owner has no such turn.
    """

    def change(connection: sa.Connection) -> Turn | None:
        mine = turns.c.owner == owner
        if turn is not None:
            mine &= turns.c.id == turn
        else:
            mine &= (turns.c.session == session) & (turns.c.kind == "main")
        columns = (turns.c.seq, turns.c.kind, turns.c.no_train, turns.c.next_state, turns.c.hint)
        query = sa.select(*columns).where(mine)
        last = query.order_by(turns.c.seq.desc()).limit(1)
        found = connection.execute(last).mappings().first()
        if found is None:
            return None
        seq = found["seq"]
        if not found["no_train"]:
            values = _told_columns(found, verdict, hint)
            connection.execute(sa.update(turns).where(turns.c.seq == seq).values(values))
        return reader.turns_by_seq(connection, [seq])[0]

    return await store.write(change)


def _told_columns(found: rows.Row, verdict: Verdict, hint: Hint | None) -> dict[str, Any]:
    values = rows.verdict_columns(verdict)
    if hint is not None or verdict.score != -1:
        return {**values, **rows.hint_columns(hint), "ready": 0}
    followed = found["kind"] == "main" and found["next_state"] is not None
    return {**values, "ready": int(followed and found["hint"] is None)}


async def keep_opinion(
    store: TurnStore, seen: Turn, verdict: Verdict | None, hint: Hint | None
) -> bool:
    """Keep what a judge said of a turn as it saw it; False if the person has spoken since.

    What they say while a judge thinks makes its opinion one of another turn: a reply that they
    call good must get no hint, and one that they call bad waits for the judge again.
    """

    def change(connection: sa.Connection) -> bool:
        query = sa.select(turns.c.verdict_source, turns.c.score).where(turns.c.id == seen.id)
        found = connection.execute(query).first()
        if found is None:
            return False
        told = found.score if found.verdict_source == "person" else None
        return told == told_score(seen) and changes.update_verdict(
            connection, seen.id, verdict, hint
        )

    return await store.write(change)


def told_score(turn: Turn) -> int | None:
    """What the person said outright of a turn, if they did."""
    verdict = turn.verdict
    return None if verdict is None or verdict.source != "person" else verdict.score


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
