"""One file per system behind a protocol. A new engine is one file and one line in ENGINES."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from instar.protocols import Engine

ENGINES: dict[str, str] = {
    "torch_local": "instar.backends.torch_local",
    "vllm": "instar.backends.vllm",
    "fake": "instar.backends.fake",
}
"""Modules that are imported only when chosen, since some take seconds."""


def open_engine(
    config: Any, *, model: Path | None, name: str
) -> AbstractAsyncContextManager[Engine]:
    """The engine that `config.type` names."""
    module = import_module(ENGINES[config.type])
    opened: AbstractAsyncContextManager[Engine] = module.open_engine(config, model=model, name=name)
    return opened
