"""Switches that people set and the background respects: whether anything is learned now."""

from __future__ import annotations

import time

import sqlalchemy as sa

from instar.record.schema import controls
from instar.record.store import TurnStore

EVERYBODY = ""
"""Stands for all owners."""
_PAUSED = "paused"


async def pause_learning(store: TurnStore, owner: str = EVERYBODY) -> bool:
    """Train and publish nothing of this owner from now on; returns whether that is new."""

    def change(connection: sa.Connection) -> bool:
        if connection.scalar(sa.select(controls.c.value).where(_mine(owner))) is not None:
            return False
        row = {"owner": owner, "name": _PAUSED, "value": time.time()}
        connection.execute(sa.insert(controls).values(row))
        return True

    return await store.write(change)


async def resume_learning(store: TurnStore, owner: str = EVERYBODY) -> bool:
    """Learn again; returns whether it was paused."""
    statement = sa.delete(controls).where(_mine(owner)).returning(controls.c.value)
    return await store.write(lambda c: c.scalar(statement) is not None)


async def paused_since(store: TurnStore) -> dict[str, float]:
    """Who is paused, and since when; `EVERYBODY` pauses all owners."""
    query = sa.select(controls.c.owner, controls.c.value).where(controls.c.name == _PAUSED)
    return await store.read(lambda c: {row.owner: row.value for row in c.execute(query)})


async def is_paused(store: TurnStore, owner: str) -> bool:
    """Whether a trainer must leave this owner alone. It asks before each update."""
    return await store.read(lambda c: pauses(c, owner))


def pauses(connection: sa.Connection, owner: str) -> bool:
    """The same within somebody's transaction."""
    switches = controls.c.name == _PAUSED, controls.c.owner.in_([owner, EVERYBODY])
    return connection.scalar(sa.select(sa.exists().where(*switches))) is True


def _mine(owner: str) -> sa.ColumnElement[bool]:
    return (controls.c.owner == owner) & (controls.c.name == _PAUSED)
