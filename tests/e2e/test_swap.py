"""Versions go live while replies go on: followed from the store, an owner at a time."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from gate import MODEL, Gate, Served, body, gate, problem, until

from instar.publish.versions import ADAPTER, VersionFiles
from instar.record.keys import Keys
from instar.record.store import open_store
from instar.record.versions import VersionBook
from instar.types import Version


def fill(folder: Path) -> None:
    (folder / ADAPTER[0]).write_text("{}")
    (folder / ADAPTER[1]).write_bytes(b"weights")


class Publisher:
    """What a trainer does, without the training."""

    def __init__(self, system: Gate, home: Path) -> None:
        self.book = VersionBook(system.system.store)
        self.files = VersionFiles(home / "versions")
        self.follower = system.system.versions

    async def publish(self, owner: str = "local", *, live: bool = True) -> str:
        name, parent = await self.book.reserve(owner), await self.book.live_name(owner)
        version = Version(
            name=name, owner=owner, parent=parent, state="candidate", folder=f"{owner}/{name}"
        )
        self.files.write(version, fill)
        assert await self.book.add(version)
        if live:
            await self.book.promote(owner, name, instead_of=parent)
        return name

    async def followed(self, name: str, owner: str = "local") -> None:
        await until(lambda: self.follower.live(owner) == name)


@pytest.fixture
async def press(system: Gate, tmp_path: Path) -> AsyncIterator[Publisher]:
    yield Publisher(system, tmp_path)


async def version_of_next_turn(system: Gate, **headers: str) -> str:
    answer = await system.post(body("Hello"), **headers)
    assert answer.status_code == 200, answer.text
    owner = "local" if not headers else headers["owner"]
    return (await system.all_turns(owner))[0].version


async def test_the_live_version_of_the_store_is_served(system: Gate, press: Publisher) -> None:
    assert await version_of_next_turn(system) == "base"
    await press.publish()
    await press.followed("v1")
    assert await version_of_next_turn(system) == "v1"
    assert system.system.engine.info.live == "base"
    await press.publish()
    await press.followed("v2")
    assert await version_of_next_turn(system) == "v2"
    await until(lambda: system.system.engine.info.versions == ("base", "local/v2"))
    await press.book.rollback("local")
    await press.followed("v1")
    await press.book.promote("local", "base")
    await press.followed("base")
    assert await version_of_next_turn(system) == "base"
    assert system.system.versions.summary() == "base"


async def test_a_reply_under_way_keeps_its_version(tmp_path: Path) -> None:
    long = {"text": "word " * 160}
    async with gate(tmp_path, [long, long], engine__delay_ms=5) as system:
        press = Publisher(system, tmp_path)
        await press.publish()
        await press.follower.step()
        request = body("Tell me", stream=True)
        task = asyncio.ensure_future(system.post(request, x_session_id="old"))
        await until(lambda: system.running == 1)
        await press.publish()
        await press.follower.step()
        assert press.follower.live("local") == "v2"
        assert task.done() or "local/v1" in system.system.engine.info.versions
        await system.post(request, x_session_id="new")
        await task
        assert (await system.turns("old"))[0].version == "v1"
        assert (await system.turns("new"))[0].version == "v2"
        await until(lambda: system.system.engine.info.versions == ("base", "local/v2"))


async def test_no_request_is_dropped_or_paused_by_many_swaps(
    system: Gate, press: Publisher
) -> None:
    stop = asyncio.Event()

    async def talk(number: int) -> int:
        count = 0
        while not stop.is_set():
            await system.ask(f"Hello {number} {count}")
            count += 1
        return count

    talkers = [asyncio.ensure_future(talk(number)) for number in range(4)]
    for _ in range(3):
        await press.followed(await press.publish())
    stop.set()
    assert min(await asyncio.gather(*talkers)) > 0
    assert await version_of_next_turn(system) == "v3"


async def test_owners_have_versions_of_their_own(system: Gate, press: Publisher) -> None:
    keys = Keys(system.system.store)
    _, anna = await keys.create_key("anna")
    _, ben = await keys.create_key("ben/../x")
    await press.publish("anna")
    await press.publish("anna")
    await press.publish("ben/../x")
    await press.followed("v2", "anna")
    await press.followed("v1", "ben/../x")

    async def ask(key: str, model: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        request = {**body("Hi"), "model": model}
        return await system.http.post("/v1/chat/completions", json=request, headers=headers)

    assert (await ask(anna, MODEL)).status_code == 200
    assert (await ask(ben, MODEL)).status_code == 200
    assert (await system.all_turns("anna"))[0].version == "v2"
    assert (await system.all_turns("ben/../x"))[0].version == "v1"
    # By name only what is one's own: an older version is loaded for it, and base is everybody's.
    assert (await ask(anna, f"{MODEL}:v1")).status_code == 200
    assert (await ask(anna, f"{MODEL}:base")).status_code == 200
    assert [t.version for t in await system.all_turns("anna")] == ["base", "v1", "v2"]
    for wanted in ("v2", "anna/v2", "ben%2F%2E%2E%2Fx/v1", "v9", ""):
        refused = await ask(ben, f"{MODEL}:{wanted}")
        assert refused.status_code == 404, wanted
        assert refused.json()["error"]["code"] == "model_not_found"
    listed = await system.http.get("/v1/models", headers={"authorization": f"Bearer {ben}"})
    names = [one["id"] for one in listed.json()["data"]]
    assert names == [MODEL, f"{MODEL}:base", f"{MODEL}:v1"]
    for name, status in ((MODEL, 200), (f"{MODEL}:v1", 200), (f"{MODEL}:v2", 404), ("no/one", 404)):
        one = await system.http.get(
            f"/v1/models/{name}", headers={"authorization": f"Bearer {ben}"}
        )
        assert one.status_code == status, name
        assert one.json() in listed.json()["data"] if status == 200 else problem(one, 404)


async def test_a_damaged_version_is_refused_and_the_last_good_one_stays(
    system: Gate, press: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    await press.publish()
    await press.followed("v1")
    name = await press.publish(live=False)
    (press.files.folder("local", name) / ADAPTER[1]).write_bytes(b"other")
    await press.book.promote("local", name)
    with caplog.at_level(logging.ERROR):
        await until(lambda: press.follower.failures == 1)
    assert "Version v2 of local is damaged" in caplog.text
    assert await version_of_next_turn(system) == "v1"
    assert "cannot be loaded" in press.follower.summary()
    assert await system.metric("instar_version_load_failures") == 1
    refused = await system.post({**body("Hi"), "model": f"{MODEL}:{name}"})
    assert refused.status_code == 404
    assert "Version v2 of local is damaged" in refused.json()["error"]["message"]
    await press.publish(live=False)
    await press.book.promote("local", "v3")
    await press.followed("v3")
    assert press.follower.problems == {}


async def test_after_a_restart_the_nearest_good_ancestor_serves(tmp_path: Path) -> None:
    async with gate(tmp_path) as system:
        press = Publisher(system, tmp_path)
        for _ in range(3):
            await press.publish()
    for broken in ("v2", "v3"):
        (press.files.folder("local", broken) / "manifest.json").write_text("{")
    async with gate(tmp_path) as system:
        assert await version_of_next_turn(system) == "v1"
        assert list(system.system.versions.problems) == ["local"]
    (press.files.folder("local", "v1") / ADAPTER[0]).unlink()
    async with gate(tmp_path) as system:
        assert await version_of_next_turn(system) == "base"


class FullEngine:
    """Wraps an engine that has room for two adapters."""

    def __init__(self, engine: object) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def load(self, version: str, folder: Path) -> None:
        from instar.errors import RequestError

        if len(self._engine.info.versions) >= 3 and version not in self._engine.info.versions:
            raise RequestError("2 versions are resident, which is all", status=409)
        await self._engine.load(version, folder)


async def test_a_full_engine_makes_room_and_brings_versions_back(
    system: Gate, press: Publisher
) -> None:
    follower = press.follower
    follower._engine = FullEngine(follower._engine)
    owners = ["anna", "ben", "cleo"]
    for owner in owners:
        await press.publish(owner)
    for owner in owners:
        await press.followed("v1", owner)
    for owner in [*owners, *owners]:
        async with follower.use(owner, None) as (name, weights):
            assert (name, weights) == ("v1", f"{owner}/v1")
            assert weights in system.system.engine.info.versions
    assert len(system.system.engine.info.versions) == 3


async def test_a_call_waits_until_there_is_room_for_its_version(
    system: Gate, tmp_path: Path
) -> None:
    press, asks = await full_of_two(system, tmp_path)
    async with press.follower.use("ben", None):
        async with press.follower.use("anna", None):
            held = [asyncio.ensure_future(asks("hello", "cleo", name)) for name in ("", ":v1")]
            await until(lambda: system.system.server.running == 2)
            # While she waits, her next version goes live: it finds no room either, and is no
            # reason to serve her from the base.
            await press.publish("cleo")
            await until(lambda: "cleo" in press.follower.problems)
            assert press.follower.live("cleo") == "v1"
            assert not any(task.done() for task in held)
        for answer in await asyncio.gather(*held):
            assert answer.status_code == 200, answer.text
    assert "base" not in [turn.version for turn in await system.all_turns("cleo")]
    await press.followed("v2", "cleo")


async def test_a_call_that_found_no_room_in_time_may_come_back(tmp_path: Path) -> None:
    async with gate(tmp_path, gateway__hold_s=0.1) as system:
        press, asks = await full_of_two(system, tmp_path)
        async with press.follower.use("anna", None), press.follower.use("ben", None):
            for model in ("", ":v1"):
                answer = await asks("hello", "cleo", model)
                assert "no room for version v1 within 0.1 s" in problem(answer, 503)["message"]
                assert int(answer.headers["retry-after"]) >= 1
        async with press.follower.use("cleo", None) as (name, _):
            assert name == "v1"


async def full_of_two(
    system: Gate, home: Path
) -> tuple[Publisher, Callable[..., Awaitable[httpx.Response]]]:
    """Three owners with a version each on an engine with room for two, and how to ask as one."""
    press = Publisher(system, home)
    press.follower._engine = FullEngine(press.follower._engine)
    keys = {}
    for owner in ("anna", "ben", "cleo"):
        _, keys[owner] = await Keys(system.system.store).create_key(owner)
        await press.publish(owner)
        await press.followed("v1", owner)

    async def asks(text: str, owner: str, model: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {keys[owner]}"}
        request = {**body(text, stream=True), "model": MODEL + model}
        return await system.http.post("/v1/chat/completions", json=request, headers=headers)

    return press, asks


async def test_a_gateway_follows_what_commands_of_other_processes_do(
    served: Callable[..., Served], tmp_path: Path
) -> None:
    one = served()
    address = await one.start()
    async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
        book, files = VersionBook(store), VersionFiles.of_home(tmp_path)
        for parent in ("base", "v1"):
            name = await book.reserve("local")
            version = Version(
                name=name, owner="local", parent=parent, state="candidate", folder=f"local/{name}"
            )
            files.write(version, fill)
            assert await book.add(version)
            await book.promote("local", name, instead_of=parent)

        async def serves(name: str) -> bool:
            async with httpx.AsyncClient(base_url=address, timeout=30) as client:
                answer = await client.post("/chat/completions", json=body("Hello"))
            assert answer.status_code == 200, answer.text
            newest = (await store.sessions("local", 1))[0]
            return (await store.turns("local", newest.id))[-1].version == name

        await until(lambda: serves("v2"), timeout_s=30)
        command = [sys.executable, "-m", "instar", "versions", "rollback"]
        arguments = [*command, "--home", str(tmp_path), "--json"]
        done = await asyncio.to_thread(
            subprocess.run, arguments, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"owner": "local", "before": "v2", "live": "v1"}
        await until(lambda: serves("v1"), timeout_s=30)
