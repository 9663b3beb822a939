"""A store on each database that is at hand, and no clock for property tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from store_turns import DATABASES, POSTGRES, database_url

from instar.record.store import TurnStore, open_store

# How long an example takes says how busy the machine is, not what the code does.
settings.register_profile("instar", deadline=None)
settings.load_profile("instar")

collect_ignore = [] if POSTGRES else ["test_store_postgres.py"]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with database_url(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def store(url: str) -> AsyncIterator[TurnStore]:
    async with open_store(url, commit_timeout_s=30) as opened:
        yield opened
