"""Sessions that nobody uses any more are closed, in memory or not.

A session leaves memory before its time where too many are in use, or with the process. The store
has them all in the order of their last turn, so each sweep goes on there where the last one ended:
no session is looked at twice, however many there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from instar.gateway.sessions import SessionBook

Key = tuple[str, str]
"""Owner and id of a session."""

Place = tuple[float, str, str]
"""Last turn, owner and id of a session: where it stands among all of them."""

PAGE = 1000
"""Sessions that one sweep looks at; the next one is seconds away."""


class StoredSessions(Protocol):
    """What the store knows of sessions, used or not."""

    async def quiet_sessions(
        self, before: float, after: Place | None, limit: int
    ) -> tuple[list[Key], Place | None]:
        """Open sessions whose last turn was then, and where to go on from."""
        ...

    async def close_quiet(self, sessions: Sequence[Key], *, before: float, at: float) -> int:
        """Close those of these that are open and still have no later turn."""
        ...


class IdleSessions:
    """Closes sessions after a while. What cannot be closed now is tried again."""

    def __init__(
        self,
        book: SessionBook,
        store: StoredSessions,
        *,
        timeout_s: float,
        page: int = PAGE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._book = book
        self._store = store
        self._timeout = timeout_s
        self._page = page
        self._clock = clock
        self._place: Place | None = None
        self._due: set[Key] = set()
        """To be closed as soon as they are not in memory, where they may still be in use."""

    async def sweep(self) -> None:
        """Close what is idle; raises StoreError where that must wait for the next sweep."""
        for session in self._book.idle():
            self._book.drop(session.owner, session.id)
            self._due.add((session.owner, session.id))
        now = self._clock()
        before = now - self._timeout
        found, self._place = await self._store.quiet_sessions(before, self._place, self._page)
        self._due.update(found)
        ready = [key for key in self._due if key not in self._book]
        if ready:
            await self._store.close_quiet(ready, before=before, at=now)
            # One that had a later turn meanwhile is found again when that one is old.
            self._due.difference_update(ready)
