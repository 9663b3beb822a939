"""Sandboxes by Docker, where a daemon runs; the same behaviour as bwrap.py.

The container's first process reads the stdin of `docker run`, which is a pipe of ours: when this
process is gone, however it ended, the pipe closes, the first process ends and the container is
removed with everything in it. The root file system is read-only; what the agent may write is
tmpfs, bounded in size.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from instar.envs.bwrap import ENV, SANDBOX_UID, WRITABLE
from instar.envs.sandbox import Ran, Spec, pack
from instar.envs.shell import Child, Shell, once, ulimits
from instar.errors import ConfigError, EnvironmentFailure

FIRST = 'mkdir -p "$0" && echo ready; while read -r _; do :; done'
"""Process 1: waits for the end of its stdin, and reaps whatever the agent leaves."""
START_S = 60.0


class DockerSandbox:
    """One container, and the agent's shell in it, if one is open."""

    def __init__(self, spec: Spec) -> None:
        self._spec, self._limits = spec, spec.limits
        self._name = f"instar-{os.getpid()}-{secrets.token_hex(6)}"
        self._container: Child | None = None
        self._shell: Shell | None = None

    async def open(self) -> None:
        self._container = Child(
            [*self._line(), "bash", "-c", FIRST, self._spec.workdir], (), 1 << 16
        )
        if not await self._container.says(b"ready\n", START_S):
            said = self._container.err.take().decode("utf-8", "replace").strip()
            raise EnvironmentFailure(f"docker could not start {self._spec.image}: {said}")
        if self._spec.files is not None:
            ran = await self.execute("tar -xf - --no-same-owner", stdin=pack(self._spec.files))
            if ran.code:
                raise EnvironmentFailure(f"the files could not be copied in: {ran.stderr.strip()}")

    def _line(self) -> list[str]:
        spec, limits, who = self._spec, self._limits, f"{SANDBOX_UID}:{SANDBOX_UID}"
        line = ["docker", "run", "--rm", "-i", "--name", self._name, "--hostname", "sandbox"]
        line += ["--network", "none", "--ipc", "private", "--read-only", "--user", who]
        line += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        line += ["--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"]
        line += ["--pids-limit", str(limits.processes), "--cpus", str(limits.cpus)]
        line += ["--shm-size", f"{limits.disk_mb << 18}"]
        more = (path.strip("/").split("/")[0] for path in (spec.workdir, *spec.writable))
        options = f"exec,size={limits.disk_mb}m,nr_inodes={limits.files},mode=1777"
        for name in dict.fromkeys((*WRITABLE, *more)):
            line += ["--tmpfs", f"/{name}:{options}"]
        for source, target in spec.binds:
            line += ["--volume", f"{source}:{target}:ro"]
        for name, value in {**ENV, **spec.env}.items():
            line += ["--env", f"{name}={value}"]
        return [*line, spec.image]

    @property
    def _enter(self) -> list[str]:
        return ["docker", "exec", "-i", "--workdir", self._spec.workdir, self._name]

    async def run(self, command: str, seconds: float | None = None) -> Ran:
        if self._shell is None:
            limit = ulimits(self._limits, alone=False, processes=False)
            self._shell = Shell(self._enter, (), self._limits, limit)
        ran = await self._shell.run(command, seconds or self._limits.seconds)
        if not self._shell.alive:
            await self.stop()
        return ran

    async def execute(
        self, command: str, *, stdin: bytes = b"", seconds: float | None = None
    ) -> Ran:
        wait = seconds or self._limits.seconds
        line = [*self._enter, "timeout", "--signal=KILL", str(wait), "bash", "-c", command]
        return await once(
            line, (), stdin=stdin, seconds=wait + 2, limit=self._limits.flood_mb << 20
        )

    async def stop(self) -> None:
        if self._shell is not None:
            await self._shell.close()
            self._shell = None
        # Signals every process at once but process 1, which no process inside can signal.
        line = ["docker", "exec", self._name, "bash", "-c", "kill -9 -1"]
        await once(line, (), stdin=b"", seconds=START_S, limit=1 << 16)

    async def close(self) -> None:
        """Kill the container; `--rm` removes it."""
        if self._shell is not None:
            await self._shell.close()
        await once(
            ["docker", "rm", "--force", self._name], (), stdin=b"", seconds=START_S, limit=1 << 16
        )
        if self._container is not None:
            await self._container.close()


@asynccontextmanager
async def open_sandbox(spec: Spec) -> AsyncIterator[DockerSandbox]:
    """A container, started when entered and removed when left."""
    if shutil.which("docker") is None:
        raise ConfigError(
            "the docker sandbox needs the docker command, not found here; install Docker, or use "
            "the bwrap sandbox"
        )
    if spec.root is not None:
        raise ConfigError("the docker sandbox has no root folder: name an image instead")
    sandbox = DockerSandbox(spec)
    try:
        await sandbox.open()
        yield sandbox
    finally:
        await sandbox.close()
