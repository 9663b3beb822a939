"""Reads: every query names its owner where it has one, and none of them writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from instar.record import codec
from instar.record.rows import Content, Row, contents, decode
from instar.record.schema import anchors, owners, sessions, tools, turns
from instar.types import Session, Tool, Turn


def session_turns(connection: sa.Connection, owner: str, session: str) -> list[Turn]:
    mine = (turns.c.owner == owner) & (turns.c.session == session)
    rows = connection.execute(sa.select(turns).where(mine).order_by(turns.c.seq)).mappings().all()
    return _turns(connection, rows, wanted={row["seq"] for row in rows})


def turns_by_seq(connection: sa.Connection, seqs: Sequence[int]) -> list[Turn]:
    """These turns, oldest first."""
    return _turns(connection, chain_rows(connection, seqs), wanted=set(seqs))


def turn_by_id(connection: sa.Connection, turn: str) -> Turn | None:
    seq = connection.scalar(sa.select(turns.c.seq).where(turns.c.id == turn))
    return None if seq is None else turns_by_seq(connection, [seq])[0]


def chain_rows(connection: sa.Connection, seqs: Sequence[int]) -> Sequence[Row]:
    """The rows of these turns and of all that they lean on, oldest first, in one query."""
    if not seqs:
        return []
    chain = (
        sa.select(turns.c.seq, turns.c.prefix_seq)
        .where(turns.c.seq.in_(seqs))
        .cte("chain", recursive=True)
    )
    below = sa.select(turns.c.seq, turns.c.prefix_seq).join(
        chain, turns.c.seq == chain.c.prefix_seq
    )
    chain = chain.union(below)
    query = sa.select(turns).join(chain, turns.c.seq == chain.c.seq).order_by(turns.c.seq)
    return connection.execute(query).mappings().all()


def chain_contents(connection: sa.Connection, seqs: Sequence[int]) -> list[tuple[Row, Content]]:
    return [(row, content) for row, content, _ in contents(chain_rows(connection, seqs))]


def _turns(connection: sa.Connection, rows: Sequence[Row], *, wanted: set[int]) -> list[Turn]:
    kept = _tools(connection, [row for row in rows if row["seq"] in wanted])
    return [
        decode(row, content, replies, kept[_tools_key(row)] if row["tools"] else ())
        for row, content, replies in contents(rows)
        if row["seq"] in wanted
    ]


def _tools_key(row: Row) -> tuple[str, str, bytes]:
    return row["owner"], row["session"], bytes(row["tools"])


def _tools(
    connection: sa.Connection, rows: Sequence[Row]
) -> dict[tuple[str, str, bytes], tuple[Tool, ...]]:
    held = {(row["owner"], row["session"]) for row in rows if row["tools"]}
    found: dict[tuple[str, str, bytes], tuple[Tool, ...]] = {}
    for owner, session in held:
        mine = (tools.c.owner == owner) & (tools.c.session == session)
        for digest, data in connection.execute(sa.select(tools.c.digest, tools.c.data).where(mine)):
            found[owner, session, bytes(digest)] = tuple(codec.unpack_json(data))
    return found


def anchored(connection: sa.Connection, owner: str, wanted: Sequence[int]) -> dict[int, int]:
    """Per known anchor the number of the newest turn that carries it."""
    query = (
        sa.select(anchors.c.hash, sa.func.max(anchors.c.seq))
        .where(anchors.c.owner == owner, anchors.c.hash.in_(wanted))
        .group_by(anchors.c.hash)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def ready_turns(
    connection: sa.Connection, owner: str | None, limit: int, *, steps: bool = True
) -> list[Turn]:
    # The literal, not a bound 1: only then do both databases use the partial index.
    query = sa.select(turns.c.seq).where(sa.text("ready = 1"))
    if owner is not None:
        query = query.where(turns.c.owner == owner)
    if not steps:
        query = query.where(turns.c.group_id.is_(None))
    seqs = connection.scalars(query.order_by(turns.c.seq).limit(limit)).all()
    return turns_by_seq(connection, seqs)


def list_sessions(
    connection: sa.Connection, owner: str | None, limit: int, before: Session | None
) -> list[Session]:
    columns = (sessions.c.updated, sessions.c.owner, sessions.c.id)
    query = sa.select(sessions).order_by(*(column.desc() for column in columns)).limit(limit)
    if owner is not None:
        query = query.where(sessions.c.owner == owner)
    if before is not None:
        last = sa.tuple_(sa.literal(before.updated), before.owner, before.id)
        query = query.where(sa.tuple_(*columns) < last)
    return [_session(row) for row in connection.execute(query).mappings()]


def list_session_keys(
    connection: sa.Connection, owner: str | None, limit: int, after: tuple[str, str] | None
) -> list[tuple[str, str]]:
    columns = (sessions.c.owner, sessions.c.id)
    query = sa.select(*columns).order_by(*columns).limit(limit)
    if owner is not None:
        query = query.where(sessions.c.owner == owner)
    if after is not None:
        query = query.where(sa.tuple_(*columns) > sa.tuple_(*map(sa.literal, after)))
    return [(row.owner, row.id) for row in connection.execute(query)]


def one_session(connection: sa.Connection, owner: str, session: str) -> Session | None:
    query = sa.select(sessions).where(sessions.c.owner == owner, sessions.c.id == session)
    row = connection.execute(query).mappings().first()
    return None if row is None else _session(row)


def _session(row: Any) -> Session:
    return Session(
        id=row["id"],
        owner=row["owner"],
        created=row["created"],
        updated=row["updated"],
        turns=row["turns"],
        side_turns=row["side_turns"],
        sampled_tokens=row["sampled_tokens"],
        closed=row["closed_at"] is not None,
        title=row["title"],
    )


def totals(connection: sa.Connection, owner: str | None) -> dict[str, int]:
    names = ("sessions", "turns", "sampled_tokens")
    query = sa.select(*(sa.func.coalesce(sa.func.sum(owners.c[name]), 0) for name in names))
    if owner is not None:
        query = query.where(owners.c.owner == owner)
    row = connection.execute(query).one()
    return {name: int(value) for name, value in zip(names, row, strict=True)}


def owner_names(connection: sa.Connection) -> list[str]:
    return list(connection.scalars(sa.select(owners.c.owner).order_by(owners.c.owner)))
