"""What the writer remembers of each session, to store only what a new turn adds.

The newest turns of the sessions in use are held in memory up to a bound; anything else is
read back from the store. Only turns that are committed, or are being written in the same
transaction, are ever offered: a turn that was lost is never leant on.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from instar.errors import StoreError
from instar.record import reader
from instar.record.rows import NO_PREFIX, Prefix, texts
from instar.record.schema import sessions, turns
from instar.types import Turn

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]
Key = tuple[str, str]

RECENT = 6
"""Turns of a session that a new one is compared with, besides its parent."""

MAX_DEPTH = 64
"""Longest chain of turns that lean on one another. The next one leans on the chain's first
turn, so that reading any one turn stays cheap while a long system prompt is stored once."""

BUDGET = 64 * 2**20
"""Bytes of ids and digests to hold."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Known:
    """A recorded turn, as a later one may lean on it."""

    seq: int
    id: str
    ids: Ids
    digests: tuple[bytes, ...]
    depth: int
    root: Known | None = None
    """The first turn of the chain; None where it is this one."""

    @property
    def size(self) -> int:
        return self.ids.nbytes + 64 * len(self.digests) + 512


@dataclass(slots=True, kw_only=True)
class Trunk:
    """The part of a session that is held."""

    recent: deque[Known] = field(default_factory=lambda: deque(maxlen=RECENT))
    tools: set[bytes] = field(default_factory=set)
    """Digests of the tools that are stored for this session."""
    is_new: bool = False
    """No turn of this session was stored before this transaction."""

    @property
    def size(self) -> int:
        return 256 + sum(known.size for known in self.recent)


class Trunks:
    """Trunks by session, least recently used first."""

    def __init__(self, *, budget: int = BUDGET) -> None:
        self._held: OrderedDict[Key, Trunk] = OrderedDict()
        self._sizes: dict[Key, int] = {}
        self._total = 0
        self._budget = budget

    def clear(self) -> None:
        self._held.clear()
        self._sizes.clear()
        self._total = 0

    def open(self, connection: sa.Connection, keys: Collection[Key]) -> dict[Key, Trunk]:
        """The trunks of these sessions, read from the store where they are not held."""
        opened = {key: trunk for key in keys if (trunk := self._held.get(key)) is not None}
        missing = [key for key in keys if key not in opened]
        stored = _stored(connection, missing) if missing else set()
        for key in missing:
            opened[key] = _read_trunk(connection, key) if key in stored else Trunk(is_new=True)
        return opened

    def keep(self, opened: dict[Key, Trunk]) -> None:
        """Hold these, once they are committed, and let go of what was not used for longest."""
        for key, trunk in opened.items():
            trunk.is_new = False
            size = trunk.size
            self._total += size - self._sizes.get(key, 0)
            self._sizes[key] = size
            self._held[key] = trunk
            self._held.move_to_end(key)
        while self._total > self._budget:
            key, _ = self._held.popitem(last=False)
            self._total -= self._sizes.pop(key)


def choose(
    connection: sa.Connection,
    trunk: Trunk,
    turn: Turn,
    *,
    prompt: Ids,
    digests: Sequence[bytes],
) -> tuple[Prefix, Known | None]:
    """The recorded turn whose ids share most with this prompt, and its chain's first turn."""
    best, length = None, 0
    for known in _candidates(connection, trunk, turn):
        common = _common(prompt, known.ids)
        if common > length:
            best, length = known, common
            if common == len(prompt):
                break
    if best is not None and best.depth >= MAX_DEPTH and best.root is not None:
        best = best.root
        length = _common(prompt, best.ids)
    if best is None or not length:
        return NO_PREFIX, None
    messages = _common_messages(digests, best.digests)
    return Prefix(best.seq, length, messages, best.depth + 1), best.root or best


def _candidates(connection: sa.Connection, trunk: Trunk, turn: Turn) -> Iterator[Known]:
    held = {known.id: known for known in reversed(trunk.recent)}
    if turn.parent is not None and not trunk.is_new:
        parent = held.pop(turn.parent, None) or _read_parent(connection, turn)
        if parent is not None:
            yield parent
    yield from held.values()


def _common(left: Ids, right: Ids) -> int:
    shortest = min(len(left), len(right))
    differs = left[:shortest] != right[:shortest]
    first = int(differs.argmax()) if shortest else 0
    return first if shortest and differs[first] else shortest


def _common_messages(left: Sequence[bytes], right: Sequence[bytes]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def _stored(connection: sa.Connection, keys: Sequence[Key]) -> set[Key]:
    pair = sa.tuple_(sessions.c.owner, sessions.c.id)
    found = connection.execute(sa.select(sessions.c.owner, sessions.c.id).where(pair.in_(keys)))
    return {(owner, session) for owner, session in found}


def _read_trunk(connection: sa.Connection, key: Key) -> Trunk:
    mine = (turns.c.owner == key[0]) & (turns.c.session == key[1])
    newest = sa.select(turns.c.seq).where(mine).order_by(turns.c.seq.desc()).limit(RECENT)
    found = _read(connection, connection.scalars(newest).all())
    return Trunk(recent=deque(found, maxlen=RECENT))


def _read_parent(connection: sa.Connection, turn: Turn) -> Known | None:
    query = sa.select(turns.c.seq).where(
        turns.c.id == turn.parent, turns.c.owner == turn.owner, turns.c.session == turn.session
    )
    seq = connection.scalar(query)
    found = [] if seq is None else _read(connection, [seq])
    return found[0] if found else None


def _read(connection: sa.Connection, seqs: Sequence[int]) -> list[Known]:
    """These turns, oldest first, each knowing the first turn of its chain.

    None of them where one is damaged: new turns of that session are then stored in full.
    """
    try:
        chain = reader.chain_contents(connection, seqs)
    except StoreError as error:
        log.error("A session's earlier turns cannot be read: %s", error)
        return []
    wanted = set(seqs)
    roots: dict[int, Known] = {}
    known: list[Known] = []
    for row, content in chain:
        root = roots.get(row["prefix_seq"])
        if root is not None and row["seq"] not in wanted:
            roots[row["seq"]] = root
            continue
        *messages, reply = content.messages
        made = Known(
            seq=row["seq"],
            id=row["id"],
            ids=np.fromiter(content.ids, np.int64, len(content.ids)),
            digests=texts(messages, reply).digests,
            depth=row["depth"],
            root=root,
        )
        roots[made.seq] = root or made
        if made.seq in wanted:
            known.append(made)
    return known
