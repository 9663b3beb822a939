"""Run a command with a throw-away PostgreSQL server, whose URL is in INSTAR_TEST_POSTGRES.

Usage: python tests/with_postgres.py pytest tests/unit/test_store.py

The server listens on a socket in a temporary folder, so it meets no other one. Debian's
package is installed if there is no server and we may; it never runs as root, which
PostgreSQL refuses.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "INSTAR_TEST_POSTGRES"
START_S = 30.0


def main(command: list[str]) -> int:
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="instar-pg-") as folder, server(Path(folder)) as url:
        return subprocess.run(command, env={**os.environ, VARIABLE: url}).returncode


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A running server's SQLAlchemy URL."""
    binaries, user = find_binaries(), unprivileged()
    data = folder / "data"
    if user:
        shutil.chown(folder, user=user)
    options = {"user": user, "cwd": folder} if user else {"cwd": folder}
    initdb = [binaries / "initdb", "-D", data, "-U", "instar", "-A", "trust", "-E", "UTF8"]
    subprocess.run([*initdb, "--no-sync"], check=True, stdout=subprocess.DEVNULL, **options)
    arguments = ["-D", data, "-k", folder, "-c", "listen_addresses="]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [binaries / "postgres", *arguments], stdout=log, stderr=log, **options
        )
    try:
        wait_until_ready(process, binaries, folder)
        yield f"postgresql+psycopg://instar@/postgres?host={folder}"
    finally:
        # SIGINT is PostgreSQL's "fast" shutdown: it ends connections instead of waiting.
        process.send_signal(signal.SIGINT)
        process.wait(START_S)


def wait_until_ready(process: subprocess.Popen[bytes], binaries: Path, folder: Path) -> None:
    deadline = time.monotonic() + START_S
    check = [binaries / "pg_isready", "-q", "-h", folder]
    while subprocess.run(check).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            log = (folder / "server.log").read_text(errors="replace")
            sys.exit(f"PostgreSQL did not start within {START_S:g} s. Its log:\n{log}")
        time.sleep(0.1)


def unprivileged() -> str | None:
    """Whom to run the server as, if we are root."""
    if os.getuid():
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def find_binaries() -> Path:
    if found := installed():
        return found
    if os.getuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for step in (["update", "-q"], ["install", "-qy", "--no-install-recommends", "postgresql"]):
            subprocess.run(["apt-get", *step], check=True, env=environment)
        if found := installed():
            return found
    sys.exit("Found no PostgreSQL server. Install one, such as Debian's package postgresql.")


def installed() -> Path | None:
    folders = sorted(
        (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")),
        key=lambda folder: int(folder.parent.name),
        reverse=True,
    )
    if on_path := shutil.which("postgres"):
        folders.append(Path(on_path).parent)
    programs = ("initdb", "pg_isready")
    return next((f for f in folders if all((f / name).exists() for name in programs)), None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
