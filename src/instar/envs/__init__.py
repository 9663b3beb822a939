"""Worlds that an agent acts in. A new one is one file and one line in ENVIRONMENTS.

An environment is a place where one task is played at a time; who wants to play many at once opens
many. It never sees tokens or weights: the runner holds the conversation over HTTP, like any client.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any

from instar.errors import ConfigError
from instar.protocols import Environment

ENVIRONMENTS: dict[str, str] = {
    "tau": "instar.envs.tau",
    "terminal": "instar.envs.terminal",
    "swe": "instar.envs.swe",
    "bfcl": "instar.envs.bfcl",
    "interpreter": "instar.envs.interpreter",
    "toolcall": "instar.envs.toolcall",
}
"""Modules that are imported only when chosen; each has `open_environment(options)`."""


def open_environment(
    name: str, options: Mapping[str, Any] | None = None
) -> AbstractAsyncContextManager[Environment]:
    """A place to play tasks of this environment in, set up when entered and torn down after."""
    if name not in ENVIRONMENTS:
        known = ", ".join(sorted(ENVIRONMENTS))
        raise ConfigError(f"there is no environment {name!r}; known are {known}")
    module = import_module(ENVIRONMENTS[name])
    opened: AbstractAsyncContextManager[Environment] = module.open_environment(dict(options or {}))
    return opened
