"""The repository that a SWE task starts from: a folder made once, which sandboxes lay over.

It holds one commit and no history, so that the solution cannot be read out of git. Nothing of the
repository's own code is run to make it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from instar.envs.bwrap import owner
from instar.envs.sandbox import Limits, Spec
from instar.envs.swe_records import Record
from instar.errors import ConfigError, EnvironmentFailure

WORKDIR = "/repo"
BASE_GIT = "/opt/base.git"
"""Where the sandbox has git's record of the first state, which the agent cannot change."""
PYTHON, SITE = "/opt/python", "/opt/site"
IMAGES = "images"


def spec_for(image: Path, site: Path | None, limits: Limits) -> Spec:
    """A sandbox over a repository, with the Python that runs instar and the packages in `site`."""
    binds = [(image / ".git", BASE_GIT)]
    path = "/usr/local/bin:/usr/bin:/bin"
    if sys.base_prefix != "/usr":
        binds.append((Path(sys.base_prefix), PYTHON))
        path = f"{PYTHON}/bin:{path}"
    binds.append((site or default_site(), SITE))
    env = {
        "PATH": path,
        "PYTHONPATH": f"{WORKDIR}:{WORKDIR}/src:{SITE}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": f"{PYTHON}/lib",
    }
    return Spec(limits=limits, workdir=WORKDIR, files=image, binds=tuple(binds), env=env)


def default_site() -> Path:
    """The packages of the Python that runs instar; pytest must be among them."""
    try:
        import pytest
    except ImportError:
        raise ConfigError(
            "SWE tasks are graded with pytest, which is not installed here: pip install pytest, or "
            "make the tasks with `instar tasks make-swe`, which puts one beside them"
        ) from None
    return Path(pytest.__file__).parents[1]


async def image_of(record: Record) -> Path:
    """The folder that the record's repository is in, made now if it is not there yet."""
    parts = (record.sdist, record.repo, record.base_commit, record.patch, str(owner()))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = record.folder / IMAGES / f"{record.instance_id.replace('/', '_')}-{key}"
    if not folder.is_dir():
        await asyncio.to_thread(_make, record, folder)
    return folder


def _make(record: Record, folder: Path) -> None:
    """Make it beside its place and move it there whole, since others may make it too."""
    if shutil.which("git") is None:
        raise ConfigError("SWE tasks need git, not found here: install the package git")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    try:
        if record.sdist:
            extract(record.folder / record.sdist, part)
        else:
            _check_out(record, part)
        commit(part)
        if record.sdist and record.patch:
            git(part, "apply", "--reverse", "--whitespace=nowarn", "-", stdin=record.patch)
            shutil.rmtree(part / ".git")  # or the solution could be read in it
            commit(part)
        own(part)
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def extract(archive: Path, to: Path) -> None:
    """Unpack a source archive, without the folder that it has everything in."""
    to.mkdir(exist_ok=True)
    try:
        with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=to.parent) as folder:
            tar.extractall(folder, filter="data")
            inner = list(Path(folder).iterdir())
            root = inner[0] if len(inner) == 1 and inner[0].is_dir() else Path(folder)
            for path in root.iterdir():
                shutil.move(path, to / path.name)
    except (OSError, tarfile.TarError) as error:
        raise EnvironmentFailure(f"{archive} cannot be unpacked: {error}") from error
    if (about := to / "PKG-INFO").is_file():
        # Nothing is installed; packages that ask for their own version must still find it.
        metadata = to / f"{archive.name.removesuffix('.tar.gz')}.dist-info"
        metadata.mkdir(exist_ok=True)
        shutil.copy(about, metadata / "METADATA")


def _check_out(record: Record, to: Path) -> None:
    name = record.repo.replace("/", "__")
    for mirror in (record.folder / "repos" / name, record.folder / "repos" / f"{name}.git"):
        if mirror.is_dir():
            archive = git(mirror, "archive", record.base_commit)
            with tempfile.TemporaryFile() as file:
                file.write(archive)
                file.seek(0)
                with tarfile.open(fileobj=file) as tar:
                    tar.extractall(to, filter="data")
            return
    raise ConfigError(
        f"{record.instance_id} works on {record.repo}, which is not here: clone it to "
        f"{record.folder / 'repos' / name}"
    )


def commit(folder: Path) -> None:
    """Make the folder a repository whose only commit is its present state."""
    git(folder, "init", "--quiet", "--initial-branch=main", ".")
    for key, value in (("user.name", "agent"), ("user.email", "agent@localhost")):
        git(folder, "config", key, value)
    git(folder, "add", "--all", "--force", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "base")


def own(folder: Path) -> None:
    """Give a folder to the sandbox's user, where instar runs as root."""
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "-h", f"{owner()}:{owner()}", str(folder)], check=True)


def git(folder: Path, *arguments: str, stdin: str = "") -> bytes:
    """Run git on the host, blind to the configuration of its person and to hooks."""
    plain = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
    environment = {
        "PATH": os.defpath,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    }
    safe = ("-c", f"safe.directory={folder}")
    ran = subprocess.run(
        ["git", *plain, *safe, *arguments],
        cwd=folder,
        env=environment,
        input=stdin.encode(),
        capture_output=True,
    )
    if ran.returncode:
        said = ran.stderr.decode("utf-8", "replace").strip()
        raise EnvironmentFailure(f"git {arguments[0]} failed in {folder}: {said}")
    return ran.stdout
