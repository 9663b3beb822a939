"""SWE tasks from real packages: take a source archive, put one bug in, keep what its tests notice.

Each task is proved before it is kept: with the bug its FAIL_TO_PASS tests fail and its
PASS_TO_PASS tests pass, and with the gold patch in a fresh copy all of them pass. Bugs made by
mutation are not real issues; what is learnt from them is finding and mending what tests show.
"""

from __future__ import annotations

import difflib
import hashlib
import html
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from instar.envs.sandbox import Limits, open_sandbox
from instar.envs.swe_grade import SETTINGS, TEST_FOLDERS, Tested, grade, run_tests
from instar.envs.swe_mutate import edits
from instar.envs.swe_records import Record, as_row, load_records
from instar.envs.swe_repo import commit, extract, image_of, own, spec_for
from instar.errors import ConfigError, EnvironmentFailure

if TYPE_CHECKING:
    import httpx

INDEX = "https://pypi.org/simple"
LIMITS = Limits(memory_mb=1024, disk_mb=256, seconds=60, processes=128)
SUITE_S = 300.0
"""How long a package's whole test suite may take."""
NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*?)(?:==([A-Za-z0-9.!+_-]+))?$")
LINK = re.compile(r'<a\b[^>]*href="([^"]+)"[^>]*>')
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What tasks to make."""

    count: int = 10
    """Tasks a package."""
    seed: int = 0
    most_failing: int = 20
    """A bug that breaks more tests than this is too coarse to be a task."""
    tries: int = 5
    """Bugs to try for each task wanted."""


async def make_tasks(
    packages: Sequence[str], out: Path, wanted: Wanted, *, extras: Sequence[str], say: Say
) -> list[Record]:
    """Make tasks of packages, and add them to OUT/tasks.jsonl as they are proved."""
    (out / "repos").mkdir(parents=True, exist_ok=True)
    site = ready_site(out, extras, say)
    tasks = out / "tasks.jsonl"
    known = {record.instance_id for record in load_records(tasks)} if tasks.is_file() else set()
    made = list[Record]()
    for package in packages:
        sdist = fetch(package, out / "repos")
        async for record in _tasks_of(sdist, out, site, wanted, say):
            if record.instance_id not in known:
                with tasks.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(as_row(record), ensure_ascii=False) + "\n")
                made.append(record)
    return made


def ready_site(out: Path, extras: Sequence[str], say: Say) -> Path:
    """A folder with pytest and what else the packages' tests need, beside the tasks."""
    site = out / "site"
    if extras or not (site / "pytest").is_dir():
        say(f"installing pytest {' '.join(extras)} into {site}")
        line = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target"]
        ran = subprocess.run([*line, str(site), "pytest", *extras], capture_output=True, text=True)
        if ran.returncode:
            raise ConfigError(f"pip could not install into {site}: {ran.stderr.strip()[-500:]}")
    return site


def fetch(package: str, folder: Path) -> Path:
    """The source archive of a package: a file, or the newest (or named) release on PyPI.

    It is not asked of pip, which would run the package's own code to learn its metadata.
    """
    given = Path(package).expanduser()
    if given.is_file():
        to = folder / given.name
        return to if to.exists() and to.samefile(given) else Path(shutil.copy(given, to))
    if not (found := NAME.match(package)):
        raise ConfigError(f"{package!r} is neither a file nor a package name such as toolz==1.0")
    import httpx

    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
    with httpx.Client(follow_redirects=True, timeout=60, headers={"Accept": accept}) as client:
        try:
            answer = client.get(f"{INDEX}/{found[1].lower()}/").raise_for_status()
            file, url, digest = _newest(_archives(answer), found[1], found[2])
            to = folder / file
            if not to.is_file():
                data = client.get(url).raise_for_status().content
                if hashlib.sha256(data).hexdigest() != digest:
                    raise ConfigError(f"{file} does not have the SHA-256 sum that PyPI names")
                to.write_bytes(data)
        except httpx.HTTPError as error:
            raise ConfigError(
                f"{package} could not be fetched from {INDEX}: {error}; without a network, name "
                "the file of a source archive instead"
            ) from None
    return to


def _archives(answer: httpx.Response) -> Iterator[tuple[str, str, str]]:
    """(file name, address, SHA-256 sum) of what an index lists; a mirror may know only HTML."""
    if "json" in answer.headers.get("content-type", ""):
        for one in answer.json()["files"]:
            if not one.get("yanked"):
                yield one["filename"], one["url"], one["hashes"].get("sha256", "")
        return
    for link in LINK.finditer(answer.text):
        address, _, digest = html.unescape(link[1]).partition("#sha256=")
        if "data-yanked" not in link[0]:
            yield Path(address).name, str(answer.url.join(address)), digest


def _newest(
    archives: Iterable[tuple[str, str, str]], name: str, version: str | None
) -> tuple[str, str, str]:
    from packaging.version import InvalidVersion, Version

    found = list[tuple[bool, Version, tuple[str, str, str]]]()
    for one in archives:
        if one[0].endswith(".tar.gz"):
            try:
                number = Version(one[0].removesuffix(".tar.gz").rpartition("-")[2])
            except InvalidVersion:
                continue
            if version is None or number == Version(version):
                found.append((not number.is_prerelease, number, one))
    if not found:
        raise ConfigError(f"PyPI has no source archive of {name} {version or ''}".rstrip())
    return max(found)[2]


