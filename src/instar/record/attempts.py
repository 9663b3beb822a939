"""Attempts at tasks of environments: how each ended, kept once, and which groups are complete.

A row is written when an attempt is over. One that was cut short has none, so its turns, which
carry the group's id from the start, are never trained; played again, it is another session. The
store keeps one row a place in a group, so a run that was stopped goes on with nothing counted
twice, whichever process asks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from instar.record import codec
from instar.record.schema import attempts, trained, turns
from instar.record.store import TurnStore
from instar.types import Attempt

_CHUNK = 500


class AttemptBook:
    """The attempts in a store."""

    def __init__(self, store: TurnStore) -> None:
        self._store = store

    async def add(self, attempt: Attempt) -> Attempt:
        """Keep how an attempt ended; where its place is taken, the first one stays.

        Returns the attempt that is kept. Raises StoreError.
        """
        return await self._store.write(lambda c: _add(c, attempt))

    async def of_run(self, owner: str, run: str) -> list[Attempt]:
        """All attempts of a run, oldest first."""
        mine = (attempts.c.owner == owner) & (attempts.c.run == run)
        query = sa.select(attempts).where(mine).order_by(attempts.c.created, attempts.c.session)
        return await self._store.read(lambda c: [_decode(r) for r in c.execute(query).mappings()])

    async def waiting(self, owner: str, run: str) -> int:
        """How many complete groups of a run wait to be trained."""
        return await self._store.read(
            lambda c: len([one for one in _complete(c, owner, None) if one[1] == run])
        )

    async def groups(self, owner: str, *, limit: int, judged: bool = False) -> list[list[Attempt]]:
        """Complete groups that trained nothing yet, oldest first, each in its own order.

        `judged` leaves those out of which a step still waits for the judge.
        """

        def query(connection: sa.Connection) -> list[list[Attempt]]:
            open_ones = _unjudged(connection, owner) if judged else set()
            names = [name for name, _ in _complete(connection, owner, limit + len(open_ones))]
            names = [name for name in names if name not in open_ones][:limit]
            return in_groups(find(connection, owner, attempts.c.group_id, names), names)

        return await self._store.read(query)

    async def held_since(self, owner: str, used: str) -> int:
        """How many attempts this became of since something else became of one."""
        mine = attempts.c.owner == owner
        last = sa.select(sa.func.coalesce(sa.func.max(attempts.c.created), 0.0)).where(
            mine, attempts.c.used != used
        )
        query = sa.select(sa.func.count()).where(
            mine, attempts.c.used == used, attempts.c.created > last.scalar_subquery()
        )
        return await self._store.read(lambda c: int(c.scalar(query) or 0))

    async def latest(self, owner: str, used: str, *, limit: int) -> list[list[Attempt]]:
        """The newest groups that this became of."""

        def query(connection: sa.Connection) -> list[list[Attempt]]:
            newest = (
                sa.select(attempts.c.group_id)
                .where(attempts.c.owner == owner, attempts.c.used == used)
                .group_by(attempts.c.group_id)
                .order_by(sa.func.max(attempts.c.created).desc(), attempts.c.group_id)
                .limit(limit)
            )
            names = list(connection.scalars(newest))
            return in_groups(find(connection, owner, attempts.c.group_id, names), names)

        return await self._store.read(query)

    async def of_sessions(self, owner: str, sessions: Collection[str]) -> list[Attempt]:
        """Attempts of the groups that these sessions belong to, as far as there are any."""

        def query(connection: sa.Connection) -> list[Attempt]:
            found = find(connection, owner, attempts.c.session, sessions)
            groups = sorted({one.group for one in found})
            return find(connection, owner, attempts.c.group_id, groups)

        return await self._store.read(query)

    async def set_used(self, owner: str, groups: Collection[str], used: str) -> None:
        """Say what became of these groups; they do not wait any more."""

        def change(connection: sa.Connection) -> None:
            for part in _chunks(groups):
                mine = (attempts.c.owner == owner) & attempts.c.group_id.in_(part)
                connection.execute(sa.update(attempts).where(mine).values(used=used))

        await self._store.write(change)


def find(
    connection: sa.Connection, owner: str, column: sa.ColumnElement[str], names: Collection[str]
) -> list[Attempt]:
    """The owner's attempts whose `column` is one of these names."""
    found: list[Attempt] = []
    for part in _chunks(names):
        query = sa.select(attempts).where(attempts.c.owner == owner, column.in_(part))
        found += [_decode(row) for row in connection.execute(query).mappings()]
    return found


