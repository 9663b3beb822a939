"""The openai SDKs for Python and Node, litellm, llm: turns with a tool call, and a resume."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from checks import Line, extends_where_it_continues, next_states, one_tree_each, trained
from gate import Served
from programs import INSTALLED, NODE, environment, instar, run
from typer.testing import CliRunner

from instar.cli import app

SCRIPTS = Path(__file__).with_name("scripts")
SCRIPT: list[dict[str, object]] = [
    {"when": r"LOOK (\w+)", "tool_calls": [{"name": "look", "arguments": {"at": "$1"}}]},
    {"when": r"did-(\w+)", "text": "I saw $1."},
    {"when": r"SAY (\w+)", "text": "You said $1."},
]
SDKS: dict[str, list[str | Path]] = {
    "openai-python": [INSTALLED / "openai/bin/python", SCRIPTS / "openai_chat.py"],
    "openai-node": [
        NODE / "node",
        SCRIPTS / "openai_chat.mjs",
        INSTALLED / "agents/node_modules/openai/index.mjs",
    ],
    "litellm": [INSTALLED / "litellm/bin/python", SCRIPTS / "litellm_chat.py"],
}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    script = tmp_path / "script.jsonl"
    script.write_text("\n".join(map(json.dumps, SCRIPT)), "utf-8")
    one = instar(tmp_path / "instar", script)
    await one.start()
    yield one
    if one.process is not None:
        await one.stop()


@pytest.mark.parametrize("named", [False, True], ids=["by history", "by header"])
@pytest.mark.parametrize("sdk", SDKS)
async def test_two_turns_and_a_resume(
    tmp_path: Path, served: Served, sdk: str, named: bool
) -> None:
    history = tmp_path / "history.json"

    async def say(text: str) -> str:
        """Each in a process of its own, so every turn after the first is a resumed one."""
        words = [*SDKS[sdk], served.address, history, text, *(["mine"] if named else [])]
        env = environment(tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True")
        return (await run(words, env=env)).strip()

    assert await say("LOOK one") == "I saw one."
    served.kill()
    await served.start()
    assert await say("No, LOOK two") == "I saw two."
    assert await say("SAY bye") == "You said bye."
    lines = await served.export()
    assert len(lines) == 5
    assert {one["session"] for one in lines} == {"mine"} if named else len(sessions(lines)) == 1
    one_tree_each(lines)
    assert extends_where_it_continues(lines) == 4, "nothing is rewritten: each turn extends"
    heard = [said for one in next_states(lines).values() for said in one]
    assert heard == ["tool: did-one", "user: No, LOOK two", "tool: did-two", "user: SAY bye"]
    assert await trained(served, sessions(lines)) == {one["turn"] for one in lines}


def sessions(lines: list[Line]) -> set[str]:
    return {one["session"] for one in lines}


async def test_llm_goes_on_with_a_conversation(tmp_path: Path, served: Served) -> None:
    llm, folder = INSTALLED / "openai/bin/llm", tmp_path / "llm"
    env = environment(tmp_path, LLM_USER_PATH=str(folder))
    connected(served, "llm", folder)
    for words in (["SAY one"], ["--continue", "SAY two"]):
        told = await run([llm, "--model", "instar", "--key", "local", *words], env=env)
        assert told.strip() == f"You said {words[-1][4:]}."
    lines = await served.export()
    assert len(sessions(lines)) == 1
    assert extends_where_it_continues(lines) == 1
    assert list(next_states(lines).values()) == [["user: SAY two"]]


def connected(served: Served, client: str, folder: Path) -> str:
    """`instar connect`, as a person would run it."""
    home = ["--home", str(served.home), "--url", served.address, "--dir", str(folder), "--yes"]
    done = CliRunner().invoke(app, ["connect", client, *home])
    assert done.exit_code == 0, done.output
    return done.output
