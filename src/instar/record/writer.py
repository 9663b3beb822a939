"""The one thread that writes: turns come in from the event loop, and are committed in groups.

Whatever waits while one transaction is synced to disk goes into the next, so that many
clients share a sync. A transaction that fails is tried again, after a pause, until it
succeeds or the store closes; meanwhile the queue holds what is to be written, up to a bound.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from instar.errors import StoreError
from instar.record import changes
from instar.record.database import Database, reason
from instar.record.schema import turns
from instar.record.trunks import Key, Trunk, Trunks
from instar.types import NextState, Turn

log = logging.getLogger(__name__)

GROUP = 1024
"""Most entries in one transaction."""

_PAUSES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds between attempts; the last one repeats."""

_OF_THE_ENTRY = (
    sa.exc.DataError,
    sa.exc.IntegrityError,
    sa.exc.InterfaceError,
    sa.exc.NotSupportedError,
    sa.exc.ProgrammingError,
)
"""Database errors that say that one entry is at fault; all others may pass with time."""


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """One thing to write: a turn, what followed one, or any other change."""

    turn: Turn | None = None
    seen: tuple[str, NextState] | None = None
    change: Callable[[sa.Connection], Any] | None = None
    done: asyncio.Future[Any]
    """Resolved in the event loop; a turn with True or False, a change with its result."""
    result: Any = True
    error: Exception | None = None
    """Set where this entry can never be written."""
    overdue: bool = False
    """Nobody waits any more. Set in the event loop; a change is then not tried again."""


@dataclass(slots=True)
class Attempts:
    """How the latest transactions went, for anyone to read."""

    last_error: str | None = None
    failing_since: float | None = None
    """time.monotonic() of the first failure since the last success."""


@dataclass(slots=True)
class Writer:
    """Owns the thread. `finish` is called in the event loop with entries that are settled."""

    database: Database
    loop: asyncio.AbstractEventLoop
    finish: Callable[[list[Entry]], None]
    drain_s: float
    attempts: Attempts = field(default_factory=Attempts)
    _queue: queue.SimpleQueue[Entry | None] = field(default_factory=queue.SimpleQueue)
    _trunks: Trunks = field(default_factory=Trunks)
    _epoch: int = -1
    _stopping: threading.Event = field(default_factory=threading.Event)
    _deadline: float = float("inf")
    """time.monotonic() from which a failing store is given up."""
    _thread: threading.Thread | None = None

    def put(self, entry: Entry) -> None:
        """Queue an entry; the first one starts the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="instar-writer", daemon=True)
            self._thread.start()
        self._queue.put(entry)

    async def stop(self) -> None:
        """Write what waits, for `drain_s` at most if that fails, and end the thread."""
        self._deadline = time.monotonic() + self.drain_s
        self._stopping.set()
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while group := self._take():
            self._write_until_done(group)

    def _take(self) -> list[Entry]:
        """Everything that waits, up to one transaction's worth; empty at the end.

        A change that is neither a turn nor what followed one ends the group, since it may
        depend on the order.
        """
        group: list[Entry] = []
        entry = self._queue.get()
        while entry is not None:
            group.append(entry)
            if entry.change is not None or len(group) == GROUP:
                return group
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return group
        self._queue.put(None)
        return group

    def _write_until_done(self, group: list[Entry]) -> None:
        attempt = 0
        while group:
            if self.attempts.failing_since is not None and time.monotonic() >= self._deadline:
                self._settle(group, StoreError(f"closed while {self.attempts.last_error}"))
                return
            try:
                self._write(group)
            except Exception as error:
                self._trunks.clear()
                if not _is_outage(error):
                    self._separate(group, error)
                    return
                self._note_failure(error)
                group = self._without_overdue_change(group)
            else:
                self.attempts.failing_since = None
                self._settle(group)
                return
            self._pause(attempt)
            attempt += 1

    def _separate(self, group: list[Entry], error: Exception) -> None:
        """One entry of this group can never be written: find it, and write the others."""
        if len(group) > 1:
            half = len(group) // 2
            self._write_until_done(group[:half])
            self._write_until_done(group[half:])
            return
        turn = group[0].turn
        # A commit can succeed and its answer be lost: the retry then meets its own turn.
        if isinstance(error, sa.exc.IntegrityError) and turn and self._is_stored(turn):
            self._settle(group)
        else:
            self._settle(group, error)

    def _pause(self, attempt: int) -> None:
        if self._stopping.is_set():
            time.sleep(_PAUSES[0])
        else:
            self._stopping.wait(_PAUSES[min(attempt, len(_PAUSES) - 1)])

    def _write(self, group: list[Entry]) -> None:
        recorded = [entry.turn for entry in group if entry.turn is not None]
        seen = dict(entry.seen for entry in group if entry.seen is not None)
        opened: dict[Key, Trunk] = {}
        with self.database.writer.begin() as connection:
            entered = changes.enter(connection, turns=len(recorded))
            if entered.epoch != self._epoch:
                self._trunks.clear()
            if recorded:
                opened = changes.insert_turns(
                    connection, recorded, after=entered.last_seq, trunks=self._trunks
                )
            if seen:
                changes.update_next_states(connection, seen)
            if (last := group[-1]).change is not None:
                last.result = last.change(connection)
        # Before anyone is told: a commit into a file that has lost its name is none.
        self.database.check()
        self._epoch = entered.epoch
        self._trunks.keep(opened)

    def _note_failure(self, error: Exception) -> None:
        self.attempts.last_error = reason(error)
        self.attempts.failing_since = self.attempts.failing_since or time.monotonic()
        # The file or the server may be another one by the next attempt.
        self.database.writer.dispose()

    def _without_overdue_change(self, group: list[Entry]) -> list[Entry]:
        """Its caller was told that it failed, so it must not happen later."""
        if group[-1].change is None or not group[-1].overdue:
            return group
        self._settle(group[-1:], StoreError(self.attempts.last_error or "the store failed"))
        return group[:-1]

    def _settle(self, group: list[Entry], error: Exception | None = None) -> None:
        for entry in group:
            entry.error = error
        self.loop.call_soon_threadsafe(self.finish, group)

    def _is_stored(self, turn: Turn) -> bool:
        try:
            with self.database.writer.begin() as connection:
                mine = (turns.c.id == turn.id) & (turns.c.owner == turn.owner)
                return connection.scalar(sa.select(turns.c.seq).where(mine)) is not None
        except sa.exc.SQLAlchemyError:
            return False


def _is_outage(error: Exception) -> bool:
    """Whether a later attempt may succeed, since the error says nothing of what is written."""
    if isinstance(error, sa.exc.DBAPIError):
        return not isinstance(error, _OF_THE_ENTRY)
    return isinstance(error, sa.exc.TimeoutError | StoreError | OSError)