def in_groups(found: Sequence[Attempt], names: Sequence[str]) -> list[list[Attempt]]:
    """Attempts by group, in the order of `names`."""
    groups: dict[str, list[Attempt]] = {name: [] for name in names}
    for one in sorted(found, key=lambda one: one.number):
        groups[one.group].append(one)
    return list(groups.values())


def _complete(connection: sa.Connection, owner: str, limit: int | None) -> list[tuple[str, str]]:
    """(group, run) of complete groups that nothing became of yet, oldest first.

    A version is written before its groups are marked as used; what it trained on says so too.
    """
    learned = sa.exists().where(
        (trained.c.owner == attempts.c.owner) & (trained.c.session == attempts.c.session)
    )
    query = (
        sa.select(attempts.c.group_id, sa.func.min(attempts.c.run))
        .where(attempts.c.owner == owner, sa.text("used IS NULL"), ~learned)
        .group_by(attempts.c.group_id, attempts.c.size)
        .having(sa.func.count() == attempts.c.size)
        .order_by(sa.func.min(attempts.c.created), attempts.c.group_id)
    )
    if limit is not None:
        query = query.limit(limit)
    return [(row[0], row[1]) for row in connection.execute(query)]


def _unjudged(connection: sa.Connection, owner: str) -> set[str]:
    """Groups with a turn that waits for the judge."""
    waits = sa.text("ready = 1"), turns.c.owner == owner, turns.c.group_id.is_not(None)
    return set(connection.scalars(sa.select(turns.c.group_id).where(*waits).distinct()))


def _add(connection: sa.Connection, attempt: Attempt) -> Attempt:
    place = (
        (attempts.c.owner == attempt.owner)
        & (attempts.c.group_id == attempt.group)
        & (attempts.c.number == attempt.number)
    )
    same = (attempts.c.owner == attempt.owner) & (attempts.c.session == attempt.session)
    taken = connection.execute(sa.select(attempts).where(place | same)).mappings().first()
    if taken is not None:
        return _decode(taken)
    connection.execute(sa.insert(attempts).values(_encode(attempt)))
    return attempt


def _encode(attempt: Attempt) -> dict[str, Any]:
    return {
        "owner": attempt.owner,
        "session": attempt.session,
        "environment": attempt.environment,
        "run": attempt.run,
        "task": attempt.task,
        "group_id": attempt.group,
        "number": attempt.number,
        "size": attempt.size,
        "status": attempt.status,
        "reward": attempt.reward,
        "about": codec.pack_json([list(attempt.turns), attempt.details]),
        "created": attempt.created,
        "used": attempt.used,
    }


def _decode(row: Mapping[Any, Any]) -> Attempt:
    played, details = codec.unpack_json(row["about"])
    return Attempt(
        owner=row["owner"],
        session=row["session"],
        environment=row["environment"],
        run=row["run"],
        task=row["task"],
        group=row["group_id"],
        number=row["number"],
        size=row["size"],
        status=row["status"],
        reward=row["reward"],
        turns=tuple(played),
        details=details,
        created=row["created"],
        used=row["used"],
    )


def _chunks(names: Collection[str]) -> list[list[str]]:
    every = list(names)
    return [every[at : at + _CHUNK] for at in range(0, len(every), _CHUNK)]
