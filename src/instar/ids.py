"""Names that sort by time: a letter, milliseconds, and enough chance to be alone."""

from __future__ import annotations

import secrets
import time


def new_id(letter: str) -> str:
    """Such as t0199a5c3d2e1f4a8b6c7d9e0."""
    return f"{letter}{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"
