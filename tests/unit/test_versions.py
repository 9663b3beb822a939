"""The files of versions: whole or not there, and refused by name once they are damaged."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from instar.errors import ModelError
from instar.publish.versions import ADAPTER, MANIFEST, VersionFiles, engine_name, safe
from instar.record.store import open_store
from instar.record.versions import VersionBook
from instar.types import Version

V1 = Version(
    name="v1",
    owner="anna",
    parent="base",
    state="candidate",
    folder="anna/v1",
    turns=("t1", "t2"),
    metrics={"loss": 0.25},
    config={"lora_rank": 16},
    created=1000.0,
)


def fill(folder: Path) -> None:
    (folder / ADAPTER[0]).write_text('{"r": 16}')
    (folder / ADAPTER[1]).write_bytes(bytes(range(256)) * 64)


@pytest.fixture
def files(tmp_path: Path) -> VersionFiles:
    return VersionFiles(tmp_path / "versions")


def test_a_version_is_read_as_it_was_written(files: VersionFiles) -> None:
    written = files.write(V1, fill)
    assert files.read("anna", "v1") == written
    assert written.version == V1
    assert set(written.files) == set(ADAPTER)
    shown = json.loads((files.folder("anna", "v1") / MANIFEST).read_text())
    assert shown["parent"] == "base" and shown["turns"] == ["t1", "t2"]
    assert [path.name for path in (files.root / "anna").iterdir()] == ["v1"]


def test_the_gates_report_is_kept_beside_the_weights(files: VersionFiles) -> None:
    files.write(V1, fill)
    files.annotate(replace(V1, state="rejected", gate={"accepted": False}))
    found = files.read("anna", "v1").version
    assert (found.state, found.gate) == ("rejected", {"accepted": False})
    assert found.turns == V1.turns


def spoil_bytes(folder: Path) -> None:
    with (folder / ADAPTER[1]).open("r+b") as file:
        file.seek(700)
        file.write(b"\xff")


def rewrite(folder: Path, **changes: Any) -> None:
    found = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**found, **changes}))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (spoil_bytes, "adapter_model.safetensors is not the file"),
        (lambda f: (f / ADAPTER[0]).unlink(), "adapter_config.json cannot be read"),
        (lambda f: (f / ADAPTER[1]).write_bytes(b""), "is not the file"),
        (lambda f: (f / MANIFEST).unlink(), "manifest.json cannot be read"),
        (lambda f: (f / MANIFEST).write_text('{"format": 1,'), "is no manifest"),
        (lambda f: (f / MANIFEST).write_text("[]"), "is no manifest"),
        (lambda f: (f / MANIFEST).write_text("[" * 5000), "is no manifest"),
        (lambda f: rewrite(f, config=None), "is no manifest.*object for config"),
        (lambda f: (f / MANIFEST).write_text('{"format": 9}'), "is no manifest"),
        (lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe"), "cannot be read"),
        (lambda f: f.rename(f.with_name("v2")), "cannot be read"),
    ],
)
def test_a_damaged_version_is_refused_by_name(files: VersionFiles, spoil: Any, why: str) -> None:
    files.write(V1, fill)
    spoil(files.folder("anna", "v1"))
    with pytest.raises(ModelError, match=f"Version v1 of anna is damaged: .*{why}"):
        files.read("anna", "v1")


def test_a_manifest_of_another_version_is_refused(files: VersionFiles) -> None:
    files.write(V1, fill)
    files.folder("anna", "v1").rename(files.folder("anna", "v2"))
    with pytest.raises(ModelError, match=r"Version v2 of anna is damaged.*that of v1 of anna"):
        files.read("anna", "v2")
    text = (files.folder("anna", "v2") / MANIFEST).read_text()
    short = {**json.loads(text), "name": "v2", "files": {}}
    (files.folder("anna", "v2") / MANIFEST).write_text(json.dumps(short))
    with pytest.raises(ModelError, match=r"names no adapter_config\.json"):
        files.read("anna", "v2")


def test_a_failed_write_leaves_nothing(files: VersionFiles) -> None:
    def half(folder: Path) -> None:
        (folder / ADAPTER[0]).write_text("{}")

    def fails(folder: Path) -> None:
        half(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match=r"without adapter_model\.safetensors"):
        files.write(V1, half)
    with pytest.raises(ModelError, match=r"v1 of anna cannot be written.*No space left"):
        files.write(V1, fails)
    assert list((files.root / "anna").iterdir()) == []


def test_what_the_store_does_not_know_is_swept_and_replaced(files: VersionFiles) -> None:
    files.write(V1, lambda folder: (fill(folder), (folder / "extra").write_text("x")))
    files.write(V1, fill)
    assert set(files.read("anna", "v1").files) == set(ADAPTER)
    files.write(replace(V1, name="v2"), fill)
    (files.root / "anna" / ".v3.1234").mkdir()
    assert files.sweep([("anna", "v1")]) == ["anna/.v3.1234", "anna/v2"]
    files.read("anna", "v1")
    files.remove("anna", "v1")
    files.remove("anna", "v1")
    assert list((files.root / "anna").iterdir()) == []
    assert VersionFiles(files.root / "none").sweep([]) == []


@runs(deadline=None)
@given(st.lists(st.text(min_size=1), min_size=2, max_size=2, unique=True))
def test_owners_never_share_a_folder(owners: list[str]) -> None:
    names = [safe(owner) for owner in owners]
    assert names[0] != names[1]
    for name in names:
        assert "/" not in name and not name.startswith(".") and name not in ("", ".", "..")
        assert ":" not in name and name.isprintable() and name.isascii()


@pytest.mark.parametrize("name", ["base", "", "..", "../v1", ".v1"])
def test_a_name_that_is_no_version_has_no_folder(files: VersionFiles, name: str) -> None:
    with pytest.raises(ModelError, match="expected one such as v3"):
        files.folder("anna", name)
    assert engine_name("a b", "v1") == "a%20b/v1"
    assert engine_name("anna", "base") == "base"


PUBLISHER = """
import asyncio, os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store_turns import make_turn
from instar.publish.versions import VersionFiles
from instar.record.store import open_store
from instar.record.versions import VersionBook
from instar.types import Version
from test_versions import ADAPTER

