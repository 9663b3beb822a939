"""`make test-crash`: fifty kills of everything that runs, in both layouts."""

from __future__ import annotations

from pathlib import Path

import pytest
from aftermath import check
from kills import kill_often


@pytest.mark.parametrize(("layout", "kills", "seed"), [("apart", 50, 1), ("up", 25, 2)])
async def test_kills_at_random_points_lose_nothing(
    tmp_path: Path, layout: str, kills: int, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await kill_often(tmp_path, layout=layout, kills=kills, seed=seed)
    found = await check(run)
    with capsys.disabled():
        print(f"\n{layout}, seed {seed}: {found}")
