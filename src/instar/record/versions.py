"""Which versions there are, which of them serve, and which turns went into them.

The files of a version are `publish/versions.py`'s; here is its state. A version becomes known
together with the turns that trained it, in one transaction, so no turn trains twice in one
line of versions. Going live is one transaction too: whoever follows the store sees either the
old version or the new one.

Example:
    book = VersionBook(store)
    name = await book.reserve("anna")
    ...  # train, and write the files under this name
    if await book.add(version):
        await book.promote("anna", name, instead_of=version.parent)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import sqlalchemy as sa

from instar.errors import StoreError
from instar.record import codec, lineage
from instar.record.controls import pauses
from instar.record.schema import controls, rebuilds, trained, versions
from instar.record.store import TurnStore
from instar.types import BASE_VERSION, Turn, Version

_LATELY = 8
"""Versions at the end of a line whose turns say what a person wants now."""

T = TypeVar("T")


class Refused:
    """Why a change was not made. Returned, not raised: the writer tries again what raises."""

    def __init__(self, why: str) -> None:
        self.why = why


class VersionBook:
    """The versions in a store."""

    def __init__(self, store: TurnStore) -> None:
        self._store = store

    async def reserve(self, owner: str) -> str:
        """The next name of this owner; it is never given out again."""
        return await self._change(lambda c: f"v{_count_up(c, owner)}")

    async def add(self, version: Version) -> bool:
        """Make a candidate known, and with it the turns that trained it.

        False, and nothing is kept, if one of its turns or ancestors was forgotten meanwhile.
        Raises StoreError if one of its turns has trained an ancestor already.
        """
        return await self._change(lambda c: _add(c, version))

    async def get(self, owner: str, name: str) -> Version | None:
        return await self._store.read(lambda c: lineage.one(c, owner, name))

    async def versions(self, owner: str | None = None) -> list[Version]:
        """All versions, each owner's oldest first."""
        return await self._store.read(lambda c: lineage.find(c, owner))

    async def live(self) -> dict[str, Version]:
        """Each owner's live version, without its turns; who is missing is served by the base."""
        return await self._store.read(lineage.live)

    async def live_name(self, owner: str) -> str:
        return await self._store.read(lambda c: lineage.live_name(c, owner))

    async def note_gate(self, owner: str, name: str, report: dict[str, Any]) -> None:
        """Keep a gate's report; a candidate whose report does not accept it is rejected."""

        def change(connection: sa.Connection) -> None:
            mine = (versions.c.owner == owner) & (versions.c.name == name)
            values: dict[str, Any] = {"gate": codec.pack_json(report)}
            connection.execute(sa.update(versions).where(mine).values(values))
            if not report["accepted"]:
                fresh = mine & (versions.c.state == "candidate")
                connection.execute(sa.update(versions).where(fresh).values(state="rejected"))

        await self._change(change)

    async def go_live(self, owner: str, name: str, *, instead_of: str) -> bool:
        """Make a candidate live, unless learning is paused; returns whether it is live now.

        In one transaction: once a pause is on disk nothing that was trained goes live any more.
        """

        def change(connection: sa.Connection) -> bool | Refused:
            if pauses(connection, owner):
                return False
            done = _promote(
                connection, owner, name, instead_of=instead_of, keep=False, anyway=False
            )
            return done if isinstance(done, Refused) else True

        return await self._change(change)

    async def promote(
        self,
        owner: str,
        name: str,
        *,
        instead_of: str | None = None,
        keep: bool = False,
        anyway: bool = False,
    ) -> str:
        """Make a version live, or `base`; returns which one was.

        `instead_of` is the version that must be live until now: a candidate that was measured
        against another one must not go live. `keep` saves it from pruning; `anyway` takes one
        that the gate rejected. Raises StoreError where that cannot be.
        """
        return await self._change(
            lambda c: _promote(c, owner, name, instead_of=instead_of, keep=keep, anyway=anyway)
        )

    async def rollback(
        self, owner: str, *, damaged: Collection[str] = (), instead_of: str | None = None
    ) -> tuple[str, str]:
        """Make the live version's predecessor live; returns the old and the new name.

        That is the version it was trained from, or the nearest one before that which is still
        good; `damaged` ones are passed over, whose files cannot be loaded. `instead_of` is the
        version that must be live until now: the files of another one's line were not looked at.
        Raises StoreError where another one is, or the base already.
        """
        return await self._change(lambda c: _rollback(c, owner, damaged, instead_of))

    async def line(self, owner: str, name: str) -> list[Version]:
        """A version and all it came from, newest first; ends before the base."""
        return await self._store.read(lambda c: lineage.ancestry(known_versions(c, owner), name))

    async def ages(self, owner: str) -> dict[str, int]:
        """How many versions of the live line came after each version, in that line or not."""
        return await self._store.read(lambda c: _ages(c, owner))

    async def turns(self, owner: str, name: str) -> list[str]:
        """All turns that a version was trained on, those of its ancestors first."""

        def query(connection: sa.Connection) -> list[str]:
            line = lineage.ancestry(known_versions(connection, owner), name)
            return lineage.trained_by(connection, owner, [one.name for one in line])

        return await self._store.read(query)

    async def of_session(self, owner: str, session: str) -> list[str]:
        """Versions that a session went into, directly or through an ancestor, oldest first."""
        return await self._store.read(lambda c: versions_of(c, owner, session)[1])

    async def trained(
        self, owner: str, turns: Collection[str], *, line: str | None = None
    ) -> set[str]:
        """Which of these turns trained a version: any at all, or one in the line of `line`."""

        def query(connection: sa.Connection) -> set[str]:
            names = None
            if line is not None:
                names = [
                    one.name for one in lineage.ancestry(known_versions(connection, owner), line)
                ]
            return lineage.among_trained(connection, owner, turns, names)

        return await self._store.read(query)

    async def held_out(
        self,
        owner: str,
        *,
        share: float,
        limit: int = 64,
        praised: bool = False,
        longest: int | None = None,
    ) -> list[Turn]:
        """The newest of the share that is never trained on, oldest first: corrected or praised.

        Those of more tokens than `longest` are passed over.
        """
        return await self._store.read(
            lambda c: lineage.held_out(c, owner, share, limit, praised, longest)
        )

    async def told(self, owner: str, *, line: str, limit: int) -> list[Turn]:
        """The newest turns with a hint or praise that trained the last versions of a line."""
        last = [one.name for one in (await self.line(owner, line))[:_LATELY]]
        return await self._store.read(lambda c: lineage.told(c, owner, last, limit))

    async def turns_in(self, owner: str, name: str) -> list[Turn]:
        """The turns that trained this version and no ancestor, as far as they are still there."""
        return await self._store.read(lambda c: lineage.turns_in(c, owner, name))

    async def prune(self, owner: str, *, keep: int, named: Collection[str] = ()) -> list[Version]:
        """Give up old versions; returns those whose files may now be removed.

        Kept are the live one, `keep` of its ancestors, the last `keep`, those a person
        promoted, where a rebuild starts, and `named`. What is given up keeps its lineage.
        """
        return await self._change(lambda c: _prune(c, owner, keep, named))

    async def _change(self, change: Callable[[sa.Connection], T | Refused]) -> T:
        result = await self._store.write(change)
        if isinstance(result, Refused):
            raise StoreError(result.why)
        return result


