"""Forgetting a session: out of the store, out of service, and out of the versions it went into.

One transaction removes the session and marks every version that learned from it, directly or
through an ancestor, as tainted: such a version never serves again and its files may go. The
newest version that did not learn from it serves at once. If a live version was lost, a rebuild
is asked for: the trainer trains the line again from there, without the forgotten turns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from instar.ids import new_id
from instar.record import changes, lineage
from instar.record.schema import rebuilds, versions
from instar.record.store import TurnStore
from instar.record.versions import known_versions, make_live, versions_of
from instar.types import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """A line of versions to train again. Several that wait are one: each owner has one line."""

    ids: tuple[str, ...]
    owner: str
    versions: tuple[str, ...]
    """What was live and is to be replaced."""
    start: str
    """The version to train from: what came after it learned from what is forgotten."""
    batches: tuple[tuple[str, ...], ...]
    """Per lost version of the line, oldest first, the turns that are still there."""
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What forgetting a session did."""

    owner: str
    session: str
    turns: int
    """How many turns were removed."""
    trained: tuple[str, ...]
    """Versions that the session trained directly."""
    tainted: tuple[Version, ...]
    """Those and all that came from them. Their files hold what was learned: remove them."""
    was_live: str
    live: str
    rebuild: str | None = None
    """The id of the rebuild that was asked for, if the live version was lost."""


async def forget_session(store: TurnStore, owner: str, session: str) -> Forgotten:
    """Remove a session and put out of service every version that learned from it.

    May be repeated: a session that is gone already still names its versions.
    """
    return await store.write(lambda c: _forget(c, owner, session))


async def pending_rebuilds(store: TurnStore, owner: str | None = None) -> list[Rebuild]:
    """Rebuilds that the trainer still has to do: one an owner."""
    return await store.read(lambda c: _pending(c, owner))


async def finish_rebuild(store: TurnStore, rebuild: Rebuild, result: str | None) -> bool:
    """Note that a rebuild is over: with the version it led to, or None if nothing was left.

    Returns whether it was still pending.
    """
    waiting = rebuilds.c.id.in_(rebuild.ids) & rebuilds.c.finished.is_(None)
    values = {"finished": time.time(), "result": result}
    statement = sa.update(rebuilds).where(waiting).values(values).returning(rebuilds.c.id)
    return await store.write(lambda c: bool(c.scalars(statement).all()))


def _forget(connection: sa.Connection, owner: str, session: str) -> Forgotten:
    direct, names = versions_of(connection, owner, session)
    removed = changes.remove_session(connection, owner, session)
    before = lineage.live_name(connection, owner)
    spoilt = (versions.c.owner == owner) & versions.c.name.in_(names)
    connection.execute(sa.update(versions).where(spoilt).values(tainted=1, pruned=1))
    after, rebuild = before, None
    if before in names:
        after = lineage.last_good(lineage.ancestry(known_versions(connection, owner), before))
        make_live(connection, owner, after)
        rebuild = _ask_rebuild(connection, owner, version=before, start=after)
    return Forgotten(
        owner=owner,
        session=session,
        turns=removed,
        trained=tuple(direct),
        tainted=tuple(lineage.find(connection, owner, names=names)),
        was_live=before,
        live=after,
        rebuild=rebuild,
    )


def _ask_rebuild(connection: sa.Connection, owner: str, *, version: str, start: str) -> str:
    name = new_id("r")
    row = {"id": name, "owner": owner, "version": version, "start": start, "created": time.time()}
    connection.execute(sa.insert(rebuilds).values(row))
    return name


def _pending(connection: sa.Connection, owner: str | None) -> list[Rebuild]:
    query = sa.select(rebuilds).where(rebuilds.c.finished.is_(None)).order_by(rebuilds.c.id)
    if owner is not None:
        query = query.where(rebuilds.c.owner == owner)
    by_owner: dict[str, list[sa.Row[Any]]] = {}
    for row in connection.execute(query):
        by_owner.setdefault(row.owner, []).append(row)
    return [_rebuild(connection, owner, rows) for owner, rows in by_owner.items()]


def _rebuild(connection: sa.Connection, owner: str, rows: Sequence[sa.Row[Any]]) -> Rebuild:
    """As things are now: more may have been forgotten since it was asked for."""
    known = {one.name: one for one in lineage.find(connection, owner)}
    lines = [lineage.ancestry(known, row.version) for row in rows]
    shared = set.intersection(*({one.name for one in line} for line in lines))
    start = lineage.last_good(one for one in lines[0] if one.name in shared)
    good = {one.name for one in lineage.ancestry(known, start)}
    names = {one.name for line in lines for one in line} - good
    lost = [one for one in known.values() if one.name in names]
    there = lineage.sessions_of(connection, owner, [turn for one in lost for turn in one.turns])
    seen: set[str] = set()
    batches = []
    for one in lost:
        # Two lines that were both lost may share a turn; in one line it trains once.
        batch = tuple(turn for turn in one.turns if turn in there and turn not in seen)
        seen.update(batch)
        batches += [batch] if batch else []
    return Rebuild(
        ids=tuple(row.id for row in rows),
        owner=owner,
        versions=tuple(row.version for row in rows),
        start=start,
        batches=tuple(batches),
        created=rows[0].created,
    )
