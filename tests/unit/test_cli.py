"""The commands: their help, what they print for people and programs, and how they fail."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from instar.cli import app
from instar.commands import common
from instar.commands.reference import pages
from instar.commands.serve import until_stopped
from instar.envs import ENVIRONMENTS
from instar.record.store import open_store
from instar.text import byte_tokenizer
from instar.types import Hint, Message, Sampling, Turn, Verdict

ROOT = Path(__file__).parents[2]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command in a home of its own and expects an exit code."""

    def runs(*args: str, code: int = 0, home: bool = True) -> Any:
        more = ["--home", str(tmp_path / "home")] if home else []
        result = CliRunner().invoke(app, [*args, *more], env={"COLUMNS": "160"})
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return runs


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_of_every_command(path: tuple[str, ...], run: Run) -> None:
    assert "Usage" in run(*path, "--help", home=False).output


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_speaks_json_and_explains_itself(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert command.help
    if not hasattr(command, "commands"):
        assert any("--json" in param.opts for param in command.params), path
        for param in command.params:
            assert param.help or param.name == "context", f"{path} {param.name}"


def test_help_names_every_environment() -> None:
    """It is written out there, since help imports no environments."""
    (env,) = (param for param in COMMANDS["rollout",].params if param.name == "env")
    assert set(re.findall(r"\w+", env.help)) - {"or"} == set(ENVIRONMENTS)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom instar.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'sqlalchemy', 'fastapi', 'pydantic', 'numpy', 'yaml'}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "instar up" in done.stdout


def test_version(run: Run) -> None:
    assert json.loads(run("version", "--json", home=False).stdout) == {"instar": "0.1.0"}
    assert run("version", home=False).stdout == "instar 0.1.0\n"


def test_an_error_is_one_line_and_exit_code_2(run: Run) -> None:
    result = run("config", "show", "--set", "gateway.prot=1", code=2)
    assert result.stderr == (
        "error: gateway.prot (--set): unknown key; did you mean gateway.port?\n"
    )
    assert result.stdout == ""


def test_debug_shows_the_traceback() -> None:
    result = CliRunner().invoke(app, ["--debug", "config", "show", "--set", "x"])
    assert type(result.exception).__name__ == "ConfigError"


