"""Writes: what one transaction does to the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from instar.errors import StoreError
from instar.record import codec, rows
from instar.record.schema import (
    VERSION,
    anchors,
    attempts,
    meta,
    owners,
    sessions,
    tools,
    turns,
)
from instar.record.trunks import Key, Known, Trunk, Trunks, choose
from instar.types import Hint, NextState, Turn, Verdict

_TITLE = 80


class Turnstile(NamedTuple):
    """What a writer learns as it enters: its turn numbers and whether caches still hold."""

    last_seq: int
    epoch: int


def enter(connection: sa.Connection, *, turns: int) -> Turnstile:
    """Take the write lock and `turns` numbers. The first statement of every transaction."""
    statement = (
        sa.update(meta)
        .values(last_seq=meta.c.last_seq + turns)
        .returning(meta.c.version, meta.c.last_seq, meta.c.epoch)
    )
    version, last_seq, epoch = connection.execute(statement).one()
    if version > VERSION:
        raise StoreError(
            f"The store has schema version {version}, but this instar writes {VERSION}. "
            "Another process has upgraded it: restart this one with the same version."
        )
    return Turnstile(last_seq - turns, epoch)


def insert_turns(
    connection: sa.Connection, recorded: Sequence[Turn], *, after: int, trunks: Trunks
) -> dict[Key, Trunk]:
    """Write these turns with numbers from `after` on; returns the sessions they went to."""
    keys = dict.fromkeys((turn.owner, turn.session) for turn in recorded)
    opened = trunks.open(connection, keys)
    added: dict[str, list[dict[str, Any]]] = {"turns": [], "anchors": [], "tools": []}
    for seq, turn in enumerate(recorded, start=after + 1):
        _add(connection, turn, seq=seq, trunk=opened[turn.owner, turn.session], added=added)
    _insert_many(connection, turns, added["turns"])
    _insert_many(connection, anchors, added["anchors"])
    if added["tools"]:
        statement = _insert(tools, connection.dialect.name).on_conflict_do_nothing()
        connection.execute(statement, added["tools"])
    _count(connection, recorded, new={key for key in keys if opened[key].is_new})
    return opened


def _insert_many(
    connection: sa.Connection, table: sa.Table, added: Sequence[dict[str, Any]]
) -> None:
    """As Core's executemany, without its work on each row: a fifth of a small turn's cost."""
    if not added:
        return
    sql, names = _insert_sql(table, connection.dialect)
    rows = [tuple(row[name] for name in names) for row in added] if names else list(added)
    connection.exec_driver_sql(sql, rows)


@lru_cache(maxsize=16)
def _insert_sql(table: sa.Table, dialect: sa.Dialect) -> tuple[str, list[str] | None]:
    """The statement, and the order of its columns where the driver counts parameters."""
    compiled = sa.insert(table).compile(dialect=dialect)
    return str(compiled), compiled.positiontup


def _add(
    connection: sa.Connection,
    turn: Turn,
    *,
    seq: int,
    trunk: Trunk,
    added: dict[str, list[dict[str, Any]]],
) -> None:
    """Encode one turn against its session, and let the next one lean on it."""
    texts = rows.texts(turn.messages, turn.reply)
    ids = np.fromiter(turn.ids, np.int64, len(turn.prompt_ids) + len(turn.sampled_ids))
    prompt = ids[: len(turn.prompt_ids)]
    prefix, root = choose(connection, trunk, turn, prompt=prompt, digests=texts.digests[:-1])
    digest = _add_tools(turn, trunk, added["tools"])
    added["turns"].append(rows.encode(turn, seq=seq, prefix=prefix, texts=texts, tools=digest))
    added["anchors"] += [
        {"owner": turn.owner, "hash": anchor, "seq": seq} for anchor in dict.fromkeys(turn.anchors)
    ]
    trunk.recent.append(
        Known(
            seq=seq,
            id=turn.id,
            ids=ids,
            digests=texts.digests,
            depth=prefix.depth,
            root=root,
        )
    )


def _add_tools(turn: Turn, trunk: Trunk, added: list[dict[str, Any]]) -> bytes | None:
    if not turn.tools:
        return None
    text = codec.to_json(list(turn.tools))
    digest = rows.digest(text.raw)
    if digest not in trunk.tools:
        trunk.tools.add(digest)
        key = {"owner": turn.owner, "session": turn.session, "digest": digest}
        added.append({**key, "data": codec.seal(*text)})
    return digest


def _count(connection: sa.Connection, recorded: Sequence[Turn], *, new: set[Key]) -> None:
    """Bring the rows of sessions and owners up to date, one of each however many turns."""
    by_session: dict[Key, dict[str, Any]] = {}
    for turn in recorded:
        row = by_session.setdefault((turn.owner, turn.session), _session_row(turn))
        row["updated"] = max(row["updated"], turn.created)
        row["turns"] += 1
        row["side_turns"] += turn.kind == "side"
        row["sampled_tokens"] += len(turn.sampled_ids)
        row["title"] = row["title"] or title(turn)
    # Sorted, as rows of owners below: PostgreSQL's row locks are then taken in one order.
    upsert = _upsert_sessions(connection.dialect.name)
    connection.execute(upsert, [by_session[key] for key in sorted(by_session)])
    by_owner: dict[str, dict[str, Any]] = {}
    for key, session in by_session.items():
        zero = {"owner": key[0], "sessions": 0, "turns": 0, "sampled_tokens": 0}
        row = by_owner.setdefault(key[0], zero)
        row["sessions"] += key in new
        row["turns"] += session["turns"]
        row["sampled_tokens"] += session["sampled_tokens"]
    upsert = _upsert_owners(connection.dialect.name)
    connection.execute(upsert, [by_owner[key] for key in sorted(by_owner)])


def _session_row(turn: Turn) -> dict[str, Any]:
    return {
        "owner": turn.owner,
        "id": turn.session,
        "created": turn.created,
        "updated": turn.created,
        "turns": 0,
        "side_turns": 0,
        "sampled_tokens": 0,
        "title": "",
    }


def title(turn: Turn) -> str:
    """The first words the person said. Neither database takes NUL or half a surrogate pair."""
    for message in turn.messages:
        if message.get("role") == "user" and (said := _text(message.get("content"))):
            return said[:_TITLE]
    return ""


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = " ".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str):
        return ""
    # A long paste is cut before it is tidied; 80 characters is all that is kept.
    head = content[: 40 * _TITLE].replace("\0", "").encode("utf-8", "replace").decode()
    return " ".join(head.split())


@cache
def _upsert_sessions(dialect: str) -> Any:
    statement = _insert(sessions, dialect)
    added, held = statement.excluded, sessions.c
    return statement.on_conflict_do_update(
        index_elements=[held.owner, held.id],
        set_={
            "updated": sa.case((added.updated > held.updated, added.updated), else_=held.updated),
            "turns": held.turns + added.turns,
            "side_turns": held.side_turns + added.side_turns,
            "sampled_tokens": held.sampled_tokens + added.sampled_tokens,
            "title": sa.case((held.title == "", added.title), else_=held.title),
            "closed_at": None,
        },
    )


@cache
def _upsert_owners(dialect: str) -> Any:
    statement = _insert(owners, dialect)
    names = ("sessions", "turns", "sampled_tokens")
    return statement.on_conflict_do_update(
        index_elements=[owners.c.owner],
        set_={name: owners.c[name] + statement.excluded[name] for name in names},
    )


def _insert(table: sa.Table, dialect: str) -> Any:
    """Only the dialects' own inserts know ON CONFLICT."""
    make = postgres_insert if dialect == "postgresql" else sqlite_insert
    return make(table)


