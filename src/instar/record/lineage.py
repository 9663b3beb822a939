"""Versions as rows: reading them, and walking from a version to those it came from.

Every function works on one connection, so that a caller can put several into one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from instar.ids import share_of
from instar.record import codec, reader
from instar.record.schema import trained, turns, versions
from instar.types import BASE_VERSION, Turn, Version

T = TypeVar("T")

_CHUNK = 500
"""Values in one IN list; SQLite takes a thousand."""


def find(
    connection: sa.Connection, owner: str | None = None, *, names: Collection[str] | None = None
) -> list[Version]:
    """Versions with their turns, each owner's oldest first."""
    query = sa.select(versions).order_by(versions.c.owner, versions.c.number)
    lineage = sa.select(trained).order_by(trained.c.place)
    if owner is not None:
        query = query.where(versions.c.owner == owner)
        lineage = lineage.where(trained.c.owner == owner)
    if names is not None:
        query = query.where(versions.c.name.in_(names))
        lineage = lineage.where(trained.c.version.in_(names))
    by_version: dict[tuple[str, str], list[str]] = {}
    for row in connection.execute(lineage):
        by_version.setdefault((row.owner, row.version), []).append(row.turn)
    return [
        decode(row, by_version.get((row["owner"], row["name"]), ()))
        for row in connection.execute(query).mappings()
    ]


def one(connection: sa.Connection, owner: str, name: str) -> Version | None:
    found = find(connection, owner, names=[name])
    return found[0] if found else None


def live(connection: sa.Connection) -> dict[str, Version]:
    """Each owner's live version, without its turns: asked ten times a second."""
    # The literal, not a bound value: only then do both databases use the partial index.
    query = sa.select(versions).where(sa.text("state = 'live'"))
    found = connection.execute(query).mappings().all()
    return {row["owner"]: decode(row, ()) for row in found}


def live_name(connection: sa.Connection, owner: str) -> str:
    query = sa.select(versions.c.name).where(versions.c.owner == owner, sa.text("state = 'live'"))
    return connection.scalar(query) or BASE_VERSION


def encode(version: Version, number: int) -> dict[str, Any]:
    return {
        "owner": version.owner,
        "name": version.name,
        "number": number,
        "parent": version.parent,
        "state": version.state,
        "folder": version.folder,
        "created": version.created,
        "tainted": int(version.tainted),
        "kept": int(version.kept),
        "pruned": int(version.pruned),
        "about": codec.pack_json([version.metrics, version.config]),
        "gate": None if version.gate is None else codec.pack_json(version.gate),
    }


def decode(row: Mapping[Any, Any], turn_ids: Iterable[str]) -> Version:
    metrics, config = codec.unpack_json(row["about"])
    return Version(
        name=row["name"],
        owner=row["owner"],
        parent=row["parent"],
        state=row["state"],
        folder=row["folder"],
        turns=tuple(turn_ids),
        metrics=metrics,
        config=config,
        gate=None if row["gate"] is None else codec.unpack_json(row["gate"]),
        created=row["created"],
        tainted=bool(row["tainted"]),
        kept=bool(row["kept"]),
        pruned=bool(row["pruned"]),
    )


def ancestry(known: Mapping[str, Version], name: str) -> list[Version]:
    """A version and all it came from, newest first; ends before the base."""
    line: list[Version] = []
    while name != BASE_VERSION and name in known and len(line) <= len(known):
        line.append(known[name])
        name = known[name].parent
    return line


def offspring(known: Mapping[str, Version], names: Collection[str]) -> list[str]:
    """These versions and all that came from them, oldest first."""
    return [name for name in known if any(one.name in names for one in ancestry(known, name))]


def last_good(line: Iterable[Version]) -> str:
    """The first of these that may serve, or the base."""
    good = (v.name for v in line if not (v.tainted or v.pruned or v.state == "rejected"))
    return next(good, BASE_VERSION)


def trained_by(connection: sa.Connection, owner: str, names: Collection[str]) -> list[str]:
    """Turns that trained one of these versions, in the order of training."""
    query = (
        sa.select(trained.c.turn)
        .join(
            versions,
            (versions.c.owner == trained.c.owner) & (versions.c.name == trained.c.version),
        )
        .where(trained.c.owner == owner, trained.c.version.in_(names))
        .order_by(versions.c.number, trained.c.place)
    )
    return list(connection.scalars(query))


