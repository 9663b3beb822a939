"""SWE tasks in SWE-bench's record form, from JSONL, JSON or Parquet files.

A record's repository comes from one of two places beside the file: a source archive from PyPI
(`sdist`, as `instar tasks make-swe` writes it), or a git repository in the folder repos/ for
records of SWE-bench itself (repos/OWNER__NAME, at `base_commit`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from instar.errors import ConfigError

NEEDED = ("instance_id", "problem_statement", "FAIL_TO_PASS", "PASS_TO_PASS")
DEFAULT = Path("~/.instar/swe/tasks.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One task. Names are SWE-bench's; `sdist` and `split` are ours."""

    instance_id: str
    problem_statement: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    repo: str = ""
    base_commit: str = ""
    patch: str = ""
    """The gold patch. With an sdist, the task starts from the archive with this undone."""
    test_patch: str = ""
    version: str = ""
    sdist: str = ""
    split: str = ""
    folder: Path = Path()
    """Where the file was that it came from."""

    @property
    def test_files(self) -> tuple[str, ...]:
        """Files that hold the tests that decide."""
        names = (test.partition("::")[0] for test in self.fail_to_pass + self.pass_to_pass)
        return tuple(dict.fromkeys(names))


def load_records(path: Path) -> list[Record]:
    """All records of a file; a ConfigError says which one is wrong, and how."""
    path = path.expanduser()
    if not path.is_file():
        raise ConfigError(
            f"there is no file {path} of SWE tasks; make one with `instar tasks make-swe PACKAGE`, "
            "or name a file in SWE-bench's form with the option tasks"
        )
    try:
        rows = list(_rows(path))
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as {path.suffix or 'JSONL'}: {error}") from None
    records = [_record(row, number, path) for number, row in enumerate(rows, 1)]
    if len({record.instance_id for record in records}) < len(records):
        raise ConfigError(f"{path} has the same instance_id twice")
    return records


def _rows(path: Path) -> Iterable[Any]:
    if path.suffix == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError:
            raise ConfigError(
                f"{path} is a Parquet file, which needs pyarrow: pip install pyarrow, or convert "
                "it to JSONL"
            ) from None
        rows: list[Any] = parquet.read_table(path).to_pylist()
        return rows
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        found = json.loads(text)
        return list(found.values()) if isinstance(found, dict) else found
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _record(row: Any, number: int, path: Path) -> Record:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{path}: record {number} is no object")
    if missing := [key for key in NEEDED if key not in row]:
        raise ConfigError(f"{path}: record {number} has no {', '.join(missing)}")
    text = {
        key: str(row.get(key) or "")
        for key in ("repo", "base_commit", "patch", "test_patch", "version", "sdist", "split")
    }
    if not text["sdist"] and not (text["repo"] and text["base_commit"]):
        raise ConfigError(
            f"{path}: record {number} says neither sdist nor repo and base_commit, so there is "
            "nothing to work on"
        )
    return Record(
        instance_id=str(row["instance_id"]),
        problem_statement=str(row["problem_statement"]),
        fail_to_pass=_tests(row["FAIL_TO_PASS"], path, number),
        pass_to_pass=_tests(row["PASS_TO_PASS"], path, number),
        folder=path.parent,
        **text,
    )


def _tests(value: Any, path: Path, number: int) -> tuple[str, ...]:
    """SWE-bench writes lists as JSON in a string; other files have them as lists."""
    try:
        found = json.loads(value) if isinstance(value, str) else list(value)
        if all(isinstance(one, str) for one in found):
            return tuple(found)
    except (ValueError, TypeError):
        pass
    raise ConfigError(f"{path}: record {number} has tests that are no list of names: {value!r:.80}")


def as_row(record: Record) -> dict[str, str]:
    """The record as SWE-bench writes it."""
    row = {
        "instance_id": record.instance_id,
        "repo": record.repo,
        "base_commit": record.base_commit,
        "version": record.version,
        "problem_statement": record.problem_statement,
        "hints_text": "",
        "patch": record.patch,
        "test_patch": record.test_patch,
        "FAIL_TO_PASS": json.dumps(record.fail_to_pass),
        "PASS_TO_PASS": json.dumps(record.pass_to_pass),
    }
    return {**row, "sdist": record.sdist} if record.sdist else row
