"""SWE tasks: made and proved, solved by their patch, by nothing else, and by no trick."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from small_swe import FILES, SOURCE, TESTS, archive, small_site

from instar.envs import bwrap, open_environment
from instar.envs.swe_grade import is_kept
from instar.envs.swe_make import Wanted, fetch, make_tasks
from instar.envs.swe_mutate import edits
from instar.envs.swe_records import Record, as_row, load_records
from instar.errors import ConfigError, EnvironmentFailure
from instar.types import Message

needs_sandbox = pytest.mark.skipif(
    bwrap.find_bwrap() is None or shutil.which("git") is None, reason=f"needs git. {bwrap.HINT}"
)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of tasks made of a small package, without the network."""
    folder = tmp_path_factory.mktemp("swe")
    sdist = archive(folder / "tally-1.0.tar.gz")
    out = folder / "out"
    out.mkdir()
    small_site(out / "site")
    said = list[str]()
    made = asyncio.run(
        make_tasks([str(sdist)], out, Wanted(count=2, tries=4), extras=(), say=said.append)
    )
    assert said[0] == "tally 1.0: 6 of 6 tests pass"
    assert len(made) == 2
    return out / "tasks.jsonl"


def call(name: str, **arguments: str) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}


async def play(tasks: Path, record: Record, *replies: Message) -> tuple[float, dict[str, Any]]:
    async with open_environment("swe", {"tasks": str(tasks)}) as environment:
        await environment.reset(record.instance_id)
        for reply in replies:
            await environment.step(reply)
        return await environment.score()


def mend(record: Record) -> Message:
    return call("bash", command=f"git apply <<'END'\n{record.patch}END\n")


@needs_sandbox
async def test_tasks_are_proved(tasks: Path) -> None:
    records = load_records(tasks)
    assert len({record.instance_id for record in records}) == 2
    for record in records:
        assert record.fail_to_pass and record.pass_to_pass
        assert not set(record.fail_to_pass) & set(record.pass_to_pass)
        assert record.fail_to_pass[0] in record.problem_statement
        assert "core.py" not in record.problem_statement.replace("test_core.py", "")
        solved, nothing = await asyncio.gather(
            play(tasks, record, mend(record)), play(tasks, record)
        )
        assert solved[0] == 1.0 and nothing[0] == 0.0
        assert nothing[1]["fail_to_pass"] == f"0/{len(record.fail_to_pass)}"
        assert nothing[1]["pass_to_pass"].split("/")[0] == nothing[1]["pass_to_pass"].split("/")[1]
        assert solved[1]["model_patch"].splitlines()[0] == record.patch.splitlines()[0]


