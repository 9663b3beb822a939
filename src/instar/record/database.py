"""From a URL to two engines: one that writes, one that only reads."""

from __future__ import annotations

import math
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from instar.errors import StoreError
from instar.record import schema

READERS = 4
"""Threads, and connections, that read at once."""

_LOCK_WAIT_MS = 1000
"""How long one statement waits for another process's lock; the writer then tries again."""


@dataclass(slots=True, kw_only=True)
class Database:
    """An opened database."""

    writer: sa.Engine
    reader: sa.Engine
    path: Path | None = None
    """The file, for SQLite."""
    identity: tuple[int, int] | None = None
    """Device and inode of the file that the writer's connection has open."""

    def check(self) -> None:
        """Raise if the file was removed or replaced since the writer opened it.

        SQLite would go on writing into the file that has no name any more. The next attempt
        opens whatever then lies at the path.
        """
        if self.path is None or self.identity == (found := _identity(self.path)):
            return
        self.forget_connections()
        event = "is gone" if found is None else "was replaced while in use"
        raise StoreError(
            f"The store's file {self.path} {event}. Put it back; turns wait in memory until then."
        )

    def forget_connections(self) -> None:
        self.writer.dispose()
        self.reader.dispose()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_database(url: str, *, wait_s: float) -> Database:
    """Open or create the database and its tables. `wait_s` bounds waiting for a server."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise StoreError(
            f"Found the store URL {url!r}, expected sqlite:///path/to/instar.db or "
            "postgresql+psycopg://user:password@host/database."
        ) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return _open_sqlite(parsed)
    if backend == "postgresql":
        return _open_postgres(parsed, wait_s=wait_s)
    raise StoreError(f"Found a {backend} store URL, expected sqlite or postgresql+psycopg.")


def _open_sqlite(url: sa.URL) -> Database:
    if not url.database or url.database == ":memory:":
        raise StoreError("Found an in-memory store URL, expected a file: turns must outlive us.")
    path = Path(url.database).expanduser().absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Conversations are private: no one else may read a file that we create.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(f"The store {path} cannot be opened: {error}.") from error
    database = Database(
        writer=_sqlite_engine(path, begin="BEGIN IMMEDIATE", size=1),
        reader=_sqlite_engine(path, begin="BEGIN", size=READERS),
        path=path,
    )

    @sa.event.listens_for(database.writer, "connect")
    def _note_identity(_connection: object, _record: object) -> None:
        database.identity = _identity(path)

    return _prepared(database)


def _sqlite_engine(path: Path, *, begin: str, size: int) -> sa.Engine:
    # mode=rw: a connection never brings back, empty, a file that was removed.
    uri = f"file:{quote(str(path))}?mode=rw"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)

    engine = sa.create_engine(
        f"sqlite:///{path}", creator=connect, poolclass=QueuePool, pool_size=size, max_overflow=0
    )

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        for pragma in (
            f"busy_timeout={_LOCK_WAIT_MS}",
            "journal_mode=WAL",
            # FULL: the log is synced with every commit, so a commit outlives a power cut.
            "synchronous=FULL",
            # What is deleted is overwritten, not only unlinked: to forget is a promise.
            "secure_delete=ON",
            "cache_size=-32768",
            "journal_size_limit=67108864",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # IMMEDIATE for writers: a lock taken late can fail where waiting would have helped.
        connection.exec_driver_sql(begin)

    return engine


def _open_postgres(url: sa.URL, *, wait_s: float) -> Database:
    seconds = max(1, math.ceil(wait_s))
    options = {
        "connect_timeout": str(max(2, seconds)),
        # A server that vanished must not hold the writer for TCP's quarter of an hour.
        "tcp_user_timeout": str(1000 * seconds),
        "options": f"-c lock_timeout={_LOCK_WAIT_MS} -c synchronous_commit=on",
    }
    try:
        url = url.set(drivername="postgresql+psycopg")
        engines = [
            sa.create_engine(
                url, connect_args=options, pool_size=size, max_overflow=0, pool_pre_ping=ping
            )
            for size, ping in ((1, False), (READERS, True))
        ]
    except ImportError as error:
        raise StoreError(
            f"A PostgreSQL store needs the driver psycopg ({error}). "
            "Install it with: pip install 'instar[postgres]'."
        ) from error
    return _prepared(Database(writer=engines[0], reader=engines[1], path=None, identity=None))


def _prepared(database: Database) -> Database:
    try:
        schema.prepare(writer=database.writer, reader=database.reader)
    except sa.exc.SQLAlchemyError as error:
        database.forget_connections()
        raise StoreError(
            f"The store {database.writer.url.render_as_string()} cannot be opened: "
            f"{reason(error)}. Check that it is an instar store and that it may be written."
        ) from error
    except StoreError:
        database.forget_connections()
        raise
    return database


def reason(error: BaseException) -> str:
    """The driver's own words, without SQLAlchemy's statement and link."""
    original = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    return str(original or error).strip().rstrip(".") or type(error).__name__
