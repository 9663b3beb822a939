"""Calls in a reply's text, and what they do, as far as name and command say: only show something?

What a call shows may speak of errors and exit codes; that it was shown says that the call worked.
Replies write calls in many ways, `read_file({"path": "a"})` or `$ cat a`; all become the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_NAME = r"[A-Za-z_][\w.:/-]*"
_CALL = re.compile(rf"(?:^|(?<=[.:!?] ))({_NAME})\((.*)\)$", re.MULTILINE)
"""On a line of its own, or at the end of one after a sentence."""
_TAGGED = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_BRACKETED = re.compile(rf"\[tool(?:[ _]call)?: ({_NAME}) (\{{.*\}})\]$", re.MULTILINE)
_FENCED = re.compile(
    r"^```(?:bash|sh|shell|zsh|console|terminal)[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL
)
_PROMPTED = re.compile(r"^(?:\$ |(?:bash|sh|shell|run): ?)(\S.*)$", re.MULTILINE)
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_SHOWING = frozenset(
    """read view cat show open list ls search grep find glob fetch browse load log logs
    history lookup tail head""".split()  # noqa: SIM905
)
_SHELLS = frozenset(
    """bash shell sh exec execute terminal command cmd powershell console run""".split()  # noqa: SIM905
)
_SHOWS = re.compile(
    r"^(?:sudo )?(?:cat|head|tail|less|more|grep|egrep|rg|ag|sed -n|awk|find|ls|tree|nl|wc|diff|"
    r"journalctl|dmesg|jq|cut|sort|uniq|strings|file|stat|bat|type|get-content|"
    r"git (?:-c \S+ |-\S+ )*(?:log|show|diff|blame|grep|status|ls-files)|(?:docker|podman) logs|"
    r"kubectl (?:logs|get|describe))\b"
)
_SEARCHES = re.compile(r"^(?:sudo )?(?:[ef]?grep|rg|ag|pgrep|git (?:-c \S+ |-\S+ )*grep)\b")
_COMPARES = re.compile(r"^(?:sudo )?(?:diff|cmp|git (?:-c \S+ |-\S+ )*diff)\b")
_AROUND = re.compile(r"^(?:cd|export|set|echo|source|true|:)\b|^\w+=\S*$")
_BETWEEN = re.compile(r"\s*(?:&&|\|\||[;|\n])\s*")


def calls_in(response: str) -> tuple[str, ...]:
    """The calls of a reply, as `name(arguments)` each, in their order."""
    plain = tuple(f"{match[1]}({match[2]})" for match in _CALL.finditer(response))
    return plain or tuple(_structured(response)) or tuple(map(_in_shell, _commands(response)))


def only_shows(call: str) -> bool:
    """Whether a call like `read_file({"path": "a"})` or `bash({"command": "cat a"})` shows
    something and does nothing else."""
    match = _CALL.match(call)
    if match is None:
        return False
    steps = _steps(call)
    if steps is not None:
        return bool(steps) and all(_SHOWS.match(one) for one in steps)
    words = _words(match[1])
    return bool(words & _SHOWING) and not words & _SHELLS


def status_1(call: str) -> int | None:
    """What a shell's exit status 1 says where that is an answer and no failure: a search found
    nothing (0), a comparison found what it looks for (1)."""
    steps = _steps(call) or ("",)
    if _SEARCHES.match(steps[-1]):
        return 0
    return 1 if _COMPARES.match(steps[-1]) else None


def _structured(response: str) -> Iterator[str]:
    """Calls as objects: Qwen's tags, `[tool: name {...}]`, or nothing but an object."""
    whole = [response] if response.lstrip().startswith("{") else []
    for text in _TAGGED.findall(response) or whole:
        found = _object(text)
        if found is not None and isinstance(found.get("name"), str):
            given = found.get("arguments", found.get("parameters", {}))
            arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            yield f"{found['name']}({arguments})"
    yield from (f"{name}({arguments})" for name, arguments in _BRACKETED.findall(response))


def _commands(response: str) -> list[str]:
    """Command lines: in a block of a shell, behind its prompt, or one that is the whole reply."""
    found = _FENCED.findall(response) or _PROMPTED.findall(response)
    line = response.strip()
    alone = "\n" not in line and line[-1:] not in (".", "!", "?", ":") and _SHOWS.match(line)
    return found or ([line] if alone else [])


def _in_shell(command: str) -> str:
    return f"bash({json.dumps({'command': command.strip()}, ensure_ascii=False)})"


def _steps(call: str) -> tuple[str, ...] | None:
    """The commands that a shell is given, but for those that only prepare; None for other calls."""
    match = _CALL.match(call)
    command = _command(match[2]) if match and _words(match[1]) & _SHELLS else None
    if command is None:
        return None
    steps = _BETWEEN.split(command.strip().lower())
    return tuple(one for one in steps if one and not _AROUND.match(one))


def _words(name: str) -> set[str]:
    return {one.lower() for one in _PART.findall(name)}


def _command(arguments: str) -> str | None:
    """The command line that a shell is given, in any of the usual forms."""
    found = _object(arguments)
    if found is None:
        return None
    command = next((found[name] for name in ("command", "cmd", "script") if name in found), None)
    if isinstance(command, list) and all(isinstance(one, str) for one in command):
        shell = len(command) == 3 and command[1] in ("-c", "-lc", "-Command", "/c")
        return command[2] if shell else " ".join(command)
    return command if isinstance(command, str) else None


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