def update_next_states(connection: sa.Connection, seen: Mapping[str, NextState]) -> None:
    """Note what followed these turns. What a verdict or a hint was taken from is kept.

    A person may have said how a turn was before anything followed it. Their verdict stays; where
    it is -1 without a hint, the judge still looks whether their next words say what was wrong.
    """
    told = (turns.c.verdict_source == "person") & turns.c.hint.is_(None)
    unread = turns.c.score.is_(None) | turns.c.next_state.is_(None) | told
    waits = (turns.c.kind == "main") & (turns.c.no_train == 0)
    waits &= turns.c.score.is_(None) | (told & (turns.c.score == -1))
    statement = (
        sa.update(turns)
        .where(turns.c.id == sa.bindparam("turn"), unread)
        .values(next_state=sa.bindparam("state"), ready=sa.case((waits, 1), else_=0))
    )
    parameters = [
        {"turn": turn, "state": rows.state_columns(seen[turn])["next_state"]}
        for turn in sorted(seen)
    ]
    connection.execute(statement, parameters)


def update_verdict(
    connection: sa.Connection, turn: str, verdict: Verdict | None, hint: Hint | None
) -> bool:
    """Set a turn's verdict and hint, whichever is given. Returns whether the turn exists.

    What a person said is never overwritten by a judge. Without a verdict the turn still
    leaves the judge's queue, until something new follows it.
    """
    found = connection.execute(
        sa.select(turns.c.verdict_source, turns.c.hint).where(turns.c.id == turn)
    ).first()
    if found is None:
        return False
    values: dict[str, Any] = {"ready": 0}
    said = found.verdict_source == "person"
    if verdict is not None and (verdict.source == "person" or not said):
        values |= rows.verdict_columns(verdict)
    if hint is not None and (hint.source == "person" or not _from_person(found.hint)):
        values |= rows.hint_columns(hint)
    connection.execute(sa.update(turns).where(turns.c.id == turn).values(values))
    return True


