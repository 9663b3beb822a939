"""Terminal tasks: every one can be solved, none is solved by doing nothing, none by cheating."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from instar.envs import bwrap, harbor, open_environment
from instar.envs.actions import BASH, SUBMIT_TOOL, Style, read_reply, told
from instar.envs.sandbox import Ran
from instar.envs.terminal_tasks import kind_of, shipped, worked_examples
from instar.errors import ConfigError, EnvironmentFailure
from instar.types import Message

needs_bwrap = pytest.mark.skipif(bwrap.find_bwrap() is None, reason=bwrap.HINT)
TEMPLATE = re.compile(r"-\d+$")
FIRSTS = {TEMPLATE.sub("", task.id): task for task in reversed(shipped())}
"""The first variant of each task; `make test-envs` plays all."""
BY_ID = {task.id: task for task in shipped()}


def call(command: str, name: str = "bash", **arguments: Any) -> Message:
    made = {"command": command, **arguments} if name == "bash" else arguments
    function = {"name": name, "arguments": json.dumps(made)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]}


async def play(task: str, *replies: Message, **options: Any) -> tuple[float, dict[str, Any]]:
    async with open_environment("terminal", options) as environment:
        await environment.reset(task)
        for reply in replies:
            await environment.step(reply)
        return await environment.score()


async def gold_and_nothing(played: list[harbor.Task], **options: Any) -> dict[str, Any]:
    """Tasks whose solution does not earn 1 or whose untouched state does not earn 0."""
    room, wrong = asyncio.Semaphore(4), {}

    async def judge(task: harbor.Task) -> None:
        async with room:
            solved, nothing = (
                await play(task.id, call(task.solution), **options),
                await play(task.id, **options),
            )
        if (solved[0], nothing[0]) != (1.0, 0.0):
            wrong[task.id] = solved, nothing

    await asyncio.gather(*map(judge, played))
    return wrong


def test_there_are_enough_tasks_of_every_difficulty() -> None:
    count = dict.fromkeys(("trivial", "easy", "medium", "hard"), 0)
    for task in FIRSTS.values():
        count[task.difficulty] += 1
    assert len(FIRSTS) >= 60 and count["trivial"] >= 20 and min(count.values()) >= 8, count
    assert len({task.id for task in shipped()}) == len(shipped())
    assert all(task.max_steps == 4 for task in shipped() if task.difficulty == "trivial")


@needs_bwrap
async def test_every_solution_passes_and_doing_nothing_fails() -> None:
    assert await gold_and_nothing(list(FIRSTS.values())) == {}


async def test_splits_do_not_overlap_and_stay() -> None:
    async with open_environment("terminal") as one, open_environment("terminal", {}) as two:
        train, test = await one.tasks("train"), await one.tasks("test")
        assert not set(train) & set(test) and len(train) + len(test) == len(shipped())
        assert len(test) == len(shipped()) // 4
        assert await two.tasks("train") == train
        with pytest.raises(ConfigError, match="no split 'dev'"):
            await one.tasks("dev")
        with pytest.raises(ConfigError, match="no terminal task 'x'"):
            await one.reset("x")


async def test_task_types_and_difficulties_are_chosen() -> None:
    options = {"task_type": "bash_commands,git", "difficulty": "trivial"}
    with pytest.raises(ConfigError, match="no tasks of kind git"):
        async with open_environment("terminal", options):
            pass
    async with open_environment("terminal", {"task_type": "system", "difficulty": "hard"}) as env:
        found = await env.tasks("train") + await env.tasks("test")
    kinds = {task.id: (task.kind, task.difficulty) for task in shipped()}
    assert found and {kinds[task] for task in found} == {("system", "hard")}
    with pytest.raises(ConfigError, match="max_steps"):
        async with open_environment("terminal", {"max_steps": 0}):
            pass


@needs_bwrap
async def test_what_the_agent_is_shown() -> None:
    async with open_environment("terminal") as environment:
        messages, tools = await environment.reset("create-file-1")
        assert [message["role"] for message in messages] == ["system", "user"]
        assert messages[1]["content"] == "Create an empty file named a.txt."
        assert [tool["function"]["name"] for tool in tools] == ["bash", "submit"]
        said, done = await environment.step(call("echo hi; echo no >&2; cd /tmp; exit 3"))
        assert not done and said == [
            {
                "role": "tool",
                "tool_call_id": "c",
                "content": "exit code: 3 (this ended the shell; a new one was started)\n"
                "hi\n[stderr]\nno",
            }
        ]
        said, _ = await environment.step(call("pwd"))
        assert said[0]["content"] == "exit code: 0\n/app"
        said, done = await environment.step(call("", name="submit"))
        assert done and said[0]["content"] == "submitted"
        assert await environment.score() == (
            0.0,
            {"steps": 3, "submitted": True, "checks": {"exists and is empty": False}},
        )
        await environment.reset("create-file-2")  # a fresh place
        assert (await environment.step(call("ls -A")))[0][0]["content"] == "exit code: 0"


@needs_bwrap
async def test_worked_examples_are_train_tasks_and_never_the_task_itself() -> None:
    async with open_environment("terminal") as environment:
        train, test = await environment.tasks("train"), await environment.tasks("test")
    for name in ("create-file-3", "create-file-7", "print-folder"):
        task = BY_ID[name]
        shown = worked_examples(task, shipped(), 4)
        assert shown == worked_examples(task, shipped(), 4)
        assert {one.id for one in shown} <= set(train)
        assert len({kind_of(one) for one in (task, *shown)}) == 5
        alike = worked_examples(task, shipped(), 4, alike=2)
        of_kind = [one for one in alike if kind_of(one) == kind_of(task)]
        assert len(alike) == 4 and len(of_kind) == (0 if name == "print-folder" else 2)
        assert task not in alike and not {one.id for one in alike} & set(test)


@needs_bwrap
@pytest.mark.parametrize("style", ["command", "fenced", "tools"])
async def test_worked_examples_are_replies_that_the_style_takes(style: Style) -> None:
    options = {"style": style, "examples": 3}
    async with open_environment("terminal", options) as environment:
        messages, tools = await environment.reset("create-file-3")
    solutions = [
        one.solution.strip() for one in worked_examples(BY_ID["create-file-3"], shipped(), 3)
    ]
    replies = [one for one in messages if one["role"] == "assistant"]
    read = [read_reply(one, style, tools) for one in replies]
    assert [[call.arguments["command"] for call in calls] for calls in read] == [
        [solution] for solution in solutions
    ]
    assert [one["role"] for one in messages][:2] == ["system", "user"]
    assert messages[-1] == {"role": "user", "content": BY_ID["create-file-3"].instruction}


async def test_reward_is_the_share_of_checks() -> None:
    reward, details = await play("make-tree", call("mkdir src tests; touch src/main.py"))
    assert reward == 0.75
    assert details["checks"] == {"src": True, "tests": True, "docs": False, "main": True}


@needs_bwrap
async def test_steps_are_bounded() -> None:
    async with open_environment("terminal", {"max_steps": 2}) as environment:
        await environment.reset("create-file-1")
        assert (await environment.step(call("true")))[1] is False
        assert (await environment.step(call("true")))[1] is True
        await environment.reset("create-file-1")
        two = call("echo 1")["tool_calls"] + call("echo 2")["tool_calls"]
        said, done = await environment.step({"role": "assistant", "tool_calls": two})
        assert done and [m["content"] for m in said] == ["exit code: 0\n1", "exit code: 0\n2"]
    async with open_environment("terminal") as environment:
        await environment.reset("create-file-1")
        assert [(await environment.step(call("true")))[1] for _ in range(4)] == [*[False] * 3, True]


@needs_bwrap
@pytest.mark.parametrize(
    ("style", "content"),
    [
        ("fenced", "I make it.\n```bash\ntouch a.txt\n```"),
        ("command", "touch a.txt"),
        ("command", "`touch a.txt`"),
        ("command", "```\n$ touch a.txt\n```"),
    ],
)
async def test_replies_in_plain_text(style: str, content: str) -> None:
    async with open_environment("terminal", {"style": style}) as environment:
        messages, tools = await environment.reset("create-file-1")
        assert tools == [] and "tool" not in messages[0]["content"]
        said, done = await environment.step({"role": "assistant", "content": content})
        assert said == [{"role": "user", "content": "exit code: 0"}] and not done
        said, done = await environment.step({"role": "assistant", "content": "submit"})
        assert done
        assert (await environment.score())[0] == 1.0


@pytest.mark.parametrize(
    ("style", "text", "name", "argument"),
    [
        ("tools", "all done", "submit", "all done"),
        ("tools", "```sh\nls\n```", "bash", "ls"),
        ("fenced", "```python\nprint(1)\n```\nthen\n```\nls\npwd\n```", "bash", "ls\npwd"),
        ("fenced", "```bash\nls\n```\n```bash\nrm x\n```", "bash", "ls"),
        ("fenced", "ls", "submit", "ls"),
        ("fenced", "```bash\nls", "submit", "```bash\nls"),
        ("command", "$ ls -a ", "bash", "ls -a"),
        ("command", "submit\n", "submit", "submit"),
        ("command", "", "submit", ""),
    ],
)
def test_reading_text(style: Style, text: str, name: str, argument: str) -> None:
    (found,) = read_reply({"role": "assistant", "content": text}, style, [BASH, SUBMIT_TOOL])
    assert (found.name, next(iter(found.arguments.values())), found.id) == (name, argument, None)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("fly", "{}", "there is no tool fly; bash, submit"),
        ("bash", "{", "not a JSON object"),
        ("bash", "[1]", "not a JSON object"),
        ("bash", "{}", "command is missing"),
        ("bash", '{"command": 3}', "command is missing or not a string"),
    ],
)
def test_calls_that_cannot_be_made(name: str, arguments: str, error: str) -> None:
    made = {"id": "c", "function": {"name": name, "arguments": arguments}}
    (found,) = read_reply({"tool_calls": [made]}, "tools", [BASH, SUBMIT_TOOL])
    assert error in found.error and found.id == "c"


def test_what_is_told() -> None:
    assert told(Ran(code=1, err=b"bad\n")) == "exit code: 1\n[stderr]\nbad"
    assert told(Ran(code=137, out=b"a\n", note="late")) == "exit code: 137 (late)\na"


CHEATS = {
    "writes its own reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "brings its own test": "echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
    "leaves a daemon": "(setsid bash -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' &)",
    "makes the folder of tests a link": "ln -s /tmp /tests/x; ln -sf /dev/null /logs/verifier",
    "hides programs": "mkdir ~/bin; echo true > ~/bin/cat; chmod +x ~/bin/cat; PATH=~/bin:$PATH",
    "start-up file": "echo 'exit 0' > ~/.bashrc; export BASH_ENV=~/.bashrc",
    "fills the disk": "cat /dev/zero > /tmp/x; for i in 1 2 3; do echo > /tmp/$i; done",
    "makes readers wait": "mkfifo a.txt",
}


@needs_bwrap
@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
async def test_cheating_earns_nothing(cheat: str) -> None:
    reward, _ = await play("create-file-1", call(cheat))
    assert reward == 0.0


@needs_bwrap
async def test_checks_that_never_end_earn_nothing() -> None:
    slow = harbor.Task(id="slow", instruction="x", tests={"test.sh": "sleep 60"}, verifier_s=1.0)
    async with open_environment("terminal") as environment:
        environment._tasks = {"slow": slow}  # type: ignore[attr-defined]
        await environment.reset("slow")
        reward, details = await environment.score()
    assert reward == 0.0 and "over 1 s" in details["why"]


@needs_bwrap
async def test_written_tasks_load_and_play_the_same(tmp_path: Path) -> None:
    chosen = [FIRSTS[name] for name in ("make-tree", "git-branch", "stop-process", "sum-column")]
    for task in chosen[:2] + chosen[3:]:
        harbor.write(task, tmp_path)
    loaded = harbor.load_folder(tmp_path)
    assert sorted(task.id for task in loaded) == ["git-branch", "make-tree", "sum-column-1"]
    for task in loaded:
        original = FIRSTS[TEMPLATE.sub("", task.id)]
        assert (task.instruction, task.difficulty) == (original.instruction, original.difficulty)
    assert await gold_and_nothing(loaded, tasks=str(tmp_path)) == {}


@needs_bwrap
async def test_a_foreign_task_folder(tmp_path: Path) -> None:
    """As Harbor's documentation describes it: a Dockerfile, tests that write reward.json."""
    folder = tmp_path / "org" / "count"
    for name, text in {
        "task.toml": 'version = "1.0"\n[metadata]\ndifficulty = "easy"\ncategory = "data"\n'
        "[verifier]\ntimeout_sec = 30.0\n[environment]\nmemory_mb = 2048\n",
        "instruction.md": "Count the lines of data.txt into count.txt.\n",
        "environment/Dockerfile": "FROM ubuntu:24.04\n# a comment\nENV GREETING=hi\n"
        "WORKDIR /site/place\nCOPY data.txt extra ./\nCOPY sub/ /site/sub/\n"
        'RUN mkdir -p deep && \\\n    echo "$GREETING" > deep/made.txt\nUSER nobody\n',
        "environment/data.txt": "a\nb\nc\n",
        "environment/extra": "x\n",
        "environment/sub/inner.txt": "inner\n",
        "tests/test.sh": "#!/bin/bash\nmkdir -p /logs/verifier\nbash /tests/more.sh && s=1 || s=0\n"
        'echo "{\\"reward\\": $s, \\"speed\\": 0.5}" > /logs/verifier/reward.json\n',
        "tests/more.sh": '[ "$(cat count.txt)" = 3 ] && [ "$(cat deep/made.txt)" = hi ] && '
        '[ "$(cat ../sub/inner.txt)" = inner ] && [ "$GREETING" = hi ]\n',
        "solution/solve.sh": "wc -l < data.txt > count.txt\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (task,) = harbor.load_folder(tmp_path)
    assert (task.id, task.workdir, task.kind) == ("org/count", "/site/place", "data")
    options = {"tasks": str(tmp_path)}
    assert await gold_and_nothing([task], **options) == {}
    async with open_environment("terminal", options) as environment:
        await environment.reset(task.id)
        (said,), _ = await environment.step(call("pwd; ls; echo $GREETING; ls -A /tmp"))
        assert said["content"] == "exit code: 0\n/site/place\ndata.txt\ndeep\nextra\nhi"


@needs_bwrap
async def test_broken_tasks_are_no_fault_of_the_agent() -> None:
    broken = harbor.Task(id="b", instruction="x", setup="no-such-program", tests={"test.sh": ""})
    silent = harbor.Task(id="s", instruction="x", tests={"test.sh": "echo no reward here"})
    async with open_environment("terminal") as environment:
        environment._tasks = {"b": broken, "s": silent}  # type: ignore[attr-defined]
        with pytest.raises(EnvironmentFailure, match="no task is being played"):
            await environment.score()
        with pytest.raises(EnvironmentFailure, match=r"could not be set up: .*no-such-program"):
            await environment.reset("b")
        await environment.reset("s")
        with pytest.raises(EnvironmentFailure, match=r"left no reward .* no reward here"):
            await environment.score()


def test_folders_that_are_no_tasks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        harbor.load_folder(tmp_path / "none")
    with pytest.raises(ConfigError, match="holds no task"):
        harbor.load_folder(tmp_path)
    (tmp_path / "task.toml").write_text("= bad")
    with pytest.raises(ConfigError, match="cannot be read"):
        harbor.load_folder(tmp_path)
    (tmp_path / "task.toml").write_text("")
    (tmp_path / "instruction.md").write_text("x")
    with pytest.raises(ConfigError, match=r"no tests/test.sh"):
        harbor.load_folder(tmp_path)
    for text, word in (("HEALTHCHECK x", "HEALTHCHECK"), ("COPY --from=a b c", "another image")):
        with pytest.raises(ConfigError, match=word):
            harbor.follow_dockerfile(text, "Dockerfile")
    with pytest.raises(ConfigError, match="network"):
        harbor.follow_dockerfile("ADD https://example.org/x /x", "Dockerfile")
