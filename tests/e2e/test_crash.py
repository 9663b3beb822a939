"""`instar up` with its processes killed and its files damaged; `make test-crash` kills more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from aftermath import check
from kills import OWNER, PATIENCE_S, Client, Fleet, kill_often, talking, until

from instar.publish.versions import ADAPTER, VersionFiles
from instar.record.store import open_store
from instar.record.versions import VersionBook


async def test_killed_processes_come_back_and_nothing_is_lost(tmp_path: Path) -> None:
    run = await kill_often(tmp_path, layout="up", kills=4, seed=3)
    await check(run)
    await damaged_versions_are_passed_over(run.fleet)


async def damaged_versions_are_passed_over(fleet: Fleet) -> None:
    """The live version loses a byte while nothing runs: the one before it serves, and says why."""
    async with open_store(f"sqlite:///{fleet.home / 'instar.db'}") as store:
        book = VersionBook(store)
        live = await book.live_name(OWNER)
        line = [one.name for one in await book.line(OWNER, live)]
    folder = VersionFiles.of_home(fleet.home).folder(OWNER, live)
    weights = folder / ADAPTER[1]
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    client = Client(fleet.address, Random(0))
    fleet.start()
    try:
        async with talking(client, 1):
            await until(lambda: len(client.answered) > 1, PATIENCE_S)
        await fleet.stop()
    finally:
        await asyncio.to_thread(fleet.end)
    served = {answer["version"] for answer in client.answered.values()}
    # Learning goes on from the state beside it, so a sound descendant may serve by now.
    assert live not in served
    assert served & {*line[1:2], "base"}
    assert f"Version {live} of {OWNER} is damaged" in (fleet.home / "up.log").read_text()
