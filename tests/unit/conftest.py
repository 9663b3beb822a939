"""A store on each database that is at hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from store_turns import DATABASES, POSTGRES, database_url

from instar.record.store import TurnStore, open_store

collect_ignore = [] if POSTGRES else ["test_store_postgres.py"]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with database_url(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def store(url: str) -> AsyncIterator[TurnStore]:
    async with open_store(url, commit_timeout_s=30) as opened:
        yield opened