def versions_of(connection: sa.Connection, owner: str, session: str) -> tuple[list[str], list[str]]:
    """Versions that a session trained directly, and those with all that came from them."""
    query = (
        sa.select(trained.c.version)
        .where(trained.c.owner == owner, trained.c.session == session)
        .distinct()
    )
    direct = set(connection.scalars(query))
    known = known_versions(connection, owner)
    return [name for name in known if name in direct], lineage.offspring(known, direct)


def make_live(connection: sa.Connection, owner: str, name: str) -> None:
    """Retire the live version and put this one, or the base, in its place."""
    mine = versions.c.owner == owner
    retire = sa.update(versions).where(mine, versions.c.state == "live").values(state="retired")
    connection.execute(retire)
    if name != BASE_VERSION:
        going = mine & (versions.c.name == name)
        connection.execute(sa.update(versions).where(going).values(state="live"))


def known_versions(connection: sa.Connection, owner: str) -> dict[str, Version]:
    """All versions of an owner by name, oldest first, without their turns."""
    query = sa.select(versions).where(versions.c.owner == owner).order_by(versions.c.number)
    rows = connection.execute(query).mappings().all()
    return {row["name"]: lineage.decode(row, ()) for row in rows}


def _ages(connection: sa.Connection, owner: str) -> dict[str, int]:
    known = known_versions(connection, owner)
    line = {one.name for one in lineage.ancestry(known, lineage.live_name(connection, owner))}
    ages, since = {}, 0
    for name in reversed(known):
        ages[name] = since
        since += name in line
    return {**ages, BASE_VERSION: since}


