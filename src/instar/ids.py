"""Names that sort by time: a letter, milliseconds, a count, and enough chance to be alone."""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import time

_count = itertools.count(secrets.randbelow(1 << 16))
_process = secrets.token_hex(4)


def _renew() -> None:
    global _process
    _process = secrets.token_hex(4)


os.register_at_fork(after_in_child=_renew)


def new_id(letter: str) -> str:
    """Such as t0199a5c3d2e1f4a8b6c7d9e0. Chance is asked of the system once a process."""
    return f"{letter}{time.time_ns() // 1_000_000:012x}{next(_count) & 0xFFFF:04x}{_process}"


def share_of(name: str) -> float:
    """A number from 0 up to 1 that depends on the name alone, spread evenly over names."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
