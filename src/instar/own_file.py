"""A Python file that a person wrote, loaded as a module: their own judge, their own persona."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from instar.errors import ConfigError


def load_file(file: Path) -> ModuleType:
    """Run the file; what it raises is told as an error of the file's."""
    spec = importlib.util.spec_from_file_location(f"instar_own_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module there
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # it may import its neighbours; last, so that they hide nothing
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{file} does not run: {type(error).__name__}: {error}") from error
    return module