async def _tasks_of(
    sdist: Path, out: Path, site: Path, wanted: Wanted, say: Say
) -> AsyncIterator[Record]:
    """Proved tasks of one archive."""
    name, _, version = sdist.name.removesuffix(".tar.gz").rpartition("-")
    with tempfile.TemporaryDirectory(prefix=".make-", dir=out) as folder:
        tree = Path(folder, "tree")
        extract(sdist, tree)
        files = test_files(tree)
        if not files:
            say(f"{sdist.name} holds no tests: no tasks")
            return
        whole = await _tested(tree, site, files)
        say(f"{name} {version}: {len(whole.passed)} of {len(whole.outcomes)} tests pass")
        if not whole.passed:
            say(whole.printed[-600:])
            return
        made = 0
        bugs = list(_bugs(tree))
        random.Random(f"{wanted.seed}/{sdist.name}").shuffle(bugs)
        for path, old, new, kind in bugs[: wanted.count * wanted.tries]:
            if made == wanted.count:
                break
            record = Record(
                instance_id=f"{name}-{version}__{hashlib.sha256(new.encode()).hexdigest()[:8]}",
                problem_statement="",
                fail_to_pass=(),
                pass_to_pass=(),
                repo=f"pypi/{name}",
                version=version,
                patch=_diff(path, new, old),
                sdist=f"repos/{sdist.name}",
                folder=out,
            )
            proved = await _proved(record, whole, files, site, wanted)
            say(f"  {path}: {kind}: " + ("a task" if proved else "no task"))
            if proved:
                made += 1
                yield proved


async def _proved(
    record: Record, whole: Tested, files: Sequence[str], site: Path, wanted: Wanted
) -> Record | None:
    """The record with its tests, or None where the bug is no good task."""
    image = await image_of(record)
    try:
        async with open_sandbox(spec_for(image, site, LIMITS)) as box:
            broken = await run_tests(box, files, SUITE_S)
        failing = {one for one in whole.passed if broken.outcomes.get(one) in ("failed", "error")}
        passing = whole.passed & broken.passed
        if not 0 < len(failing) <= wanted.most_failing or not passing:
            return None
        again = await grade(
            image,
            record.patch,
            "",
            files,
            site=site,
            limits=LIMITS,
            backend="bwrap",
            seconds=SUITE_S,
        )
        if not failing <= again.passed:
            return None
        ordered = sorted(failing)
        return replace(
            record,
            fail_to_pass=tuple(ordered),
            pass_to_pass=tuple(sorted(passing & again.passed)),
            base_commit=image.name.rpartition("-")[2],
            problem_statement=_statement(record, ordered, broken.why),
        )
    except EnvironmentFailure:
        return None
    finally:
        shutil.rmtree(image, ignore_errors=True)


async def _tested(tree: Path, site: Path, files: Sequence[str]) -> Tested:
    """The untouched package's tests, twice: what does not pass twice is left out."""
    commit(tree)
    own(tree)
    async with open_sandbox(spec_for(tree, site, LIMITS)) as box:
        first = await run_tests(box, files, SUITE_S)
        second = await run_tests(box, files, SUITE_S)
    steady = {name: value for name, value in first.outcomes.items() if name in second.outcomes}
    for name in steady:
        if name not in second.passed and steady[name] == "passed":
            steady[name] = second.outcomes[name]
    return replace(first, outcomes=steady)


def test_files(tree: Path) -> list[str]:
    """Files with tests, as pytest finds them."""
    found = [*tree.rglob("test_*.py"), *tree.rglob("*_test.py")]
    return sorted({path.relative_to(tree).as_posix() for path in found if path.is_file()})


def _bugs(tree: Path) -> Iterator[tuple[str, str, str, str]]:
    """(file, its text, its text with a bug, what the bug is)"""
    for path in sorted(tree.rglob("*.py")):
        relative = path.relative_to(tree)
        name, folders = relative.name, set(relative.parts[:-1])
        if folders & {*TEST_FOLDERS, "docs", "doc", "examples", "benchmarks", "build"}:
            continue
        if name in {*SETTINGS, "setup.py", "versioneer.py", "_version.py"}:
            continue
        if name.startswith("test_") or name.endswith("_test.py"):
            continue
        try:
            old = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for edit in edits(old):
            yield relative.as_posix(), old, edit.apply(old), edit.kind


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    text = f"diff --git a/{path} b/{path}\n"
    for line in lines:
        text += line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
    return text


def _statement(record: Record, failing: Sequence[str], why: dict[str, str]) -> str:
    """What a person who ran the tests would report; where the bug is, they do not know."""
    name = record.repo.partition("/")[2]
    shown = "\n".join(f"- {test}" for test in failing[:5])
    more = f"\n- and {len(failing) - 5} more" if len(failing) > 5 else ""
    text = f"In {name} {record.version}, tests that should pass fail:\n\n{shown}{more}\n"
    if said := why.get(failing[0], "").strip():
        text += f"\n{failing[0]} says:\n\n    " + said.replace("\n", "\n    ") + "\n"
    return text + "\nFind the bug in the source and mend it. The tests are right."
