"""The store: durable memory of turns, on SQLite (a file) or PostgreSQL (a server).

Turns go in through one writer thread and come back exactly. `record` never raises and never
waits longer than it was told to: a turn that cannot be written in time waits in memory, is
tried again, and is counted as late or, if it never gets there, as lost.

Example:
    async with open_store("sqlite:///home/instar.db") as store:
        await store.record(turn)
        assert await store.turns(turn.owner, turn.session) == [turn]
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import sqlalchemy as sa

from instar.errors import StoreError
from instar.record import changes, reader
from instar.record.database import READERS, Database, open_database, reason
from instar.record.schema import sessions as sessions_table
from instar.record.trunks import Key
from instar.record.writer import Entry, Writer
from instar.types import Hint, NextState, Session, Turn, Verdict

log = logging.getLogger(__name__)

T = TypeVar("T")

CHANGE_TIMEOUT_S = 30.0
"""How long a command (delete, verdict, key) waits; the person's turn never waits for these."""

_LOG_EVERY_S = 10.0


@asynccontextmanager
async def open_store(
    url: str, *, commit_timeout_s: float = 2.0, backlog: int = 10_000
) -> AsyncIterator[TurnStore]:
    """Open or create a store; closing it writes what still waits.

    `commit_timeout_s` bounds how long `record` waits; `backlog` how much waits in memory
    while the database cannot be written. Raises StoreError if it cannot be opened.
    """
    database = await asyncio.to_thread(open_database, url, wait_s=commit_timeout_s)
    store = TurnStore(database, commit_timeout_s=commit_timeout_s, backlog=backlog)
    try:
        yield store
    finally:
        await store.close()


