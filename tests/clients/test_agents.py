"""opencode, aider (Chat), codex (Responses), Claude Code (Messages): they act, and are resumed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from checks import (
    Line,
    extends_where_it_continues,
    last_text,
    next_states,
    of_kind,
    one_tree_each,
    trained,
)
from gate import Served
from programs import AGENTS, INSTALLED, MODEL, environment, instar, run
from test_sdks import connected, sessions

Say = Callable[[str, str | None], Awaitable[tuple[str, str]]]
"""Says something, in a session to resume or in a new one; gives what it printed and the session."""


@asynccontextmanager
async def serving(tmp_path: Path, tool: str, **arguments: str) -> AsyncIterator[Served]:
    """instar, with a model that runs a command when told to."""
    call = {"name": tool, "arguments": arguments}
    script = [
        {"when": r"You are a title generator", "text": "A title"},
        {"when": r"one-line Git commit messages", "text": "docs: write it down"},
        {"when": r"WRITE ([\w-]+)", "text": "So be it.\n\nnotes.txt\n```\n$1\n```\n"},
        {"when": r"RUN ([\w-]+)", "text": "Let me run that.", "tool_calls": [call]},
        {"when": r"did-([\w-]+)", "text": "It printed $1."},
        {"when": r"SAY ([\w-]+)", "text": "You said $1."},
    ]
    file = tmp_path / "script.jsonl"
    file.write_text("\n".join(map(json.dumps, script)), "utf-8")
    one = instar(tmp_path / "instar", file)
    await one.start()
    try:
        yield one
    finally:
        if one.process is not None:
            await one.stop()


async def a_conversation(served: Served, say: Say) -> list[Line]:
    """Two turns with a tool call each, instar started again between them, and a second session."""
    printed, session = await say("Please RUN one-1", None)
    assert "It printed one-1." in printed
    served.kill()
    await served.start()
    printed, resumed = await say("No, RUN one-2", session)
    assert "It printed one-2." in printed and resumed == session
    printed, other = await say("SAY other", None)
    assert "You said other." in printed and other != session
    lines = await served.export()
    main = of_kind(lines, "main")
    assert sessions(main) == {session, other}
    mine = [one for one in main if one["session"] == session]
    assert [last_text(one) for one in mine] == [
        *("Let me run that.", "It printed one-1.", "Let me run that.", "It printed one-2.")
    ]
    one_tree_each(mine)
    assert await trained(served, sessions(lines)) == {one["turn"] for one in main}
    return mine


def heard(lines: list[Line]) -> list[tuple[str, str]]:
    told = [said for one in next_states(lines).values() for said in one]
    return [(one.split(": ")[0], one.split(": ", 1)[1]) for one in told]


async def test_opencode(tmp_path: Path) -> None:
    env = environment(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    command = {"command": "echo did-$1", "description": "Prints a word"}
    async with serving(tmp_path, "bash", **command) as served:
        connected(served, "opencode", tmp_path / ".config" / "opencode")

        async def say(text: str, session: str | None) -> tuple[str, str]:
            words = ["run", "--format", "json", "--model", f"instar/{MODEL}"]
            words += ["--session", session] if session else []
            told = await run([AGENTS / "opencode", *words, text], env=env, cwd=work)
            events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
            spoken = [one["part"]["text"] for one in events if one["type"] == "text"]
            return " ".join(spoken), events[0]["sessionID"]

        mine = await a_conversation(served, say)
        sides = of_kind(await served.export(), "side")
    assert {one["kind_reason"] for one in sides} == {"title"}
    assert heard(mine) == [
        ("tool", "did-one-1\n"),
        ("user", '"No, RUN one-2"'),
        ("tool", "did-one-2\n"),
    ]
    assert extends_where_it_continues(mine) == 3


async def test_codex(tmp_path: Path) -> None:
    folder, work = tmp_path / "codex", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    env = environment(tmp_path, CODEX_HOME=str(folder))
    async with serving(tmp_path, "exec_command", cmd="echo did-$1") as served:
        connected(served, "codex", folder)

        async def say(text: str, session: str | None) -> tuple[str, str]:
            words = ["exec", "--json", "--skip-git-repo-check", "--profile", "instar"]
            words += ["--sandbox", "danger-full-access"]
            words += ["resume", session] if session else []
            told = await run([AGENTS / "codex", *words, text], env=env, cwd=work)
            events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
            spoken = [one["item"]["text"] for one in events if _is_message(one)]
            (thread,) = [one["thread_id"] for one in events if one["type"] == "thread.started"]
            return " ".join(spoken), thread

        mine = await a_conversation(served, say)
    check_coder(mine)


async def test_claude_code(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    command = {"command": "echo did-$1", "description": "Prints a word"}
    async with serving(tmp_path, "Bash", **command) as served:
        variables = exported(connected(served, "claude-code", tmp_path))
        env = environment(tmp_path, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", **variables)

        async def say(text: str, session: str | None) -> tuple[str, str]:
            words = ["--print", "--output-format", "json", "--allowedTools", "Bash(echo:*)"]
            words += ["--resume", session] if session else []
            told = await run([AGENTS / "claude", *words, "--", text], env=env, cwd=work)
            result: dict[str, Any] = json.loads(told.strip().splitlines()[-1])
            return result["result"], result["session_id"]

        mine = await a_conversation(served, say)
    check_coder(mine)


async def test_aider(tmp_path: Path) -> None:
    """It calls no tools: it writes the files that a reply lists, and asks for a commit message."""
    options = ["--yes-always", "--no-check-update", "--no-analytics", "--no-pretty"]
    options += ["--model", f"openai/{MODEL}", "--no-show-model-warnings"]
    async with serving(tmp_path, "none") as served:
        env = environment(tmp_path, **exported(connected(served, "aider", tmp_path)))

        async def say(work: str, *words: str, typed: str = "") -> str:
            folder = tmp_path / work
            if not folder.exists():
                await run(["git", "init", folder], env=env)
            argv: list[str | Path] = [INSTALLED / "aider/bin/aider", *options, *words]
            return await run(argv, env=env, cwd=folder, typed=typed)

        assert "Applied edit to notes.txt" in await say("one", "--message", "Please WRITE one-1")
        assert (tmp_path / "one" / "notes.txt").read_text() == "one-1\n"
        served.kill()
        await served.start()
        printed = await say("one", "--restore-chat-history", "--message", "No, SAY one-2")
        assert "You said one-2." in printed
        printed = await say("two", typed="WRITE two-1\nWell, SAY two-2\nSAY two-3\n/exit\n")
        assert "You said two-2." in printed and "You said two-3." in printed
        lines = await served.export()
        main = of_kind(lines, "main")
        assert await trained(served, sessions(lines)) == {one["turn"] for one in main}
    assert {one["kind_reason"] for one in of_kind(lines, "side")} == {"commit message"}
    assert len(main) == 5 and len(sessions(main)) == 2
    one_tree_each(main)
    # It moves its own messages about in each request, so no history goes on as it was.
    assert extends_where_it_continues(main) == 0
    said = {text for _, text in heard(main)}
    assert said == {"No, SAY one-2", "Well, SAY two-2", "SAY two-3"}


def exported(shown: str) -> dict[str, str]:
    """The variables among the lines that `instar connect` prints."""
    lines = [line for line in shown.splitlines() if line.startswith("export ")]
    return dict(line.removeprefix("export ").split("=", 1) for line in lines)


def _is_message(event: dict[str, Any]) -> bool:
    return bool(event["type"] == "item.completed" and event["item"]["type"] == "agent_message")


def check_coder(mine: list[Line]) -> None:
    """What was said, where tools say more than the command printed."""
    (one, first), (two, reply), (three, second) = heard(mine)
    assert (one, two, three) == ("tool", "user", "tool")
    assert "did-one-1" in first and "did-one-2" in second
    assert reply == "No, RUN one-2"
    assert extends_where_it_continues(mine) == 3
