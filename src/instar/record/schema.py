"""The tables, and opening a database that holds them.

One row of `meta` carries the schema's version, the last turn number given out and an epoch.
Every writer updates that row first, so writers take turns on both SQLite and PostgreSQL,
turn numbers follow the order of commits, and a writer whose epoch is old drops its caches.
"""

from __future__ import annotations

import sqlalchemy as sa

from instar.errors import StoreError

VERSION = 4
"""Raised with every change to the tables that older code could not read."""

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
)
"""`epoch` is raised when recorded turns change or vanish."""

owners = sa.Table(
    "owners",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("sessions", sa.BigInteger, nullable=False),
    sa.Column("turns", sa.BigInteger, nullable=False),
    sa.Column("sampled_tokens", sa.BigInteger, nullable=False),
)
"""Running totals: counting a million turns would take seconds."""

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),
    sa.Column("turns", sa.BigInteger, nullable=False),
    sa.Column("side_turns", sa.BigInteger, nullable=False),
    sa.Column("sampled_tokens", sa.BigInteger, nullable=False),
    sa.Column("closed_at", sa.Double),
    sa.Column("title", sa.Text, nullable=False),
    sa.Index("sessions_by_time", "updated", "owner", "id"),
    sa.Index("sessions_by_owner", "owner", "updated", "id"),
)