class TurnStore:
    """Satisfies `Store`, and holds what the command line, the judge and the trainer read."""

    def __init__(self, database: Database, *, commit_timeout_s: float, backlog: int) -> None:
        self.late = 0
        """Turns that were written, but after their client was answered."""
        self.lost = 0
        """Turns that were never written."""
        self.lost_states = 0
        """Next states that were never written."""
        self.read_errors = 0
        """Histories that could not be looked up."""
        self._database = database
        self._timeout_s = commit_timeout_s
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(database, self._loop, self._finish, drain_s=commit_timeout_s)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="instar-reader")
        self._open: set[Entry] = set()
        self._pending: dict[str, Turn] = {}
        """Turns on their way to the disk, oldest first: they can be found already."""
        self._logged: dict[str, float] = {}

    # What the gateway needs.

    async def record(self, turn: Turn) -> bool:
        """Return once the turn is on disk, or False if it could not be written in time."""
        if len(self._open) >= self._backlog:
            self.lost += 1
            self._log("lost", f"Turn {turn.id} is lost: {self._backlog} entries wait already")
            return False
        entry = self._put(Entry(turn=turn, done=self._loop.create_future()))
        self._pending[turn.id] = turn
        # A store that has failed for long would make every reply wait in vain.
        since = self._writer.attempts.failing_since
        if since is None or time.monotonic() - since < self._timeout_s:
            await asyncio.wait({entry.done}, timeout=self._timeout_s)
        if entry.done.done():
            return bool(entry.done.result())
        entry.overdue = True
        self._log("overdue", f"Turn {turn.id} was not written in time; it waits in memory")
        return False

    async def saw_next(self, turn: str, state: NextState) -> None:
        """Note what followed a turn; does not wait for the disk. The newest note wins."""
        if len(self._open) >= self._backlog:
            self.lost_states += 1
            self._log("lost", f"What followed turn {turn} is lost: the backlog is full")
            return
        self._put(Entry(seen=(turn, state), done=self._loop.create_future()))

    async def find(self, owner: str, anchors: Sequence[int]) -> Turn | None:
        """The newest turn of this owner that carries the first of these anchors to be known.

        Answers None where the store cannot be read: the history then counts as unknown.
        """
        wanted = list(dict.fromkeys(anchors))
        if not wanted:
            return None
        waiting = self._find_pending(owner, wanted)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self.read(lambda c: _find(c, owner, wanted, waiting))
        except (StoreError, TimeoutError) as error:
            self.read_errors += 1
            self._log("find", f"A history could not be looked up: {error or 'no answer in time'}")
            return next((waiting[anchor] for anchor in wanted if anchor in waiting), None)

    async def turns(self, owner: str, session: str) -> list[Turn]:
        """All turns of a session, oldest first; those still on their way to the disk last."""
        waiting = [
            turn
            for turn in self._pending.values()
            if (turn.owner, turn.session) == (owner, session)
        ]
        found = await self.read(lambda c: reader.session_turns(c, owner, session))
        stored = {turn.id for turn in found}
        return found + [turn for turn in waiting if turn.id not in stored]

    # What the command line, the judge and the trainer need.

    async def turn(self, owner: str, turn: str) -> Turn | None:
        """One turn, also while it is on its way to the disk."""
        found = self._pending.get(turn) or await self.read(lambda c: reader.turn_by_id(c, turn))
        return found if found is not None and found.owner == owner else None

    async def sessions(
        self, owner: str | None = None, limit: int = 50, before: Session | None = None
    ) -> list[Session]:
        """Sessions, latest first. `before` is the last one of the page before."""
        return await self.read(lambda c: reader.list_sessions(c, owner, limit, before))

    async def session_keys(
        self, owner: str | None = None, limit: int = 100, after: tuple[str, str] | None = None
    ) -> list[tuple[str, str]]:
        """(owner, session) pairs in an order that turns do not change: to walk over all."""
        return await self.read(lambda c: reader.list_session_keys(c, owner, limit, after))

    async def session(self, owner: str, session: str) -> Session | None:
        return await self.read(lambda c: reader.one_session(c, owner, session))

    async def ready(
        self, owner: str | None = None, limit: int = 64, *, steps: bool = True
    ) -> list[Turn]:
        """Turns that wait for the judge (main, trained, followed by something), oldest first.

        Without `steps` those of attempts at tasks are left out: their reward is known.
        """
        return await self.read(lambda c: reader.ready_turns(c, owner, limit, steps=steps))

    async def owners(self) -> list[str]:
        """Everybody who has recorded a turn."""
        return await self.read(reader.owner_names)

    async def counts(self, owner: str | None = None) -> dict[str, int]:
        """Totals: sessions, turns, sampled_tokens."""
        return await self.read(lambda c: reader.totals(c, owner))

    async def set_verdict(self, turn: str, verdict: Verdict | None, hint: Hint | None) -> bool:
        """Keep a verdict and a hint, whichever is given; returns whether the turn exists.

        A judge never overwrites what a person said. With neither, the turn counts as looked
        at: it leaves `ready` until something new follows it.
        """
        return await self.write(lambda c: changes.update_verdict(c, turn, verdict, hint))

    async def close_session(self, owner: str, session: str, at: float) -> bool:
        """Mark a session as over, until a turn is recorded into it again."""
        return await self.write(lambda c: changes.update_closed(c, owner, session, at))

    async def quiet_sessions(
        self, before: float, after: tuple[float, str, str] | None = None, limit: int = 1000
    ) -> tuple[list[Key], tuple[float, str, str] | None]:
        """Open sessions (owner, id) without a turn since `before`, and where to go on from.

        Looks at `limit` sessions at most, in the order of their last turn, from `after` on.
        """
        return await self.read(lambda c: _quiet(c, before, after, limit))

    async def close_quiet(self, sessions: Sequence[Key], *, before: float, at: float) -> int:
        """Close those of these that are open and have no turn since `before`, all at once."""
        return await self.write(lambda c: changes.update_quiet(c, sessions, before=before, at=at))

    async def delete_session(self, owner: str, session: str) -> int:
        """Remove a session and all that was recorded of it; returns how many turns went."""
        return await self.write(lambda c: changes.remove_session(c, owner, session))

    def health(self) -> dict[str, int | float | str | None]:
        """How writing goes: `backlog` entries wait, `failing_s` is 0 while all is well."""
        attempts = self._writer.attempts
        since = attempts.failing_since
        return {
            "backlog": len(self._open),
            "late": self.late,
            "lost": self.lost,
            "lost_states": self.lost_states,
            "read_errors": self.read_errors,
            "failing_s": 0.0 if since is None else time.monotonic() - since,
            "last_error": attempts.last_error,
        }

    # How the two above, and other modules that keep tables here, reach the database.

    async def read(self, query: Callable[[sa.Connection], T]) -> T:
        """Run a query in a thread; raises StoreError."""
        return await self._loop.run_in_executor(self._readers, self._read, query)

    async def write(self, change: Callable[[sa.Connection], T]) -> T:
        """Run a change in the writer's next transaction and return once it is on disk.

        Raises StoreError if that takes longer than CHANGE_TIMEOUT_S; it may then still
        happen if it was under way.
        """
        entry = self._put(Entry(change=change, done=self._loop.create_future()))
        await asyncio.wait({entry.done}, timeout=CHANGE_TIMEOUT_S)
        if not entry.done.done():
            entry.overdue = True
            cause = self._writer.attempts.last_error or "other writes took too long"
            raise StoreError(f"The change was not written within {CHANGE_TIMEOUT_S:g} s: {cause}.")
        result: T = entry.done.result()
        return result

    async def close(self) -> None:
        await self._writer.stop()
        self._readers.shutdown()
        self._database.forget_connections()

    def _read(self, query: Callable[[sa.Connection], T]) -> T:
        try:
            with self._database.reader.connect() as connection:
                return query(connection)
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(f"The store cannot be read: {reason(error)}.") from error

    def _put(self, entry: Entry) -> Entry:
        self._open.add(entry)
        self._writer.put(entry)
        return entry

    def _find_pending(self, owner: str, wanted: Sequence[int]) -> dict[int, Turn]:
        found: dict[int, Turn] = {}
        for turn in self._pending.values():
            if turn.owner == owner:
                found |= {anchor: turn for anchor in turn.anchors if anchor in wanted}
        return found

    def _finish(self, entries: list[Entry]) -> None:
        """In the event loop: the writer is done with these."""
        for entry in entries:
            self._open.discard(entry)
            if entry.turn is not None:
                self._finish_turn(entry, entry.turn)
            elif entry.seen is not None and entry.error is not None:
                self.lost_states += 1
                self._log("lost", f"What followed turn {entry.seen[0]} is lost: {entry.error}")
            if entry.done.done():
                continue
            if entry.change is not None and entry.error is not None and not entry.overdue:
                failure = StoreError(f"The change was not written: {reason(entry.error)}.")
                entry.done.set_exception(failure)
                entry.done.exception()  # Its caller may be gone; that is no reason to complain.
            else:
                entry.done.set_result(entry.result if entry.error is None else False)

    def _finish_turn(self, entry: Entry, turn: Turn) -> None:
        self._pending.pop(turn.id, None)
        if entry.error is not None:
            self.lost += 1
            self._log("lost", f"Turn {turn.id} is lost: {reason(entry.error)}")
        elif entry.overdue:
            self.late += 1
            self._log("late", f"Turn {turn.id} was written late")

    def _log(self, kind: str, message: str) -> None:
        """At most one line of a kind every few seconds; the counters say how many."""
        now = time.monotonic()
        if now - self._logged.get(kind, float("-inf")) < _LOG_EVERY_S:
            return
        self._logged[kind] = now
        error = self._writer.attempts.last_error
        log.error(
            "%s. Backlog %d, late %d, lost %d, last error: %s",
            *(message, len(self._open), self.late, self.lost, error),
        )


def _quiet(
    connection: sa.Connection, before: float, after: tuple[float, str, str] | None, limit: int
) -> tuple[list[Key], tuple[float, str, str] | None]:
    held = sessions_table.c
    order = (held.updated, held.owner, held.id)
    query = sa.select(*order, held.closed_at).where(held.updated < before)
    if after is not None:
        query = query.where(sa.tuple_(*order) > sa.tuple_(*map(sa.literal, after)))
    rows = connection.execute(query.order_by(*order).limit(limit)).all()
    found = [(row.owner, row.id) for row in rows if row.closed_at is None]
    return found, (rows[-1].updated, rows[-1].owner, rows[-1].id) if rows else after


def _find(
    connection: sa.Connection, owner: str, wanted: Sequence[int], waiting: dict[int, Turn]
) -> Turn | None:
    stored = reader.anchored(connection, owner, wanted)
    for anchor in wanted:
        if anchor in waiting:
            return waiting[anchor]
        if anchor in stored:
            return reader.turns_by_seq(connection, [stored[anchor]])[0]
    return None
