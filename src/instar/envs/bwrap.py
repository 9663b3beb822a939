"""Sandboxes by bubblewrap, for root and for anyone else.

Two parts. The files live in a mount namespace of their own: a small tmpfs, which bounds what the
agent can write, with the working folder as an overlay over the task's files. No process keeps
it alive, only file descriptors of this one, so it is gone when this process is, however it ends.
Each run is one bwrap on those files, in new user, process, network, IPC and host name namespaces,
without capabilities, as a user that owns nothing else, and killed with its parent.

The agent sees the host's /usr (or another root file system) read-only, an /etc with nothing of
the host in it, and empty folders; / itself, /usr and /etc cannot be written, so what grades it
afterwards runs the programs it expects.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from instar.envs import cgroups
from instar.envs.sandbox import Ran, Spec
from instar.envs.shell import Shell, once, ulimits
from instar.errors import ConfigError, EnvironmentFailure

SANDBOX_UID = 64321
"""Who the agent is to the host where instar runs as root: a user that owns nothing."""
WRITABLE = ("app", "home", "logs", "root", "run", "tests", "tmp", "var")
SYSTEM = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
NOT_OURS = {"dev", "proc", "sys", "boot", "etc", "lost+found", "media", "mnt", "srv", *WRITABLE}
ETC = ("alternatives", "ld.so.cache")
"""Of the host's /etc what its programs need to run; nothing about its people or its network."""
OWN_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hostname": "sandbox\n",
}
ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
}
NAMESPACES = ("user", "pid", "net", "ipc", "uts", "cgroup-try")
HINT = (
    "On Debian and Ubuntu: apt install bubblewrap util-linux (or `make bwrap` in a checkout, which "
    "needs no root); on Fedora: dnf install bubblewrap util-linux; on Arch: pacman -S bubblewrap; "
    "bubblewrap 0.8 or newer."
)


def find_bwrap() -> Path | None:
    """bwrap on the path, or the one that `make bwrap` put beside this Python."""
    own = Path(sys.prefix, "bin", "bwrap")
    found = shutil.which("bwrap") or (str(own) if own.is_file() else None)
    return Path(found) if found else None


@cache
def _tools() -> Path:
    """Check once that the programs needed are there; where bwrap is."""
    bwrap = find_bwrap()
    missing = [name for name in ("bash", "mount", "nsenter", "unshare") if not shutil.which(name)]
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        missing.append("setpriv")
    if bwrap is None:
        missing.insert(0, "bwrap")
    if bwrap is None or missing:
        raise ConfigError(f"a sandbox needs {', '.join(missing)}, not found here. {HINT}")
    return bwrap


def owner() -> int:
    """The user id on the host that a sandbox's files must belong to to be writable there."""
    return os.geteuid() or SANDBOX_UID


def _stage() -> Path:
    """The mount point that all sandboxes share: outside their namespaces it stays empty."""
    stage = Path(tempfile.gettempdir(), f"instar-sandbox-{os.geteuid()}")
    stage.mkdir(mode=0o711, exist_ok=True)
    found = stage.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigError(f"{stage} is not a folder of user {os.geteuid()}; remove it")
    return stage


