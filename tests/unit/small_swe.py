"""A small package with tests, as a source archive, and SWE tasks over it."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

from instar.envs.swe_records import Record, as_row
from instar.envs.swe_repo import default_site

SOURCE = '''"""Counting."""


def clamp(value, low, high):
    """The value, or the nearest end of the range."""
    if value < low:
        return low
    return high if value > high else value


def total(values):
    result = 0
    for value in values:
        result = result + value
    return result
'''
TESTS = """from tally import clamp, total


def test_clamp_inside():
    assert clamp(5, 0, 10) == 5


def test_clamp_below():
    assert clamp(-5, 0, 10) == 0


def test_clamp_above():
    assert clamp(50, 0, 10) == 10


def test_total():
    assert total([1, 2, 3]) == 6


def test_total_of_nothing():
    assert total([]) == 0


def test_version():
    from importlib.metadata import version

    assert version("tally") == "1.0"
"""
FILES = {
    "tally/__init__.py": "from tally.core import clamp, total\n",
    "tally/core.py": SOURCE,
    "tests/test_core.py": TESTS,
    "setup.cfg": "[tool:pytest]\naddopts = -q\n",
    "PKG-INFO": "Metadata-Version: 2.1\nName: tally\nVersion: 1.0\n",
}


def archive(path: Path) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in FILES.items():
            entry = tarfile.TarInfo(f"tally-1.0/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return path


def small_site(folder: Path) -> None:
    """pytest and no plugins, which make each start slow."""
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        shutil.copytree(default_site() / name, folder / name)


PATCH = """diff --git a/tally/core.py b/tally/core.py
--- a/tally/core.py
+++ b/tally/core.py
@@ -11,5 +11,5 @@
 def total(values):
     result = 0
     for value in values:
-        result = result - value
+        result = result + value
     return result
"""


def small_tasks(folder: Path) -> Path:
    """A file with the same task six times, four to train and two to test."""
    folder.mkdir(parents=True, exist_ok=True)
    archive(folder / "tally-1.0.tar.gz")
    small_site(folder / "site")
    record = Record(
        instance_id="tally",
        problem_statement="total subtracts",
        fail_to_pass=("tests/test_core.py::test_total",),
        pass_to_pass=("tests/test_core.py::test_clamp_inside",),
        patch=PATCH,
        sdist="tally-1.0.tar.gz",
    )
    file = folder / "tasks.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for number, split in enumerate(["train", "test", "train"] * 2):
            row = as_row(replace(record, instance_id=f"tally-{number}"))
            lines.write(json.dumps({**row, "split": split}) + "\n")
    return file
