"""What a call does, as far as its name and its command say: whether it only shows something.

What a call shows may speak of errors and exit codes; that it was shown says that the call worked.
"""

from __future__ import annotations

import json
import re

_CALL = re.compile(r"^([A-Za-z_][\w.:/-]*)\((.*)\)$", re.MULTILINE)
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
    r"git (?:-c \S+ |-\S+ )*(?:log|show|diff|blame|grep|status)|(?:docker|podman) logs|"
    r"kubectl (?:logs|get|describe))\b"
)
_AROUND = re.compile(r"^(?:cd|export|set|echo|source|true|:)\b|^\w+=\S*$")
_BETWEEN = re.compile(r"\s*(?:&&|\|\||[;|\n])\s*")


def calls_in(response: str) -> tuple[str, ...]:
    """The calls of a reply as they stand in its text, in their order."""
    return tuple(match[0] for match in _CALL.finditer(response))


def only_shows(call: str) -> bool:
    """Whether a call like `read_file({"path": "a"})` or `bash({"command": "cat a"})` shows
    something and does nothing else."""
    match = _CALL.match(call)
    if match is None:
        return False
    words = {one.lower() for one in _PART.findall(match[1])}
    command = _command(match[2])
    if command is not None and words & _SHELLS:
        steps = [one for one in _BETWEEN.split(command.strip().lower()) if one]
        shown = [one for one in steps if not _AROUND.match(one)]
        return bool(shown) and all(_SHOWS.match(one) for one in shown)
    return bool(words & _SHOWING) and not words & _SHELLS


def _command(arguments: str) -> str | None:
    """The command line that a shell is given, in any of the usual forms."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    command = next((found[name] for name in ("command", "cmd", "script") if name in found), None)
    if isinstance(command, list) and all(isinstance(one, str) for one in command):
        shell = len(command) == 3 and command[1] in ("-c", "-lc", "-Command", "/c")
        return command[2] if shell else " ".join(command)
    return command if isinstance(command, str) else None
