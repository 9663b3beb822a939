"""What the next step depends on beside the weights: the optimiser's moments, one file a version.

A version's file is written before the store learns of the version, so that whoever finishes it
after a crash goes on with the moments it was trained with.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from instar.publish.versions import safe

log = logging.getLogger("instar.learn")


class TrainerStates:
    """The files in `<folder>/<owner>/<version>.pt`. Everything here waits for the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, owner: str, name: str, state: dict[str, Any]) -> None:
        """Returns once it is on disk; it is there whole or not at all."""
        file = self._file(owner, name)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_suffix(".part")
        try:
            with part.open("wb") as out:
                torch.save(state, out)
                out.flush()
                os.fsync(out.fileno())
            part.replace(file)
        except (OSError, RuntimeError) as error:  # torch has the latter for a full disk
            part.unlink(missing_ok=True)
            raise OSError(f"the optimiser's state cannot be written to {file}: {error}") from error

    def load(self, owner: str, name: str) -> dict[str, Any] | None:
        """The state after that version; None where there is none that can be read."""
        try:
            found: dict[str, Any] = torch.load(self._file(owner, name), weights_only=True)
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged file may fail in any way
            log.warning(
                "the optimiser's state of %s of %s cannot be read, so it starts anew: %s",
                *(name, owner, error),
            )
            return None
        return found

    def keep(self, owner: str, names: Collection[str]) -> None:
        """Remove this owner's other files: each is three times as large as its version."""
        kept = {self._file(owner, name) for name in names}
        for file in (self._folder / safe(owner)).glob("*"):
            if file not in kept:
                file.unlink(missing_ok=True)

    def _file(self, owner: str, name: str) -> Path:
        return self._folder / safe(owner) / f"{name}.pt"
