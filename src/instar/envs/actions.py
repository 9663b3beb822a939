"""What an agent at a shell does: its replies as calls, and what comes back as messages.

Three styles, for models of different ability; whatever the style, a tool call is always taken.

- `tools`: the model calls tools.
- `fenced`: it writes text with one fenced bash block.
- `command`: its whole reply is one command, as in the rollout of the OpenClaw-RL guide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from instar.envs.sandbox import Ran
from instar.types import Message, Tool

Style = Literal["tools", "fenced", "command"]
SUBMIT = "submit"
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.M)
_INLINE = re.compile(r"^`+([^`\n]+)`+$")
_SHELLS = {"", "bash", "sh", "shell", "console", "terminal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One thing the agent does."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None
    """Of the tool call; None where the reply was text."""
    error: str = ""
    """Why it cannot be done."""


def function(name: str, about: str, properties: dict[str, str], required: Sequence[str]) -> Tool:
    """A tool whose arguments are all strings."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {
                    key: {"type": "string", "description": text} for key, text in properties.items()
                },
                "required": list(required),
            },
        },
    }


BASH = function(
    "bash",
    "Run a bash command. The shell stays open: the folder and variables are kept.",
    {"command": "The command to run."},
    ["command"],
)
SUBMIT_TOOL = function(
    SUBMIT, "Say that the task is done.", {"answer": "What to tell the person, if anything."}, []
)


def read_reply(reply: Message, style: Style, tools: Sequence[Tool]) -> list[Call]:
    """What a reply asks for, in order. Text without a command is the end: a submission."""
    if calls := reply.get("tool_calls"):
        known = {tool["function"]["name"]: tool["function"] for tool in tools}
        return [_from_call(call, known) for call in calls]
    text = str(reply.get("content") or "")
    command = _command(text) if style == "command" else _fenced(text)
    if command is None or command.strip() == SUBMIT:
        return [Call(name=SUBMIT, arguments={"answer": text.strip()})]
    return [Call(name="bash", arguments={"command": command})]


def _from_call(call: Any, known: dict[str, Any]) -> Call:
    function = call.get("function") or {}
    name, ident = str(function.get("name", "")), str(call.get("id") or "")
    if name not in known:
        listed = ", ".join(known)
        return Call(name=name, arguments={}, id=ident, error=f"there is no tool {name}; {listed}")
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        problem = "the arguments are not a JSON object"
        return Call(name=name, arguments={}, id=ident, error=problem)
    for key in known[name]["parameters"]["required"]:
        if not isinstance(arguments.get(key), str):
            problem = f"the argument {key} is missing or not a string"
            return Call(name=name, arguments={}, id=ident, error=problem)
    return Call(name=name, arguments=arguments, id=ident)


def _fenced(text: str) -> str | None:
    for found in _FENCE.finditer(text):
        if found[1].lower() in _SHELLS:
            return found[2].strip("\n")
    return None


def _command(text: str) -> str | None:
    """The whole reply, freed of the marks that models like to put around a command."""
    command = _fenced(text)
    if command is None:
        command = text.strip()
        if found := _INLINE.match(command):
            command = found[1]
    command = command.removeprefix("$ ").strip()
    return command or None


def answer(call: Call, text: str) -> Message:
    """What the agent is told: as a tool's result, or as the next message of the person."""
    if call.id is None:
        return {"role": "user", "content": text}
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def example(command: str, style: Style, ident: str) -> list[Message]:
    """The reply that runs a command, as the style wants it; of a call, also that it is answered."""
    if style == "command":
        return [{"role": "assistant", "content": command}]
    if style == "fenced":
        return [{"role": "assistant", "content": f"```bash\n{command}\n```"}]
    made = {"name": BASH["function"]["name"], "arguments": json.dumps({"command": command})}
    calls = [{"id": ident, "type": "function", "function": made}]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": ident, "content": "exit code: 0"},
    ]


def told(ran: Ran) -> str:
    """A command's exit code, output and errors in one text."""
    parts = [f"exit code: {ran.code}" + (f" ({ran.note})" if ran.note else "")]
    if ran.out:
        parts.append(ran.stdout.rstrip("\n"))
    if ran.err:
        parts.append("[stderr]\n" + ran.stderr.rstrip("\n"))
    return "\n".join(parts)
