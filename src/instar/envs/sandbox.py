"""A place where an agent's commands run and can harm nothing outside it.

    async with open_sandbox(Spec(files=folder)) as sandbox:
        ran = await sandbox.run("cd src && ls")      # the agent's shell, which stays open
        await sandbox.stop()                         # nothing the agent started is left
        ran = await sandbox.execute("bash test.sh")  # a shell of its own, on the same files

There are two back-ends with the same behaviour: `bwrap` (bubblewrap, needs no rights and no
images) and `docker` (where a daemon runs). A command that fails, floods, hangs or kills its shell
is the agent's doing and comes back as a `Ran`; only a broken back-end raises.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from instar.errors import ConfigError

BACKENDS = {"bwrap": "instar.envs.bwrap", "docker": "instar.envs.docker"}
"""Modules with `open_sandbox(spec)`, imported only when chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use, all of its processes together."""

    memory_mb: int = 512
    """Files that the agent writes count too: they are kept in memory."""
    processes: int = 64
    cpus: float = 1.0
    disk_mb: int = 64
    files: int = 20_000
    seconds: float = 30.0
    """How long a command may take if the caller does not say."""
    output_kb: int = 16
    """Of each of stdout and stderr; the middle of what is longer is left out."""
    flood_mb: int = 16
    """A command that prints more than this is killed."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) > 0:
                raise ConfigError(
                    f"the sandbox limit {one.name} is {getattr(self, one.name)}; expected more "
                    "than 0"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a sandbox is made of."""

    limits: Limits = field(default_factory=Limits)
    workdir: str = "/app"
    files: Path | None = None
    """A folder whose contents the working folder starts with. The agent never writes to it."""
    root: Path | None = None
    """A root file system (as debootstrap makes it); by default the host's /usr, read-only."""
    binds: tuple[tuple[Path, str], ...] = ()
    """Folders of the host that the sandbox may read, and where it sees them."""
    writable: tuple[str, ...] = ()
    """Further top-level folders that the agent may write to."""
    env: Mapping[str, str] = field(default_factory=dict)
    image: str = "debian:bookworm-slim"
    """What the docker back-end starts from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command did."""

    code: int
    """Its exit code; 137 where it was killed."""
    out: bytes = b""
    err: bytes = b""
    note: str = ""
    """What the agent should know beyond its output: a time-out, a lost shell."""
    timed_out: bool = False

    @property
    def stdout(self) -> str:
        return self.out.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.err.decode("utf-8", "replace")


class Sandbox(Protocol):
    """One sandbox: files, and the processes that run on them."""

    async def run(self, command: str, seconds: float | None = None) -> Ran:
        """Run a command in the agent's shell, which keeps its folder and variables."""
        ...

    async def execute(
        self, command: str, *, stdin: bytes = b"", seconds: float | None = None
    ) -> Ran:
        """Run a command in a clean shell of its own, with nothing of its output left out."""
        ...

    async def stop(self) -> None:
        """Kill every process of the agent; its files stay, and the next run has a new shell."""
        ...


def open_sandbox(spec: Spec, backend: str = "bwrap") -> AbstractAsyncContextManager[Sandbox]:
    """A sandbox, made when entered; when left, no process and no file of it remains."""
    if backend not in BACKENDS:
        raise ConfigError(f"there is no sandbox {backend!r}; known are {', '.join(BACKENDS)}")
    opened: AbstractAsyncContextManager[Sandbox] = import_module(BACKENDS[backend]).open_sandbox(
        spec
    )
    return opened


def limits_from(options: Mapping[str, Any]) -> Limits:
    """The limits that an environment's options name; other options are not looked at."""
    known = {one.name for one in fields(Limits)}
    return Limits(**{name: value for name, value in options.items() if name in known})


def pack(contents: Path | Mapping[str, str | bytes]) -> bytes:
    """A folder's contents, or files by name, as a tar file to feed to `tar -x --no-same-owner`."""
    return pack_all({"": contents})


def pack_all(parts: Mapping[str, Path | Mapping[str, str | bytes]]) -> bytes:
    """The same for several folders or sets of files, each under its own path."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for under, contents in parts.items():
            if isinstance(contents, Path):
                for path in sorted(contents.iterdir()):
                    tar.add(path, arcname=posixpath.join(under, path.name))
                continue
            for name, content in contents.items():
                raw = content.encode() if isinstance(content, str) else content
                entry = tarfile.TarInfo(posixpath.join(under, name))
                entry.size = len(raw)
                tar.addfile(entry, io.BytesIO(raw))
    return data.getvalue()