def _from_person(hint: bytes | None) -> bool:
    return hint is not None and codec.unpack_json(hint)[1] == "person"


def update_closed(connection: sa.Connection, owner: str, session: str, at: float) -> bool:
    mine = (sessions.c.owner == owner) & (sessions.c.id == session)
    result = connection.execute(sa.update(sessions).where(mine).values(closed_at=at))
    return cast("sa.CursorResult[Any]", result).rowcount > 0


def update_quiet(
    connection: sa.Connection, quiet: Sequence[Key], *, before: float, at: float
) -> int:
    """Close those of these sessions that are open and have no turn since. Returns how many."""
    still = (sessions.c.closed_at.is_(None)) & (sessions.c.updated < before)
    mine = (sessions.c.owner == sa.bindparam("o")) & (sessions.c.id == sa.bindparam("i"))
    statement = sa.update(sessions).where(mine, still).values(closed_at=at)
    # Sorted: PostgreSQL's row locks are then taken in one order.
    keys = [{"o": owner, "i": session} for owner, session in sorted(quiet)]
    return cast("sa.CursorResult[Any]", connection.execute(statement, keys)).rowcount


def remove_session(connection: sa.Connection, owner: str, session: str) -> int:
    """Delete a session and all that was recorded of it. Returns how many turns went."""
    mine = (turns.c.owner == owner) & (turns.c.session == session)
    found = connection.execute(sa.select(turns.c.seq, turns.c.anchors).where(mine)).all()
    carried = [
        {"o": owner, "h": anchor, "s": seq}
        for seq, blob in found
        for anchor in dict.fromkeys(codec.unpack(blob))
    ]
    if carried:
        key = (
            (anchors.c.owner == sa.bindparam("o"))
            & (anchors.c.hash == sa.bindparam("h"))
            & (anchors.c.seq == sa.bindparam("s"))
        )
        connection.execute(sa.delete(anchors).where(key), carried)
    connection.execute(sa.delete(turns).where(mine))
    for table in (tools, attempts):
        mine = (table.c.owner == owner) & (table.c.session == session)
        connection.execute(sa.delete(table).where(mine))
    _uncount(connection, owner, session)
    connection.execute(sa.update(meta).values(epoch=meta.c.epoch + 1))
    return len(found)


def _uncount(connection: sa.Connection, owner: str, session: str) -> None:
    mine = (sessions.c.owner == owner) & (sessions.c.id == session)
    row = connection.execute(sa.select(sessions).where(mine)).first()
    if row is None:
        return
    connection.execute(sa.delete(sessions).where(mine))
    connection.execute(
        sa.update(owners)
        .where(owners.c.owner == owner)
        .values(
            sessions=owners.c.sessions - 1,
            turns=owners.c.turns - row.turns,
            sampled_tokens=owners.c.sampled_tokens - row.sampled_tokens,
        )
    )