def test_config_show(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf-very-secret")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("store:\n  url: postgresql://ann:pass@db/instar\n")
    shown = json.loads(run("config", "show", "--set", "training.method=opd", "--json").stdout)
    settings = shown["settings"]
    assert settings["training.method"] == {"value": "opd", "source": "--set"}
    assert settings["gateway.port"] == {"value": 30000, "source": "default"}
    assert settings["store.url"]["value"] == "postgresql://ann:***@db/instar"
    assert settings["store.url"]["source"] == f"{home}/config.yaml:2"
    assert shown["secrets"]["HF_TOKEN"] is True
    text = run("config", "show", "--changed").stdout
    assert "store.url" in text and "HF_TOKEN" in text
    assert "pass" not in text and "hf-very-secret" not in text and "gateway.port" not in text


def test_a_pipe_gets_whole_lines(tmp_path: Path) -> None:
    def shown(columns: dict[str, str]) -> list[str]:
        command = [sys.executable, "-m", "instar", "config", "show", "--home", str(tmp_path)]
        others = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        done = subprocess.run(command, env=others | columns, capture_output=True, check=True)
        return done.stdout.decode().splitlines()

    name = "rollout_config.message_classification.main_line"
    piped, narrow = shown({}), shown({"COLUMNS": "60"})
    whole = [line.split() for line in piped if name in line]
    assert whole == [[name, '["user",', '"assistant"]', "default"]]
    assert max(map(len, piped)) < 200, "no line is filled up with blanks"
    assert not any(name in line for line in narrow) and max(map(len, narrow)) <= 60


def test_config_check(run: Run, tmp_path: Path) -> None:
    good = str(ROOT / "configs" / "training_config.yaml")
    assert "24 settings" in run("config", "check", good, home=False).stdout
    assert json.loads(run("config", "check", good, "--json", home=False).stdout)["ok"] is True
    bad = tmp_path / "bad.yaml"
    bad.write_text("trainng:\n  batch_size: 3\n")
    said = run("config", "check", str(bad), code=2, home=False).stderr
    assert f"{bad}:1" in said and "did you mean training?" in said
    report = json.loads(run("config", "check", str(bad), "--json", code=2, home=False).stdout)
    assert report["ok"] is False and "trainng" in report["error"]


def test_keys(run: Run) -> None:
    made = json.loads(run("keys", "create", "--owner", "ann", "--note", "n", "--json").stdout)
    listed = json.loads(run("keys", "list", "--json").stdout)
    assert [(one["id"], one["owner"], one["note"]) for one in listed] == [(made["id"], "ann", "n")]
    assert made["key"] not in json.dumps(listed)
    assert made["id"] in run("keys", "list").stdout
    assert json.loads(run("keys", "revoke", made["id"], "--json").stdout)["revoked"] is True
    assert "revoked" in run("keys", "list").stdout
    assert "found no valid key" in run("keys", "revoke", made["id"], code=2).stderr
    assert "--owner is empty" in run("keys", "create", "--owner", " ", code=2).stderr


def test_a_new_key_alone_is_on_standard_output(run: Run) -> None:
    result = run("keys", "create", "--owner", "ann")
    assert len(result.stdout.split()) == 1


IDS = byte_tokenizer()


def turn(name: str, prompt: str, sampled: str, parent: Turn | None = None, **more: Any) -> Turn:
    before = parent.ids if parent else ()
    ids = tuple(IDS.encode(sampled, add_special_tokens=False).ids)
    reply: Message = {"role": "assistant", "content": sampled}
    fields: dict[str, Any] = {
        "id": name,
        "owner": "ann",
        "session": "s-one",
        "parent": parent.id if parent else None,
        "extends": parent is not None,
        "kind": "main",
        "prompt_ids": before + tuple(IDS.encode(prompt, add_special_tokens=False).ids),
        "sampled_ids": ids,
        "logprobs": (-0.5,) * len(ids),
        "settings": Sampling(),
        "version": "base",
        "finish": "stop",
        "messages": ({"role": "user", "content": prompt},),
        "reply": reply,
        "created": 1e9,
    }
    return Turn(**(fields | more))


@pytest.fixture
def recorded(tmp_path: Path) -> list[Turn]:
    """A session with a branch, a side turn, a verdict and a terminal escape, in the home."""
    first = turn("t1", "hello \x1b[31m", "hi")
    verdict = Verdict(score=-1, votes=(-1, None, -1))
    second = turn("t2", "shorter", "ok", first, run="agent-7")
    third = turn("t3", "title?", "greeting", first, kind="side", finish="length", no_train=True)
    other = turn("t4", "again", "yes", second, extends=False, prompt_ids=(1, 2, 3))
    turns = [first, second, third, other]

    async def write() -> None:
        home = tmp_path / "home"
        home.mkdir()
        async with open_store(f"sqlite:///{home}/instar.db") as store:
            for one in turns:
                assert await store.record(one)
            assert await store.record(turn("t9", "other", "no", owner="bob", session="s-two"))
            await store.set_verdict("t2", verdict, Hint(text="Say less."))

    asyncio.run(write())
    common.save_run(
        common.resolve(home=tmp_path, file=None, sets=["engine.type=fake"]), tmp_path / "home"
    )
    return turns


@pytest.mark.usefixtures("recorded")
def test_sessions_list(run: Run) -> None:
    listed = json.loads(run("sessions", "list", "--json").stdout)
    assert {(one["id"], one["owner"], one["turns"]) for one in listed} == {
        ("s-one", "ann", 4),
        ("s-two", "bob", 1),
    }
    mine = json.loads(run("sessions", "list", "--owner", "bob", "--json").stdout)
    assert [one["id"] for one in mine] == ["s-two"]
    text = run("sessions", "list").stdout
    assert "s-one" in text and "bob" in text and "\x1b[31m" not in text


ID = "3f0a2b44-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        # An id of 36 and 5, 5, 4, 6 and 3 for the others, with a blank between each two: 64 in
        # all, which leaves 15 of 80 for the title beside its blank, and none of 60.
        (80, "Why is the sky…"),
        (100, "Why is the sky blue, and not green…"),
        (73, "Why is …"),
        (72, ""),
        (60, ""),
    ],
)
def test_only_titles_are_cut_where_a_terminal_is_narrow(
    tmp_path: Path, columns: int, said: str
) -> None:
    async def write() -> None:
        async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
            title = "Why is the sky blue, and not green, as the grass is?"
            assert await store.record(turn("t1", title, "x", session=ID, created=time.time()))

    asyncio.run(write())
    result = CliRunner().invoke(
        app, ["sessions", "list", "--home", str(tmp_path)], env={"COLUMNS": str(columns)}
    )
    head, row = result.stdout.splitlines()
    assert head.split() == [
        "id",
        "owner",
        *["title"] * bool(said),
        "turns",
        "side",
        "tokens",
        "age",
    ]
    middle = f"{said} " if said else ""
    assert row == f"{ID} ann   {middle}    1    0      1 0 s"
    assert max(map(len, (head, row))) <= max(columns, 64)


