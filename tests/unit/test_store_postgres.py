"""What only a database server can do to the store."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from store_turns import database_url, make_turn

from instar.record.store import open_store


async def test_a_server_that_drops_its_clients_is_reached_again(tmp_path: Path) -> None:
    drop = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with database_url("postgres", tmp_path) as url:
        engine = sa.create_engine(url)
        async with open_store(url, commit_timeout_s=30) as store:
            for number in range(5):
                assert await store.record(make_turn(f"t{number}"))
                with engine.connect() as connection:
                    connection.exec_driver_sql(drop)
                assert len(await store.turns("anna", "s1")) == number + 1
            assert store.health()["lost"] == 0
        engine.dispose()