class Files:
    """The mount namespace that holds a sandbox's files, by its file descriptors."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.stage, self.fds = spec, _stage(), list[int]()

    async def open(self) -> None:
        """Run the mounts in new namespaces and take hold of these before that process ends."""
        user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        script = "set -e\n" + self._script() + "\necho ready\nread -r _ || :\n"
        process = await asyncio.create_subprocess_exec(
            *("unshare", *user, "--mount", "--propagation", "private", "sh", "-c", script),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout and process.stdin and process.stderr
        try:
            if await process.stdout.readline() != b"ready\n":
                said = (await process.stderr.read()).decode("utf-8", "replace").strip()
                raise EnvironmentFailure(f"the sandbox's files could not be set up: {said}")
            for kind in ("user", "mnt") if user else ("mnt",):
                self.fds.append(os.open(f"/proc/{process.pid}/ns/{kind}", os.O_RDONLY))
        finally:
            process.stdin.close()
            await process.wait()

    def _script(self) -> str:
        spec, at, limits = self.spec, shlex.quote(str(self.stage)), self.spec.limits
        size = f"size={limits.disk_mb}m,nr_inodes={limits.files},mode=755,nosuid,nodev"
        top = " ".join(f"w/{name}" for name in self.writable)
        binds = " ".join(f"b/{number}" for number in range(len(spec.binds)))
        etc = [f"etc/{source.name}" for source in self._etc()]
        lines = [
            f"mount -t tmpfs -o {size} instar {at}",
            f"cd {at}",
            f"mkdir -p {top} w/var/tmp {shlex.quote('w' + spec.workdir)} up work root etc {binds}",
        ]
        for name, text in OWN_ETC.items():
            lines.append(f"printf %s {shlex.quote(text)} > etc/{name}")
        folders = [to for to, source in zip(etc, self._etc(), strict=True) if source.is_dir()]
        lines += [f"mkdir {' '.join(folders)}" if folders else ":"]
        lines += [f": > {to}" for to in etc if to not in folders]
        if self._bwrap == "bwrap":
            lines.append(f"cp {shlex.quote(str(_tools()))} bwrap")
        if os.geteuid() == 0:
            lines.append(f"chown -R {SANDBOX_UID}:{SANDBOX_UID} w up work")
        if spec.files is not None:
            lines += self._working_folder(spec.files)
        sources = [(source, f"b/{number}") for number, (source, _) in enumerate(spec.binds)]
        for source, to in (*sources, *([(spec.root, "root")] if spec.root else [])):
            lines.append(f"mount --bind {shlex.quote(str(source))} {to}")
        return "\n".join(lines)

    @property
    def _bwrap(self) -> str:
        """Where bwrap is run from: a copy, where the sandbox's user cannot reach the real one."""
        found = _tools()
        open_to_all = all(folder.stat().st_mode & stat.S_IXOTH for folder in found.parents)
        return str(found) if open_to_all or os.geteuid() else "bwrap"

    def _etc(self) -> list[Path]:
        return [path for name in ETC if (path := Path(self.spec.root or "/", "etc", name)).exists()]

    def _working_folder(self, folder: Path) -> list[str]:
        source, to = shlex.quote(str(folder)), shlex.quote("w" + self.spec.workdir)
        own = f"chown -R {SANDBOX_UID}:{SANDBOX_UID} {to}" if os.geteuid() == 0 else ":"
        copy = f"cp -a --no-preserve=ownership {source}/. {to}/; {own}"
        if folder.stat().st_uid != owner() or any(sign in str(folder) for sign in ":,\\"):
            return [copy]
        more = "" if os.geteuid() == 0 else ",userxattr"
        options = f"lowerdir={source},upperdir=up,workdir=work{more}"
        # Kernels before 5.11 let nobody but root mount an overlay: then the files are copied.
        return [f"mount -t overlay -o {options} overlay {to} 2>/dev/null || {{ {copy}; }}"]

    @property
    def writable(self) -> list[str]:
        """Top-level folders that the agent may write to."""
        more = (path.strip("/").split("/")[0] for path in (self.spec.workdir, *self.spec.writable))
        names = dict.fromkeys((*WRITABLE, *more))
        if taken := [name for name in names if name in (*SYSTEM, "etc", "dev", "proc", "")]:
            raise ConfigError(
                f"a sandbox's working folder cannot be in /{taken[0]}, which is read-only there"
            )
        return list(names)

    def _system(self) -> list[Path]:
        root = self.spec.root
        if root is None:
            return [Path("/", name) for name in SYSTEM if Path("/", name).exists()]
        skip = NOT_OURS | set(self.writable)
        return [path for path in sorted(root.iterdir()) if path.name not in skip]

    def enter(self) -> list[str]:
        """The start of a command line that runs bwrap on these files, as the sandbox's user."""
        paths = [f"/proc/self/fd/{fd}" for fd in self.fds]
        if len(paths) == 2:
            return [
                "nsenter",
                f"--user={paths[0]}",
                f"--mount={paths[1]}",
                "--preserve-credentials",
            ]
        who = (f"--reuid={SANDBOX_UID}", f"--regid={SANDBOX_UID}", "--clear-groups")
        return ["nsenter", f"--mount={paths[0]}", "setpriv", *who]

    def arguments(self) -> list[str]:
        """bwrap and everything it is told, up to the program to run."""
        spec, at = self.spec, str(self.stage)
        root = f"{at}/root" if spec.root else ""
        line = [str(self.stage / self._bwrap), *(f"--unshare-{name}" for name in NAMESPACES)]
        line += ["--disable-userns", "--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
        line += ["--die-with-parent", "--as-pid-1", "--new-session", "--hostname", "sandbox"]
        for source in self._system():
            if source.is_symlink():
                line += ["--symlink", str(source.readlink()), f"/{source.name}"]
            else:
                line += ["--ro-bind", f"{root}/{source.name}", f"/{source.name}"]
        line += ["--ro-bind", f"{at}/etc", "/etc"]
        for source in self._etc():
            line += ["--ro-bind", f"{root}/etc/{source.name}", f"/etc/{source.name}"]
        for name in self.writable:
            line += ["--bind", f"{at}/w/{name}", f"/{name}"]
        for number, (_, target) in enumerate(spec.binds):
            line += ["--ro-bind", f"{at}/b/{number}", target]
        line += ["--proc", "/proc", "--dev", "/dev"]
        line += ["--size", str(spec.limits.disk_mb << 18), "--tmpfs", "/dev/shm"]
        line += ["--remount-ro", "/dev", "--remount-ro", "/", "--clearenv"]
        for name, value in {**ENV, **spec.env}.items():
            line += ["--setenv", name, value]
        return [*line, "--chdir", spec.workdir]

    def close(self) -> None:
        """Let go of the namespaces; with them goes every file."""
        while self.fds:
            os.close(self.fds.pop())


class BwrapSandbox:
    """One sandbox: its files, its control groups and the agent's shell, if one is open."""

    def __init__(self, spec: Spec) -> None:
        self._limits = spec.limits
        self._files = Files(spec)
        self._group = cgroups.Group(secrets.token_hex(6), spec.limits)
        self._shell: Shell | None = None
        self._argv: list[str] = []
        self._prelude = ""

    async def open(self) -> None:
        await self._files.open()
        close = "".join(f"exec {fd}<&-\n" for fd in self._files.fds)
        self._prelude = close + ulimits(self._limits, alone=not self._group.entries)
        join = "".join(f"echo $$ > {shlex.quote(entry)}; " for entry in self._group.entries)
        enter = [*self._files.enter(), *self._files.arguments()]
        self._argv = ["sh", "-c", f'{join}exec "$@"', "join", *enter] if join else enter

    async def run(self, command: str, seconds: float | None = None) -> Ran:
        if self._shell is None or not self._shell.alive:
            self._shell = Shell(self._argv, self._files.fds, self._limits, self._prelude)
        return await self._shell.run(command, seconds or self._limits.seconds)

    async def execute(
        self, command: str, *, stdin: bytes = b"", seconds: float | None = None
    ) -> Ran:
        return await once(
            [*self._argv, "bash", "-c", self._prelude + command],
            self._files.fds,
            stdin=stdin,
            seconds=seconds or self._limits.seconds,
            limit=self._limits.flood_mb << 20,
        )

    async def stop(self) -> None:
        if self._shell is not None:
            await self._shell.close()
            self._shell = None

    async def close(self) -> None:
        """Leave nothing: processes, files, control groups."""
        try:
            await self.stop()
        finally:
            self._files.close()
            await self._group.close()


_works = set[Path | None]()
"""Root file systems that a sandbox has run on in this process."""


async def _prove(sandbox: BwrapSandbox, spec: Spec) -> None:
    """Find out at the first start whether this machine lets bwrap work, so that it is not taken
    for the agent's doing later."""
    try:
        await sandbox.open()
        ran = await sandbox.execute("true")
        problem = "" if ran.code == 0 else f"bwrap failed: {(ran.stderr or ran.note).strip()}"
    except EnvironmentFailure as error:
        problem = str(error)
    if problem:
        raise ConfigError(
            f"this machine does not let a sandbox start. {problem}. {HINT} Where the kernel "
            "forbids user namespaces, allow them (on Ubuntu: sysctl "
            "kernel.apparmor_restrict_unprivileged_userns=0), or use the docker sandbox."
        )
    _works.add(spec.root)


@asynccontextmanager
async def open_sandbox(spec: Spec) -> AsyncIterator[BwrapSandbox]:
    """A sandbox, made when entered and gone when left."""
    _tools()
    sandbox = BwrapSandbox(spec)
    try:
        if spec.root in _works:
            await sandbox.open()
        else:
            await _prove(sandbox, spec)
        yield sandbox
    finally:
        await sandbox.close()