PASS_ALL = """import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
FAKE_CALL = "import _pytest.python as p; p.Function.runtest = lambda self: None"
CHEATS = {
    "rewrites the tests": "sed -i 's/assert .*/assert True/' tests/test_core.py",
    "deletes the tests": "rm -r tests",
    "empties the tests": "echo > tests/test_core.py",
    "adds a conftest": f"cat > conftest.py <<'END'\n{PASS_ALL}END",
    "adds a conftest to the tests": f"cat > tests/conftest.py <<'END'\n{PASS_ALL}END",
    "adds a plugin by pytest.ini": f"cat > evil.py <<'END'\n{PASS_ALL}END\n"
    "printf '[pytest]\\naddopts = -p evil\\n' > pytest.ini",
    "adds a plugin by setup.cfg": f"cat > evil.py <<'END'\n{PASS_ALL}END\n"
    "printf '[tool:pytest]\\naddopts = -p evil\\n' > setup.cfg",
    "adds a plugin by metadata": f"cat > evil.py <<'END'\n{PASS_ALL}END\nmkdir e-1.dist-info\n"
    "printf 'Name: e\\nVersion: 1\\n' > e-1.dist-info/METADATA\n"
    "printf '[pytest11]\\ne = evil\\n' > e-1.dist-info/entry_points.txt",
    "starts with Python": f"echo '{FAKE_CALL}' | tee sitecustomize.py usercustomize.py",
    "stands before a module": f"echo '{FAKE_CALL}' | tee json.py random.py pytest.py glob.py",
    "stands before a package": "mkdir _pytest pluggy; touch _pytest/__init__.py pluggy/__init__.py",
    "makes the tests a link": "mkdir other; sed 's/assert .*/assert True/' tests/test_core.py > "
    "other/test_core.py; rm -r tests; ln -s other tests",
    "prints what is wanted": "sed -i '1a print(\"5 passed\"); import os; os._exit(0)' "
    "tally/__init__.py",
    "changes git": "git config core.fsmonitor 'echo x'; git checkout -q --orphan new; "
    "git commit -qam x; rm -rf .git/refs; sed -i 's/assert .*/assert True/' tests/test_core.py",
    "hides files": "echo '*' > .gitignore; printf '[pytest]\\naddopts=--co\\n' > pytest.ini",
    "ends the work": "rm -rf .git ./*",
}


ALONE = ("deletes the tests", "makes the tests a link", "prints what is wanted", "changes git")
"""Tricks that would undo others; the rest are tried all in one here, each alone in tests/envs."""


async def rewards(tasks: Path, commands: list[str]) -> list[float]:
    record, room = load_records(tasks)[0], asyncio.Semaphore(3)

    async def reward(command: str) -> float:
        async with room:
            return (await play(tasks, record, call("bash", command=command)))[0]

    return await asyncio.gather(*map(reward, commands))


@needs_sandbox
async def test_no_trick_passes(tasks: Path) -> None:
    rest = [text for name, text in CHEATS.items() if name not in (*ALONE, "ends the work")]
    found = await rewards(tasks, [*(CHEATS[name] for name in ALONE), "\n".join(rest)])
    assert found == [0.0] * 5


@needs_sandbox
async def test_a_right_change_counts_whatever_else_was_done(tasks: Path) -> None:
    record = load_records(tasks)[0]
    noise = (
        "rm tests/test_core.py; echo '[pytest]' > pytest.ini; echo 1/0 > conftest.py; touch new.py;"
        " printf '\\0\\1' > tally/data.bin; rm -rf .git; (setsid sleep 1000 &)"
    )
    reward, details = await play(tasks, record, mend(record), call("bash", command=noise))
    assert reward == 1.0
    assert "tally/data.bin" in details["model_patch"]


@needs_sandbox
async def test_the_agent_sees_one_commit_and_can_run_the_tests(tasks: Path) -> None:
    record = load_records(tasks)[0]
    async with open_environment("swe", {"tasks": str(tasks), "max_steps": 3}) as environment:
        messages, tools = await environment.reset(record.instance_id)
        assert messages[1]["content"] == record.problem_statement
        assert [tool["function"]["name"] for tool in tools] == ["bash", "edit", "submit"]
        (said,), done = await environment.step(call("bash", command="git log --format=%s --all"))
        assert said["content"] == "exit code: 0\nbase" and not done
        (said,), done = await environment.step(call("bash", command="python3 -m pytest -q; pwd"))
        assert said["content"].count("FAILED tests/") == len(record.fail_to_pass)
        assert said["content"].endswith("/repo") and not done
        assert (await environment.step(call("submit")))[1]


@needs_sandbox
async def test_the_edit_tool(tasks: Path) -> None:
    record = load_records(tasks)[0]
    made = '"""Counting.\n\nAnd\tmore é.\n"""'
    cases = [
        ({"path": "tally/core.py", "old": '"""Counting."""', "new": made}, "changed tally/core.py"),
        ({"path": "tally/core.py", "old": "return", "new": ""}, "occurs 3 times"),
        ({"path": "tally/core.py", "old": "nowhere", "new": ""}, "occurs 0 times"),
        ({"path": "none.py", "old": "x", "new": ""}, "there is no file none.py"),
        ({"path": "tally/core.py", "old": "", "new": "x"}, "exists already"),
        ({"path": "a/b.py", "old": "", "new": "x = 1\n"}, "changed a/b.py"),
        ({"path": "/etc/passwd", "old": "root", "new": "x"}, "error"),
        ({"path": "a/b.py"}, "old is missing"),
    ]
    async with open_environment("swe", {"tasks": str(tasks)}) as environment:
        await environment.reset(record.instance_id)
        for arguments, expected in cases:
            (said,), _ = await environment.step(call("edit", **arguments))
            assert expected in said["content"], arguments
        (said,), _ = await environment.step(
            call("bash", command="cat a/b.py; head -n 4 tally/core.py")
        )
        assert said["content"] == f"exit code: 0\nx = 1\n{made}"


@needs_sandbox
async def test_a_record_of_swe_bench(tmp_path: Path) -> None:
    """A git repository at a commit, and a patch that brings the test."""
    repo = tmp_path / "repos" / "org__tally"
    for name, text in FILES.items():
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("result + value", "result - value"))

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        ran = subprocess.run(["git", *who, *arguments], cwd=repo, check=True, capture_output=True)
        return ran.stdout.decode()

    git("init", "-q", ".")
    git("add", ".")
    git("commit", "-qm", "one")
    base = git("rev-parse", "HEAD").strip()
    (repo / "tally" / "core.py").write_text(SOURCE)
    patch = git("diff")
    git("commit", "-qam", "two")
    (repo / "tests" / "test_more.py").write_text(
        "from tally import total\n\ndef test_more():\n    assert total([2, 2]) == 4\n"
    )
    git("add", ".")
    test_patch = git("diff", "--cached")
    row = {
        "instance_id": "org__tally-1",
        "repo": "org/tally",
        "base_commit": base,
        "problem_statement": "total subtracts",
        "patch": patch,
        "test_patch": test_patch,
        "FAIL_TO_PASS": '["tests/test_more.py::test_more", "tests/test_core.py::test_total"]',
        "PASS_TO_PASS": ["tests/test_core.py::test_clamp_above"],
        "hints_text": "",
        "created_at": "2026-01-01T00:00:00Z",
    }
    tasks = tmp_path / "bench.json"
    tasks.write_text(json.dumps([row]))
    (record,) = load_records(tasks)
    assert (await play(tasks, record, mend(record)))[0] == 1.0
    bring = call("bash", command="printf 'def test_more(): pass\\n' > tests/test_more.py")
    assert (await play(tasks, record, bring))[0] == 0.0
    shutil.rmtree(repo)
    shutil.rmtree(tmp_path / "images")
    with pytest.raises(
        ConfigError, match=r"org/tally, which is not here: clone it to .*org__tally"
    ):
        await play(tasks, record)


def test_files_of_records(tmp_path: Path) -> None:
    record = Record(
        instance_id="a",
        problem_statement="p",
        fail_to_pass=("t.py::x",),
        pass_to_pass=("u.py::y", "t.py::z"),
        sdist="s.tar.gz",
    )
    assert record.test_files == ("t.py", "u.py")
    row = as_row(record)
    for name, text in (
        ("a.jsonl", json.dumps(row) + "\n\n"),
        ("a.json", json.dumps([row])),
        ("b.json", json.dumps({"a": row})),
    ):
        (tmp_path / name).write_text(text)
        (found,) = load_records(tmp_path / name)
        assert as_row(found) == row and found.folder == tmp_path
    bad = {
        "[1]": "record 1 is no object",
        json.dumps([{**row, "FAIL_TO_PASS": "x"}]): "no list of names",
        json.dumps([{**row, "PASS_TO_PASS": [1]}]): "no list of names",
        json.dumps([{"instance_id": "a"}]): "has no problem_statement, FAIL_TO_PASS, PASS_TO_PASS",
        json.dumps([{**row, "sdist": ""}]): "nothing to work on",
        json.dumps([row, row]): "same instance_id twice",
        "{": "cannot be read",
    }
    for text, problem in bad.items():
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match=problem):
            load_records(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match="make one with `instar tasks make-swe"):
        load_records(tmp_path / "none.jsonl")


def test_parquet(tmp_path: Path) -> None:
    row = as_row(
        Record(instance_id="a", problem_statement="p", fail_to_pass=(), pass_to_pass=(), sdist="s")
    )
    file = tmp_path / "a.parquet"
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        file.write_bytes(b"")
        with pytest.raises(ConfigError, match="needs pyarrow"):
            load_records(file)
        return
    parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    assert as_row(load_records(file)[0]) == row


@needs_sandbox
async def test_broken_archives_are_no_fault_of_the_agent(tmp_path: Path) -> None:
    record = Record(
        instance_id="a",
        problem_statement="p",
        fail_to_pass=("t.py::x",),
        pass_to_pass=(),
        sdist="s.tar.gz",
    )
    (tmp_path / "s.tar.gz").write_bytes(b"no archive")
    tasks = tmp_path / "t.jsonl"
    tasks.write_text(json.dumps(as_row(record)))
    with pytest.raises(EnvironmentFailure, match="cannot be unpacked"):
        await play(tasks, record)
    assert list((tmp_path / "images").iterdir()) == []
    with pytest.raises(ConfigError, match="neither a file nor a package name"):
        fetch("no such thing", tmp_path)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("tally/core.py", False),
        ("tests/data.json", True),
        ("tally/tests/x.py", True),
        ("test_x.py", True),
        ("x_test.py", True),
        ("conftest.py", True),
        ("a/conftest.py", True),
        ("pyproject.toml", True),
        ("json.py", True),
        ("json/__init__.py", True),
        ("src/random.py", True),
        ("tally/json.py", False),
        ("a.egg-info/PKG-INFO", True),
        ("tally/testing.py", False),
        ("named.py", True),
        ("queue.py", False),
    ],
)
def test_what_is_put_back(path: str, kept: bool) -> None:
    assert is_kept(path, ["named.py"], {"queue.py"}) is kept


def test_bugs_by_hand() -> None:
    source = (
        "x = 1 < 2\n\ndef f(a, b):\n    if not a and b is None:\n        return a + 1\n"
        "    return é(a[2:]) >= b\n"
    )
    changed = [edit.apply(source).splitlines()[2:] for edit in edits(source)]
    lines = [line for text in changed for line in text if line not in source.splitlines()]
    assert sorted(lines) == sorted(
        [
            "    if not (not a and b is None):",
            "    if a and b is None:",
            "    if not a or b is None:",
            "    if not a and b is not None:",
            "        return None",
            "        return a - 1",
            "        return a + 2",
            "    return None",
            "    return é(a[2:]) > b",
            "    return é(a[3:]) >= b",
        ]
    )
    assert edits("def f(:") == [] and edits("x = 1 + 2") == []


@pytest.mark.parametrize("source", [SOURCE, TESTS, Path(__file__).read_text(encoding="utf-8")])
def test_a_bug_changes_one_place(source: str) -> None:
    for edit in edits(source):
        changed = edit.apply(source)
        assert changed != source
        assert changed[: edit.start] == source[: edit.start]
        assert changed[edit.start + len(edit.new) :] == source[edit.end :]