def _count_up(connection: sa.Connection, owner: str) -> int:
    mine = (controls.c.owner == owner) & (controls.c.name == "last_version")
    raised = connection.scalar(
        sa.update(controls)
        .where(mine)
        .values(value=controls.c.value + 1)
        .returning(controls.c.value)
    )
    if raised is None:
        raised = 1
        first = {"owner": owner, "name": "last_version", "value": raised}
        connection.execute(sa.insert(controls).values(first))
    return int(raised)


def _add(connection: sa.Connection, version: Version) -> bool | Refused:
    owner, known = version.owner, known_versions(connection, version.owner)
    number = version.name.removeprefix("v")
    if not number.isdecimal() or version.name in known or version.state != "candidate":
        return Refused(
            f"Found a new version {version.name!r} in state {version.state}, expected a candidate "
            "under a name that `reserve` gave."
        )
    if version.parent != BASE_VERSION and version.parent not in known:
        return Refused(f"Version {version.name} comes from {version.parent}, which is unknown.")
    line = lineage.ancestry(known, version.parent)
    twice = lineage.among_trained(connection, owner, version.turns, [v.name for v in line])
    if twice or len(set(version.turns)) != len(version.turns):
        which = ", ".join(sorted(twice)) or "one of its own turns"
        return Refused(f"Version {version.name} would be trained twice on {which}.")
    sessions = lineage.sessions_of(connection, owner, version.turns)
    if any(one.tainted for one in line) or len(sessions) < len(version.turns):
        return False
    connection.execute(sa.insert(versions).values(lineage.encode(version, int(number))))
    rows = [
        {
            "owner": owner,
            "version": version.name,
            "turn": turn,
            "session": sessions[turn],
            "place": n,
        }
        for n, turn in enumerate(version.turns)
    ]
    if rows:
        connection.execute(sa.insert(trained), rows)
    return True


def _promote(
    connection: sa.Connection,
    owner: str,
    name: str,
    *,
    instead_of: str | None,
    keep: bool,
    anyway: bool,
) -> str | Refused:
    known = known_versions(connection, owner)
    if name != BASE_VERSION and (why := _unfit(known, owner, name, anyway=anyway)):
        return Refused(why)
    before = lineage.live_name(connection, owner)
    if instead_of is not None and before != instead_of:
        return _overtaken(owner, name, instead_of, before)
    if before != name:
        make_live(connection, owner, name)
    if keep and name != BASE_VERSION:
        mine = (versions.c.owner == owner) & (versions.c.name == name)
        connection.execute(sa.update(versions).where(mine).values(kept=1))
    return before


def _unfit(known: dict[str, Version], owner: str, name: str, *, anyway: bool) -> str | None:
    """Why this version may not go live."""
    version = known.get(name)
    if version is None:
        have = ", ".join([BASE_VERSION, *known][-10:])
        return f"{owner} has no version {name}; there are {have}."
    if version.tainted:
        return f"Version {name} of {owner} learned from a session that was forgotten."
    if version.pruned:
        return f"The files of version {name} of {owner} were pruned; it cannot be served again."
    if version.state == "rejected" and not anyway:
        return (
            f"The gate rejected version {name} of {owner}; `instar versions show {name}` says why."
        )
    return None


def _rollback(
    connection: sa.Connection, owner: str, damaged: Collection[str], instead_of: str | None
) -> tuple[str, str] | Refused:
    before = lineage.live_name(connection, owner)
    if before == BASE_VERSION:
        return Refused(f"{owner} is served by the base already; there is nothing before it.")
    line = lineage.ancestry(known_versions(connection, owner), before)[1:]
    after = lineage.last_good(one for one in line if one.name not in damaged)
    if instead_of is not None and before != instead_of:
        return _overtaken(owner, after, instead_of, before)
    make_live(connection, owner, after)
    return before, after


def _overtaken(owner: str, name: str, instead_of: str, live: str) -> Refused:
    return Refused(
        f"Version {name} of {owner} was to replace {instead_of}, but {live} is live now."
    )


def _prune(
    connection: sa.Connection, owner: str, keep: int, named: Collection[str]
) -> list[Version]:
    known = known_versions(connection, owner)
    line = lineage.ancestry(known, lineage.live_name(connection, owner))
    safe = {*named, *(one.name for one in line[: keep + 1]), *list(known)[-keep:]}
    waiting = (rebuilds.c.owner == owner) & rebuilds.c.finished.is_(None)
    safe |= set(connection.scalars(sa.select(rebuilds.c.start).where(waiting)))
    given_up = [v for v in known.values() if not (v.name in safe or v.kept or v.pruned)]
    names = [version.name for version in given_up]
    mine = (versions.c.owner == owner) & versions.c.name.in_(names)
    connection.execute(sa.update(versions).where(mine).values(pruned=1))
    return given_up