def test_sessions_list_of_an_empty_home(run: Run, tmp_path: Path) -> None:
    assert f"No sessions yet in {tmp_path}/home." in run("sessions", "list").stdout
    assert json.loads(run("sessions", "list", "--json").stdout) == []


@pytest.mark.usefixtures("recorded")
def test_an_owner_who_has_nothing_is_named(run: Run) -> None:
    assert "No sessions of eve yet" in run("sessions", "list", "--owner", "eve").stdout
    assert "No keys of eve yet" in run("keys", "list", "--owner", "eve").stdout


@pytest.mark.usefixtures("recorded")
def test_sessions_show_draws_the_tree(run: Run) -> None:
    text = run("sessions", "show", "s-o").stdout
    assert "branch 1 of 2" in text and "branch 2 of 2" in text
    assert "tokens as above" in text and "does not extend" in text and "not trained" in text
    assert "verdict -1 by judge (votes -1, none, -1)" in text and "hint: Say less." in text
    assert "side" in text and "length" in text and "run agent-7" in text
    assert "\x1b[31m" not in text and "␛[31m" in text
    assert "s|h|o|r|t|e|r" in run("sessions", "show", "s-one", "--tokens").stdout


def test_sessions_show_as_json(run: Run, recorded: list[Turn]) -> None:
    shown = json.loads(run("sessions", "show", "s-one", "--json").stdout)
    assert shown["session"]["owner"] == "ann"
    assert [one["id"] for one in shown["turns"]] == [one.id for one in recorded]
    assert shown["turns"][1]["sampled_ids"] == list(recorded[1].sampled_ids)


@pytest.mark.usefixtures("recorded")
def test_sessions_that_are_not_there(run: Run) -> None:
    assert "found no session zz" in run("sessions", "show", "zz", code=2).stderr
    assert "found 2 sessions" in run("sessions", "show", "s-", code=2).stderr
    assert "of bob" in run("sessions", "show", "s-one", "--owner", "bob", code=2).stderr


@pytest.mark.usefixtures("recorded")
def test_sessions_done(run: Run) -> None:
    assert json.loads(run("sessions", "done", "s-one", "--json").stdout)["closed"] is True
    listed = json.loads(run("sessions", "list", "--owner", "ann", "--json").stdout)
    assert listed[0]["closed"] is True


def test_cases_that_are_not_there(run: Run, tmp_path: Path) -> None:
    said = run("judge", "score", str(tmp_path / "none.jsonl"), code=2).stderr
    assert "none.jsonl cannot be read: No such file or directory; expected lines {" in said


