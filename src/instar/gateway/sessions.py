"""Open sessions: found by id or by their history, kept in memory while they are used.

Comes in: who asks, which session they name, and the history they resent. Goes out: the tree of
that session's turns. Sessions leave memory after a while; the store has them, and `idle` closes
them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from instar.errors import StoreError
from instar.gateway.history import chain, role_of, text_of
from instar.gateway.stitch import SessionTree
from instar.ids import new_id
from instar.protocols import Store
from instar.types import Message, Turn

log = logging.getLogger("instar.gateway")

_OPENCLAW = "<!-- openclaw:"
_RUNTIME = re.compile(r"^Runtime: agent=.*\| sessionId=([\w.-]{1,128}) \|", re.MULTILINE)

_LOOK_BACK = 16
"""How many replies of a history are looked up, the last ones first."""


@dataclass(slots=True, kw_only=True)
class OpenSession:
    """A session in memory."""

    id: str
    owner: str
    tree: SessionTree
    used: float
    busy: int = 0
    anchors: list[int] = field(default_factory=list)


def named_in(messages: Sequence[Message]) -> str | None:
    """The session that OpenClaw names in what it adds to the first thing a person says.

    Only where the system text is OpenClaw's own, so that a person who quotes such a line in
    another client stays where they are.
    """
    system = next((one for one in messages if role_of(one) == "system"), None)
    first = next((one for one in messages if one["role"] == "user"), None)
    if system is None or first is None or not text_of(system).startswith(_OPENCLAW):
        return None
    found = _RUNTIME.search(text_of(first))
    return found[1] if found else None


class SessionBook:
    """The sessions in use, least recently used first."""

    def __init__(
        self,
        store: Store,
        *,
        timeout_s: float,
        limit: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._timeout = timeout_s
        self._limit = limit
        self._clock = clock
        self._open: OrderedDict[tuple[str, str], OpenSession] = OrderedDict()
        self._by_anchor: dict[tuple[str, int], str] = {}
        self._loading: dict[tuple[str, str], asyncio.Future[OpenSession]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: tuple[str, str]) -> bool:
        """Whether the session of this owner and id is in memory."""
        return key in self._open or key in self._loading

    async def find(self, owner: str, name: str | None, messages: Sequence[Message]) -> OpenSession:
        """The session of that name, or the one this history belongs to, or a new one."""
        if name is None:
            name = await self._by_history(owner, messages)
        if name is None:
            session = OpenSession(
                id=new_id("s"), owner=owner, tree=SessionTree(), used=self._clock()
            )
            self._open[owner, session.id] = session
        else:
            session = await self._load(owner, name)
        self._touch(session)
        return session

    def add(self, session: OpenSession, turn: Turn) -> None:
        """Remember a new turn; the session may have left memory meanwhile, and come back."""
        session.tree.add(turn)
        session = self._open.setdefault((session.owner, session.id), session)
        session.tree.add(turn)
        session.anchors.extend(turn.anchors)
        for anchor in turn.anchors:
            self._by_anchor[session.owner, anchor] = session.id
        self._touch(session)

    def drop(self, owner: str, name: str) -> None:
        """Take a session out of memory."""
        session = self._open.pop((owner, name), None)
        for anchor in session.anchors if session else ():
            if self._by_anchor.get((owner, anchor)) == name:
                del self._by_anchor[owner, anchor]

    def idle(self) -> list[OpenSession]:
        """Sessions that nobody used for `timeout_s`."""
        now = self._clock()
        return [s for s in self._open.values() if not s.busy and now - s.used > self._timeout]

    async def _by_history(self, owner: str, messages: Sequence[Message]) -> str | None:
        spots = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        if not spots:
            return None
        recent = list(reversed(spots))[:_LOOK_BACK]
        numbers: list[int] = []
        for how in ({}, {"system": False}, {"told": True}):
            kind = chain(messages, **how)
            numbers += [kind[at] for at in recent]
            for at in recent:
                if name := self._by_anchor.get((owner, kind[at])):
                    return name
        turn = await self._store.find(owner, numbers)
        return turn.session if turn else None

    async def _load(self, owner: str, name: str) -> OpenSession:
        key = (owner, name)
        if found := self._open.get(key):
            return found
        if key not in self._loading:
            self._loading[key] = asyncio.ensure_future(self._read(owner, name))
        # Two requests at once on one session must share one tree.
        return await asyncio.shield(self._loading[key])

    async def _read(self, owner: str, name: str) -> OpenSession:
        key = (owner, name)
        try:
            turns = await self._recorded(owner, name)
            session = OpenSession(id=name, owner=owner, tree=SessionTree(), used=self._clock())
            self._open[key] = session
            for turn in turns:
                self.add(session, turn)
            return session
        finally:
            del self._loading[key]

    async def _recorded(self, owner: str, name: str) -> list[Turn]:
        """A store that cannot be read costs the session its past, not the client its reply."""
        try:
            return await self._store.turns(owner, name)
        except StoreError as error:
            log.error("session %s starts without its earlier turns: %s", name, error)
            return []

    def _touch(self, session: OpenSession) -> None:
        session.used = self._clock()
        self._open.move_to_end((session.owner, session.id))
        if len(self._open) > self._limit:
            idle = (s for s in self._open.values() if not s.busy and s is not session)
            if old := next(idle, None):
                self.drop(old.owner, old.id)
