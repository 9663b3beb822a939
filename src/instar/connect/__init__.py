"""How each client is pointed at instar: one table, one small function each.

A function is given the server and the client's own folder, and answers with a Plan: which files
would change and how, and what the person is told. Nothing is changed by making a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from instar.connect import clients, openclaw
from instar.connect.plan import Plan, Server


class Client(NamedTuple):
    """One line of the table."""

    what: str
    folder: str
    """Where its config is; `--dir` names another place."""
    plan: Callable[[Server, Path], Plan]


CLIENTS: dict[str, Client] = {
    "openclaw": Client("provider entry and plugin", "~/.openclaw", openclaw.plan),
    "codex": Client("a profile", "~/.codex", clients.codex),
    "claude-code": Client("variables to export", "~/.claude", clients.claude_code),
    "opencode": Client("provider entry", "~/.config/opencode", clients.opencode),
    "aider": Client("variables to export", "~", clients.aider),
    "litellm": Client("a call to copy", "~", clients.litellm),
    "llm": Client("a model entry", "~/.config/io.datasette.llm", clients.llm),
    "openai": Client("variables to export", "~", clients.openai),
}
