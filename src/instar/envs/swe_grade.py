"""How a change to a repository is graded: in a fresh copy, by tests that the agent cannot reach.

Only the agent's patch leaves its sandbox. In the fresh copy everything that decides how tests run
is put back as it was: test files, conftest files, the settings of pytest, start-up modules,
packages' metadata, and modules that would stand before those of Python or pytest. The tests report
through a plugin that is never on disk, so printed text proves nothing.

What remains: the code under test runs in the same process as the tests, as everywhere. Code that
rewrites pytest's memory while it is tested could still claim anything.
"""

from __future__ import annotations

import json
import secrets
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from instar.envs.sandbox import Limits, Sandbox, open_sandbox
from instar.envs.swe_repo import BASE_GIT, SITE, WORKDIR, spec_for
from instar.errors import EnvironmentFailure

SETTINGS = {
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
    *("setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py"),
}
TEST_FOLDERS = {"test", "tests"}
SHADOWS = sys.stdlib_module_names | {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py"}

DIFF = f"""
export GIT_DIR={BASE_GIT} GIT_WORK_TREE={WORKDIR} GIT_INDEX_FILE=/dev/shm/index
export GIT_OBJECT_DIRECTORY=/dev/shm/objects GIT_ALTERNATE_OBJECT_DIRECTORIES={BASE_GIT}/objects
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_OPTIONAL_LOCKS=0
mkdir -p /dev/shm/objects && cd {WORKDIR} && git read-tree HEAD &&
git add --all --force . ':!*.pyc' ':!.pytest_cache' &&
git diff --cached --binary --no-ext-diff --no-textconv --no-renames HEAD
"""
"""The agent's change, by a git whose record and settings it could not touch."""

PLUGIN = r"""
import json, os, sys
MARK, FILES = {mark!r}, {files!r}
out = os.dup(1)
import pytest, _pytest.assertion.rewrite, _pytest.terminal
at = next((i for i, p in enumerate(sys.path) if p == {site!r}), len(sys.path))
sys.path[at:at] = [{workdir!r}, {workdir!r} + "/src"]
class Report:
    def __init__(self):
        self.seen, self.why = {{}}, {{}}
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            worse = self.seen.get(report.nodeid) in ("failed", "error")
            outcome = report.outcome if report.when == "call" else "error"
            if report.outcome == "skipped":
                outcome = "skipped"
            if not worse:
                self.seen[report.nodeid] = outcome
            if outcome in ("failed", "error"):
                crash = getattr(report.longrepr, "reprcrash", None)
                self.why[report.nodeid] = str(getattr(crash, "message", ""))[:600]
report = Report()
code = pytest.main(
    ["-q", "-p", "no:cacheprovider", "--rootdir", {workdir!r}, "--continue-on-collection-errors",
     "-W", "ignore", *FILES],
    plugins=[report],
)
sys.stdout.flush()
said = "\x1e" + MARK + json.dumps({{"code": int(code), "tests": report.seen, "why": report.why}})
data = said.encode() + b"\x1e"
while data:
    data = data[os.write(out, data):]
os._exit(0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """What the tests said."""

    outcomes: dict[str, str]
    """passed, failed, error or skipped, by the test's name."""
    why: dict[str, str]
    printed: str = ""

    @property
    def passed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}


async def run_tests(sandbox: Sandbox, files: Sequence[str], seconds: float) -> Tested:
    """Run test files in a clean process. What cannot be run has not passed."""
    mark = secrets.token_hex(16)
    script = PLUGIN.format(mark=mark, files=list(files), site=SITE, workdir=WORKDIR)
    # -P and the emptied path keep modules of the repository from standing before Python's own.
    line = f"PYTHONPATH={SITE} PYTHONNOUSERSITE=1 exec python3 -P -c 'exec(open(0).read())'"
    ran = await sandbox.execute(line, stdin=script.encode(), seconds=seconds)
    _, found, rest = ran.stdout.rpartition(f"\x1e{mark}")
    if not found:
        return Tested(outcomes={}, why={}, printed=(ran.stdout + ran.stderr)[-2000:])
    said = json.loads(rest.partition("\x1e")[0])
    return Tested(outcomes=said["tests"], why=said["why"], printed=ran.stdout[-2000:])


async def change_of(sandbox: Sandbox) -> str:
    """The agent's whole change as a patch, binary files and new ones included."""
    ran = await sandbox.execute(DIFF, seconds=60)
    if ran.timed_out or ran.code or ran.note:
        return ""  # the agent broke its folder beyond reading
    return ran.out.decode("utf-8", "surrogateescape")


def is_kept(path: str, tests: Iterable[str], base: set[str]) -> bool:
    """Whether a path stays as it was, whatever the agent did to it."""
    parts = PurePosixPath(path).parts
    name = parts[-1]
    if path in set(tests) or name in SETTINGS or TEST_FOLDERS & set(parts):
        return True
    if name.startswith("test_") or name.endswith(("_test.py", ".pth")):
        return True
    if any(part.endswith((".dist-info", ".egg-info")) for part in parts):
        return True
    top = parts[1] if parts[0] == "src" and len(parts) > 1 else parts[0]
    return top.partition(".")[0] in SHADOWS and path not in base


LIST = f"cd {WORKDIR}; git --git-dir={BASE_GIT} ls-tree -r --name-only -z HEAD"
CHANGED = f"cd {WORKDIR}; git status --porcelain -z --untracked-files=all --no-renames --ignored"


async def grade(
    image: Path,
    patch: str,
    test_patch: str,
    files: Sequence[str],
    *,
    site: Path | None,
    limits: Limits,
    backend: str,
    seconds: float,
) -> Tested:
    """Apply a patch to a fresh copy, put back what must not change, and run the tests."""
    async with open_sandbox(spec_for(image, site, limits), backend) as fresh:
        if patch and not await _apply(fresh, patch):
            return Tested(outcomes={}, why={}, printed="the patch does not apply")
        listed = (await fresh.execute(LIST)).stdout
        base = {path for path in listed.split("\0") if path}
        changed = (await fresh.execute(CHANGED)).stdout.split("\0")
        paths = [entry[3:].rstrip("/") for entry in changed if len(entry) > 3]
        kept = [path for path in paths if is_kept(path, files, base)]
        back = [path for path in kept if path in base]
        new = [path for path in kept if path not in base]
        commands = [f"cd {WORKDIR}"]
        commands += [f"rm -rf -- {shlex.join(new)}"] if new else []
        commands += [f"git checkout -q HEAD -- {shlex.join(back)}"] if back else []
        ran = await fresh.execute("\n".join(commands))
        if ran.code:
            raise EnvironmentFailure(f"the tests could not be put back: {ran.stderr.strip()}")
        if test_patch and not await _apply(fresh, test_patch):
            raise EnvironmentFailure("the record's test_patch does not apply")
        return await run_tests(fresh, files, seconds)


async def _apply(sandbox: Sandbox, patch: str) -> bool:
    data = patch.encode("utf-8", "surrogateescape")
    line = f"cd {WORKDIR} && git apply --whitespace=nowarn -"
    return (await sandbox.execute(line, stdin=data)).code == 0
