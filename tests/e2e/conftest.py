"""Gateways for tests: `system` in this process, `served` in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from gate import Gate, Served, fake_settings, gate


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[Gate]:
    """A gateway without a socket whose replies are made up."""
    async with gate(tmp_path) as opened:
        yield opened


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Callable[..., Served]]:
    """Makes `instar serve` processes over the fake engine; what still runs is ended."""
    made: list[Served] = []

    def make(*options: str, script: Any = (), **settings: Any) -> Served:
        sets = fake_settings(tmp_path, script, **settings)
        made.append(Served(tmp_path, sets, options=list(options)))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None:
            one.kill()