def fill(folder):
    (folder / ADAPTER[0]).write_text("{}")
    with (folder / ADAPTER[1]).open("wb") as file:
        for _ in range(8):
            file.write(os.urandom(4096))

async def main(home):
    files = VersionFiles(home / "versions")
    async with open_store(f"sqlite:///{home}/instar.db") as store:
        book = VersionBook(store)
        files.sweep([(v.owner, v.name) for v in await book.versions() if not v.pruned])
        print("ready", flush=True)
        while True:
            name, parent = await book.reserve("anna"), await book.live_name("anna")
            await store.record(make_turn(f"t-{name}"))
            version = Version(name=name, owner="anna", parent=parent, state="candidate",
                              folder=f"anna/{name}", turns=(f"t-{name}",))
            files.write(version, fill)
            assert await book.add(version)
            await book.promote("anna", name, instead_of=parent)
            for old in await book.prune("anna", keep=2):
                files.remove(old.owner, old.name)
            print(name, flush=True)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_killed_at_any_moment_no_half_written_version_is_seen(tmp_path: Path) -> None:
    chance = random.Random(11)
    published: list[str] = []
    for _ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, str(tmp_path), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 6)):
                line = child.stdout.readline().strip()
                published += [line] if line.startswith("v") else []
            with_luck = chance.random() * 0.05
            try:
                child.wait(with_luck)
            except subprocess.TimeoutExpired:
                os.kill(child.pid, signal.SIGKILL)
            published += [x.strip() for x in child.stdout if x[0] == "v" and x.endswith("\n")]
        asyncio.run(check(tmp_path, published))
    assert len(published) >= 5


async def check(home: Path, published: list[str]) -> None:
    files = VersionFiles(home / "versions")
    async with open_store(f"sqlite:///{home}/instar.db") as store:
        book = VersionBook(store)
        versions = await book.versions("anna")
        known = {one.name: one for one in versions}
        assert set(published) <= known.keys()
        assert sum(one.state == "live" for one in versions) <= 1
        for one in versions:
            if not one.pruned:
                assert files.read("anna", one.name).version.turns == one.turns
        line = await book.turns("anna", await book.live_name("anna"))
        assert len(line) == len(set(line))
        if published:
            assert await book.live_name("anna") == versions[-1].name or (
                versions[-1].state == "candidate"
            )
    visible = list((files.root / "anna").glob("[!.]*")) if files.root.exists() else []
    for folder in visible:
        files.read("anna", folder.name)
