"""One file per wire format; each maps its requests and replies to the same Turn."""

from __future__ import annotations

from instar.gateway.dialects.anthropic import MESSAGES
from instar.gateway.dialects.chat import CHAT
from instar.gateway.dialects.completions import COMPLETIONS
from instar.gateway.dialects.responses import RESPONSES
from instar.gateway.dialects.shared import Dialect

DIALECTS: tuple[Dialect, ...] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


def turn_of(reply: str) -> str:
    """The id of the turn whose reply has this id, in whichever dialect it was given."""
    return next(
        (reply.removeprefix(d.prefix) for d in DIALECTS if reply.startswith(d.prefix)), reply
    )


def dialect_at(path: str) -> Dialect:
    """Whose error shape a request to this path is answered in."""
    for one in DIALECTS:
        if path == one.path or path.startswith(f"{one.path}/"):
            return one
    return CHAT