def among_trained(
    connection: sa.Connection, owner: str, ids: Collection[str], names: Collection[str] | None
) -> set[str]:
    """Which of these turns trained one of the named versions, or any at all."""
    found: set[str] = set()
    for part in chunks(list(ids)):
        query = sa.select(trained.c.turn).where(trained.c.owner == owner, trained.c.turn.in_(part))
        if names is not None:
            query = query.where(trained.c.version.in_(names))
        found |= set(connection.scalars(query))
    return found


def sessions_of(connection: sa.Connection, owner: str, ids: Collection[str]) -> dict[str, str]:
    """The session of each of these turns that is still there."""
    found: dict[str, str] = {}
    for part in chunks(list(ids)):
        mine = (turns.c.owner == owner) & turns.c.id.in_(part)
        query = sa.select(turns.c.id, turns.c.session).where(mine)
        found |= {row.id: row.session for row in connection.execute(query)}
    return found


def held_out(
    connection: sa.Connection,
    owner: str,
    share: float,
    limit: int,
    praised: bool = False,
    longest: int | None = None,
) -> list[Turn]:
    """The newest of the share that is never trained on, oldest first: corrected or praised.

    Those of more tokens than `longest` are passed over.
    """
    what = sa.text("score IS NOT NULL AND score > 0" if praised else "hint IS NOT NULL")
    query = (
        sa.select(turns.c.seq, turns.c.id, *length_columns())
        .where(what, may_train(owner), is_talk(), ~is_trained())
        .order_by(turns.c.seq.desc())
    )
    seqs: list[int] = []
    for seq, name, *length in connection.execute(query):
        if share_of(name) < share and (longest is None or tokens(*length) <= longest):
            seqs.append(seq)
        if len(seqs) == limit:
            break
    return reader.turns_by_seq(connection, seqs)


def told(connection: sa.Connection, owner: str, names: Collection[str], limit: int) -> list[Turn]:
    """The newest turns with a hint or praise that trained one of these versions, oldest first."""
    query = (
        _in_versions(owner, names)
        .where(is_telling(), may_train(owner), is_talk())
        .order_by(turns.c.seq.desc())
        .limit(limit)
    )
    return reader.turns_by_seq(connection, list(connection.scalars(query)))


def turns_in(connection: sa.Connection, owner: str, name: str) -> list[Turn]:
    """The turns that trained a version directly and are still there, oldest first."""
    query = _in_versions(owner, [name])
    return reader.turns_by_seq(connection, list(connection.scalars(query)))


def _in_versions(owner: str, names: Collection[str]) -> sa.Select[tuple[int]]:
    return (
        sa.select(turns.c.seq)
        .join(trained, (trained.c.owner == turns.c.owner) & (trained.c.turn == turns.c.id))
        .where(trained.c.owner == owner, trained.c.version.in_(names))
    )


def length_columns() -> tuple[sa.ColumnElement[Any], ...]:
    """What `tokens` wants to know of a row: its blobs stay where they are."""
    out: list[sa.ColumnElement[Any]] = [turns.c.prefix_len]
    for blob in (turns.c.prompt, turns.c.sampled):
        head = sa.func.substr(blob, 1, codec.HEAD)
        out += [sa.type_coerce(head, sa.LargeBinary), sa.func.length(blob)]
    return tuple(out)


def tokens(prefix: int, prompt: bytes, prompt_size: int, sampled: bytes, sampled_size: int) -> int:
    """Of a turn's prompt and reply together."""
    return prefix + codec.count(prompt, prompt_size) + codec.count(sampled, sampled_size)


def may_train(owner: str) -> sa.ColumnElement[bool]:
    return (turns.c.owner == owner) & (turns.c.kind == "main") & (turns.c.no_train == 0)


def is_telling() -> sa.ColumnElement[bool]:
    """A hint or praise: what a version can be measured by."""
    return turns.c.hint.is_not(None) | (turns.c.score > 0)


def is_talk() -> sa.ColumnElement[bool]:
    """Turns of attempts at tasks are trained by the group, and only once that is complete."""
    return turns.c.group_id.is_(None)


def is_trained() -> sa.ColumnElement[bool]:
    mine = (trained.c.owner == turns.c.owner) & (trained.c.turn == turns.c.id)
    return sa.exists().where(mine)


def chunks(values: Sequence[T]) -> Iterable[Sequence[T]]:
    """As many as may be in one IN list."""
    return (values[at : at + _CHUNK] for at in range(0, len(values), _CHUNK))
