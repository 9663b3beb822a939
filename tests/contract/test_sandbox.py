"""Every sandbox keeps the same promises, for root and for an ordinary user."""

# ruff: noqa: ASYNC110, ASYNC220, ASYNC221, ASYNC240  (the host itself is what is looked at)

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from sandbox_checks import CHECKS, gone, running, sleeper

from instar.envs import bwrap, cgroups
from instar.envs.sandbox import Limits, Spec, limits_from, open_sandbox
from instar.errors import ConfigError, EnvironmentFailure

OTHER_UID = 12345


def has_docker() -> bool:
    """Whether there is a docker here with the image that sandboxes are made of."""
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "image", "inspect", Spec().image], capture_output=True)
    return asked.returncode == 0


needs_bwrap = pytest.mark.skipif(bwrap.find_bwrap() is None, reason=bwrap.HINT)
BACKENDS = [pytest.param("bwrap", marks=needs_bwrap), *(["docker"] if has_docker() else [])]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_contract(check, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSTAR_SECRET", "of the host")
    await check(partial(open_sandbox, backend=backend))


@needs_bwrap
@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
def test_contract_as_an_ordinary_user(tmp_path: Path) -> None:
    """Without root there are no control groups: ulimits must do."""
    found = bwrap.find_bwrap()
    assert found
    shared = Path("/tmp", f"instar-test-{os.getpid()}")
    shared.mkdir(mode=0o755)
    try:
        shutil.copy(found, shared / "bwrap")
        (shared / "tmp").mkdir()
        os.chown(shared / "tmp", OTHER_UID, OTHER_UID)
        script = Path(__file__).with_name("sandbox_checks.py")
        ran = subprocess.run(
            [sys.executable, str(script), str(OTHER_UID), str(shared / "tmp")],
            env={**os.environ, "PATH": f"{shared}:{os.defpath}", "INSTAR_SECRET": "of the host"},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.split() == list(CHECKS)
    finally:
        shutil.rmtree(shared)


async def test_none_survives_the_kill_of_its_parent(backend: str) -> None:
    """64 sandboxes, each with a busy shell and a daemon: kill -9 of their parent ends them all."""
    mark, count = sleeper(), 64 if backend == "bwrap" else 4
    code = f"""
import asyncio, sys
from contextlib import AsyncExitStack
from instar.envs.sandbox import Spec, open_sandbox
async def main():
    async with AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(open_sandbox(Spec(), {backend!r}))
                 for _ in range({count})]
        await asyncio.gather(*(box.run("setsid sleep {mark} & true") for box in boxes))
        busy = [asyncio.create_task(box.run("sleep {mark}", 600)) for box in boxes]
        await asyncio.sleep(0)
        print("ready", flush=True)
        await asyncio.gather(*busy)
asyncio.run(main())
"""
    line = [sys.executable, "-c", code]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout and parent.stdout.readline() == "ready\n"
        async with asyncio.timeout(30):
            while sum("'sleep" in line for line in running(mark)) < 2 * count:
                await asyncio.sleep(0.02)
        parent.send_signal(signal.SIGKILL)
    await gone(mark)
    stage = Path("/tmp", f"instar-sandbox-{os.geteuid()}")
    assert not stage.exists() or list(stage.iterdir()) == []
    if backend == "bwrap":
        _, found = cgroups.trees()
        async with asyncio.timeout(20):  # the next start removes the empty groups
            while any(list(folder.glob(f"{parent.pid}-*")) for folder in found.values()):
                cgroups.trees.cache_clear()
                cgroups.trees()
                await asyncio.sleep(0.01)


@needs_bwrap
async def test_two_hundred_at_once() -> None:
    before = len(running("instar-sandbox"))
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(10):
            entering = [stack.enter_async_context(open_sandbox(Spec())) for _ in range(20)]
            opened += await asyncio.gather(*entering)
        ran = await asyncio.gather(
            *(box.run(f"echo {at} > f; cat f", 120) for at, box in enumerate(opened))
        )
        assert [one.stdout for one in ran] == [f"{at}\n" for at in range(200)]
        again = await asyncio.gather(*(box.run("cat f", 120) for box in opened))
        assert [one.stdout for one in again] == [f"{at}\n" for at in range(200)]
    assert len(running("instar-sandbox")) == before


@needs_bwrap
async def test_another_root(tmp_path: Path) -> None:
    """A root file system of its own: only what is in it can be run."""
    root = tmp_path / "rootfs"
    programs = [shutil.which(name) for name in ("bash", "cat", "ls")]
    for program in filter(None, programs):
        linked = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        needed = [word for word in linked.split() if word.startswith("/")]
        for file in (Path(program), *map(Path, needed)):
            to = root / "usr" / file.resolve().relative_to("/usr")
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.resolve(), to)
            if to.name != file.name:
                (to.parent / file.name).unlink(missing_ok=True)
                (to.parent / file.name).symlink_to(to.name)
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
    (root / "etc").mkdir()
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    if loader.exists():
        to = root / "usr" / "lib64" / loader.name
        to.parent.mkdir(exist_ok=True)
        if not to.exists():
            shutil.copy(loader.resolve(), to)
    async with open_sandbox(Spec(root=root)) as box:
        assert (await box.run("ls /usr/bin")).stdout.split() == ["bash", "cat", "ls"]
        assert (await box.run("touch /tmp/x")).code == 127
        assert (await box.run("echo hi > /tmp/x; cat /tmp/x; echo no > /usr/x")).stdout == "hi\n"


@needs_bwrap
async def test_folders_of_the_host_are_shown_read_only(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("data\n")
    tmp_path.chmod(0o755)
    async with open_sandbox(Spec(binds=((tmp_path, "/data"),), workdir="/place/deep")) as box:
        assert (await box.run("pwd; cat /data/data")).stdout == "/place/deep\ndata\n"
        assert (await box.run("echo x > /data/data")).code != 0


async def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no sandbox 'podman'; known are bwrap, docker"):
        open_sandbox(Spec(), "podman")
    with pytest.raises(ConfigError, match="disk_mb is 0; expected more than 0"):
        Limits(disk_mb=0)
    assert limits_from({"cpus": 2, "max_steps": 5}) == Limits(cpus=2)
    bwrap._tools.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    try:
        with pytest.raises(ConfigError, match=r"needs bwrap, bash, .*apt install bubblewrap"):
            async with open_sandbox(Spec()):
                pass
        with pytest.raises(ConfigError, match="needs the docker command"):
            async with open_sandbox(Spec(), "docker"):
                pass
    finally:
        bwrap._tools.cache_clear()


@needs_bwrap
async def test_a_broken_world_is_no_fault_of_the_agent(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be in /usr"):
        async with open_sandbox(Spec(workdir="/usr/work")):
            pass
    async with open_sandbox(Spec()):
        pass  # from here on a failure is that of one sandbox, not of the machine
    (tmp_path / "big").write_bytes(b"x" * (3 << 20))
    if os.geteuid() == 0:  # a folder of another user is copied, and must fit
        with pytest.raises(EnvironmentFailure, match="No space left"):
            async with open_sandbox(Spec(files=tmp_path, limits=Limits(disk_mb=1))):
                pass


@needs_bwrap
async def test_a_machine_that_forbids_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old or forbidden bwrap must not look like an agent that killed its shell."""
    bad = tmp_path / "bwrap"
    bad.write_text("#!/bin/sh\necho 'bwrap: Unknown option --disable-userns' >&2; exit 1\n")
    bad.chmod(0o755)
    monkeypatch.setattr(bwrap, "find_bwrap", lambda: bad)
    monkeypatch.setattr(bwrap, "_works", set())
    bwrap._tools.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"Unknown option.*0\.8 or newer"):
            async with open_sandbox(Spec()):
                pass
    finally:
        bwrap._tools.cache_clear()


@needs_bwrap
async def test_a_stopped_command_leaves_nothing_behind() -> None:
    """Who waits may give up (the runner has its own limit): the next command is not confused."""
    mark = sleeper()
    async with open_sandbox(Spec()) as box:
        await box.run("echo first")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await box.run(f"echo late; setsid sleep {mark} & sleep {mark}")
        assert running(mark) == []  # already, not after a while
        assert (await box.run("echo second")).stdout == "second\n"
        await box.run(f"setsid sleep {mark} & true")
        await box.stop()
        assert running(mark) == []


def test_group_settings(tmp_path: Path) -> None:
    """Version 2 is not on every machine: its files are checked in a folder that stands for it."""
    limits = Limits(memory_mb=100, processes=20, cpus=0.5)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    group = cgroups.Group("x", limits, tmp_path)
    folder = tmp_path / "instar" / f"{os.getpid()}-x"
    assert group.entries == [str(folder / "cgroup.procs")]
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "memory.max": "104857600",
        "memory.swap.max": "0",
        "pids.max": "20",
        "cpu.max": "50000 100000",
    }
    enabled = (tmp_path / "cgroup.subtree_control").read_text()
    assert enabled == "+memory +pids +cpu"
    assert cgroups.settings(1, limits)["cpu"] == {"cpu.cfs_quota_us": "50000"}
    assert cgroups.trees(tmp_path / "nothing") == (0, {})
