"""instar: train your own agent by using it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "inspect_sessions"]


def inspect_sessions(path: str | Path, *, owner: str | None = None) -> dict[str, list[Any]]:
    """Every session and its turns, from a home folder, a database or an export.

    See `instar.rollouts`, which is imported only when this is called.
    """
    from instar.rollouts import inspect_sessions as inspect

    return inspect(path, owner=owner)