def test_a_chart_that_cannot_be_written_is_said_before_the_demo(run: Run, tmp_path: Path) -> None:
    said = run("demo", "--plot", str(tmp_path / "nowhere" / "x.svg"), code=2).stderr
    assert "cannot be written: there is no folder" in said


def test_sessions_export(run: Run, recorded: list[Turn], tmp_path: Path) -> None:
    lines = run("sessions", "export", "--format", "jsonl", "--session", "s-one").stdout
    found = [json.loads(line) for line in lines.splitlines()]
    assert list(found[0]) == [
        "owner",
        "session",
        "turn",
        "parent",
        "kind",
        "prompt_ids",
        "sampled_ids",
        "logprobs",
        "version",
        "settings",
        "finish",
        "messages",
        "next_state",
        "verdict",
        "hint",
        "kind_reason",
        "run",
        "no_train",
        "extends",
    ]
    assert [one["no_train"] for one in found] == [False, False, True, False]
    assert [one["extends"] for one in found] == [False, True, True, False]
    assert [one["turn"] for one in found] == [one.id for one in recorded]
    assert found[1]["hint"] == "Say less." and found[1]["verdict"]["score"] == -1
    out = tmp_path / "out.jsonl"
    summary = run("sessions", "export", "--output", str(out), "--json").stdout
    assert json.loads(summary) == {"turns": 5, "output": str(out)}
    assert len(out.read_text().splitlines()) == 5
    assert list(tmp_path.glob("*.part")) == []
    assert json.loads(run("sessions", "export", "--session", "s-one", "--json").stdout) == found
    assert json.loads(run("sessions", "export", "--owner", "nobody", "--json").stdout) == []
    nowhere = str(tmp_path / "none" / "x")
    assert "cannot be written" in run("sessions", "export", "-o", nowhere, code=2).stderr


def test_bench(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "benchmarks").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    script = (
        '"""Counts.\n\nMore."""\nimport sys\nsys.exit(0 if sys.argv[1:] == ["--n", "3"] else 5)'
    )
    (checkout / "benchmarks" / "counting.py").write_text(script)
    (checkout / "benchmarks" / "_shared.py").touch()
    monkeypatch.setattr("instar.commands.bench.__file__", str(checkout / "src/instar/c/b.py"))
    listed = run("bench", "--json", home=False).stdout
    assert json.loads(listed) == {"counting": "Counts."}
    run("bench", "counting", "--n", "3", home=False)
    run("bench", "counting", home=False, code=5)
    assert "there are counting" in run("bench", "nope", home=False, code=2).stderr
    monkeypatch.setattr("instar.commands.bench.__file__", str(tmp_path / "a/b/c/d/e.py"))
    monkeypatch.chdir(tmp_path)
    assert "clone the repository" in run("bench", home=False, code=2).stderr


@pytest.mark.parametrize("seconds", [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7300, "2 h")])
def test_age(seconds: tuple[float, str]) -> None:
    assert common.age(seconds[0]) == seconds[1]


def test_a_bind_that_others_can_reach_needs_a_key(run: Run) -> None:
    flags = ("--set", "engine.type=fake", "--port", "0")
    for command in ("up", "serve"):
        said = run(command, "--host", "0.0.0.0", *flags, code=2).stderr
        assert "instar keys create --owner NAME" in said


def test_home_that_cannot_be_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    assert "cannot be made" in run("keys", "list", code=2).stderr


async def test_first_signal_asks_and_second_forces() -> None:
    asked = asyncio.Event()

    async def stubborn() -> None:
        await asked.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", lambda code: None)
        with pytest.raises(typer.Exit) as caught:
            await until_stopped(stubborn(), on_stop=asked.set)
    assert caught.value.exit_code == 130


async def test_first_signal_ends_cleanly() -> None:
    asked = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGINT)
    await until_stopped(asked.wait(), on_stop=asked.set)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", pages())
def test_reference_pages_are_fresh(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == pages()[name], "run `make docs`"