turns = sa.Table(
    "turns",
    metadata,
    # SQLite makes only an INTEGER key an alias of its row number.
    sa.Column(
        "seq",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=False,
    ),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("parent", sa.Text),
    sa.Column("extends", sa.SmallInteger, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("kind_reason", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("finish", sa.Text, nullable=False),
    sa.Column("no_train", sa.SmallInteger, nullable=False),
    sa.Column("logprobs_scaled", sa.SmallInteger, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("settings", sa.LargeBinary, nullable=False),
    sa.Column("anchors", sa.LargeBinary, nullable=False),
    # The prompt is the first prefix_len ids of turn prefix_seq (prompt and reply), then
    # `prompt`; the messages are its first prefix_messages (with its reply), then those in `body`.
    sa.Column("prefix_seq", sa.BigInteger),
    sa.Column("prefix_len", sa.BigInteger, nullable=False),
    sa.Column("prefix_messages", sa.Integer, nullable=False),
    sa.Column("depth", sa.Integer, nullable=False),
    sa.Column("prompt", sa.LargeBinary, nullable=False),
    sa.Column("sampled", sa.LargeBinary, nullable=False),
    sa.Column("logprobs", sa.LargeBinary, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("tools", sa.LargeBinary),
    sa.Column("next_state", sa.LargeBinary),
    sa.Column("score", sa.SmallInteger),
    sa.Column("votes", sa.LargeBinary),
    sa.Column("verdict_source", sa.Text),
    sa.Column("hint", sa.LargeBinary),
    # 1 while the turn waits for the judge; kept by hand so that a small index holds them all.
    sa.Column("ready", sa.SmallInteger, nullable=False),
    sa.Column("group_id", sa.Text),
    sa.Column("run", sa.Text),
    sa.Index("turns_by_session", "owner", "session", "seq"),
    sa.Index(
        "turns_ready",
        "seq",
        sqlite_where=sa.text("ready = 1"),
        postgresql_where=sa.text("ready = 1"),
    ),
    sa.Index(
        "turns_ready_by_owner",
        "owner",
        "seq",
        sqlite_where=sa.text("ready = 1"),
        postgresql_where=sa.text("ready = 1"),
    ),
    sa.Index(
        "turns_judged",
        "owner",
        "seq",
        sqlite_where=sa.text("score IS NOT NULL"),
        postgresql_where=sa.text("score IS NOT NULL"),
    ),
    sa.Index(
        "turns_hinted",
        "owner",
        "seq",
        sqlite_where=sa.text("hint IS NOT NULL"),
        postgresql_where=sa.text("hint IS NOT NULL"),
    ),
)

anchors = sa.Table(
    "anchors",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("hash", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)

tools = sa.Table(
    "tools",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("session", sa.Text, primary_key=True),
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)
"""Kept by session, so that forgetting one leaves nothing behind."""

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("revoked", sa.Double),
)

versions = sa.Table(
    "versions",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("parent", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("folder", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("tainted", sa.SmallInteger, nullable=False),
    sa.Column("kept", sa.SmallInteger, nullable=False),
    sa.Column("pruned", sa.SmallInteger, nullable=False),
    sa.Column("about", sa.LargeBinary, nullable=False),
    sa.Column("gate", sa.LargeBinary),
    # At most one live version an owner, whoever writes.
    sa.Index(
        "versions_live",
        "owner",
        unique=True,
        sqlite_where=sa.text("state = 'live'"),
        postgresql_where=sa.text("state = 'live'"),
    ),
)
"""`about` holds metrics and config. An owner without a live row is served by the base."""

trained = sa.Table(
    "trained",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, primary_key=True),
    sa.Column("turn", sa.Text, primary_key=True),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("place", sa.Integer, nullable=False),
    sa.Index("trained_by_turn", "owner", "turn"),
    sa.Index("trained_by_session", "owner", "session"),
)
"""Which turns trained a version directly. Names only, so a row may outlive its turn."""

rebuilds = sa.Table(
    "rebuilds",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("start", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("finished", sa.Double),
    sa.Column("result", sa.Text),
)
"""Versions to train again without what was forgotten; `start` is where their line is clean."""

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("session", sa.Text, primary_key=True),
    sa.Column("environment", sa.Text, nullable=False),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("group_id", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("reward", sa.Double),
    sa.Column("about", sa.LargeBinary, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("used", sa.Text),
    # Whoever writes: no attempt counts twice.
    sa.Index("attempts_once", "owner", "group_id", "number", unique=True),
    sa.Index("attempts_by_run", "owner", "run"),
    sa.Index(
        "attempts_unused",
        "owner",
        "created",
        sqlite_where=sa.text("used IS NULL"),
        postgresql_where=sa.text("used IS NULL"),
    ),
)
"""Attempts at tasks that are over. `about` holds turns and details.

`used` says what became of one: a version's name, or why it trains none.
"""

controls = sa.Table(
    "controls",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Double, nullable=False),
)
"""Switches and counters: `paused` (since when; owner '' is everybody), `last_version`, and how many
judged turns are passed over (`passed_over:` and why)."""


def prepare(*, writer: sa.Engine, reader: sa.Engine) -> None:
    """Create the tables in an empty database; refuse one that a newer instar has written.

    A store of this version is only read, so that opening it never waits for another's lock.
    """
    if not sa.inspect(reader).has_table(meta.name):
        with writer.begin() as connection:
            if connection.dialect.name == "postgresql":
                # Two processes may start at once; CREATE IF NOT EXISTS alone would race.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(0x1257A2)))
            metadata.create_all(connection)
            if connection.scalar(sa.select(meta.c.id)) is None:
                first = {"id": 1, "version": VERSION, "last_seq": 0, "epoch": 0}
                connection.execute(sa.insert(meta).values(first))
    with reader.connect() as connection:
        found = connection.scalar(sa.select(meta.c.version))
    if found is not None and found < VERSION:
        with writer.begin() as connection:
            found = _migrate(connection)
    if found is None or found > VERSION:
        raise StoreError(
            f"The store {reader.url.render_as_string()} has schema version {found}, but this "
            f"instar reads versions up to {VERSION}. Upgrade instar, or use another store."
        )


def _migrate(connection: sa.Connection) -> int:
    """Bring an older store up to date, in one transaction. Returns the version it then has."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(0x1257A2)))
    found: int = connection.execute(sa.select(meta.c.version)).scalar_one()
    if found < 2:
        # Version 2 adds tables and indexes, and changes none that there were.
        metadata.create_all(connection)
        for index in turns.indexes:
            index.create(connection, checkfirst=True)
        found = 2
    if found == 2:
        # Version 3 adds attempts at tasks, and to turns the group that they belong to.
        metadata.create_all(connection)
        connection.execute(sa.text("ALTER TABLE turns ADD COLUMN group_id TEXT"))
        found = 3
    if found == 3:
        # Version 4 adds to turns the run of their client that they belong to.
        connection.execute(sa.text("ALTER TABLE turns ADD COLUMN run TEXT"))
        found = 4
    connection.execute(sa.update(meta).values(version=found))
    return found
