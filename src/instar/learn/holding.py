"""Brings the one trainer of a machine to the version that is wanted."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from instar.config import TrainingConfig
from instar.errors import ModelError
from instar.learn.states import TrainerStates
from instar.publish.versions import VersionFiles
from instar.train.step import TorchTrainer
from instar.types import BASE_VERSION

log = logging.getLogger("instar.learn")

_SHAPE = ("use_lora", "lora_rank", "lora_alpha", "lora_target_modules")
"""Settings under which weights and moments of a version mean what they meant."""


class Holder:
    """Knows which version's weights the trainer holds. Everything here waits for the disk."""

    def __init__(
        self, trainer: TorchTrainer, *, training: TrainingConfig, files: VersionFiles, folder: Path
    ) -> None:
        self._trainer = trainer
        self._training = training
        self._files = files
        self._states = TrainerStates(folder)
        self._fresh = copy.deepcopy(trainer.state())
        self._holds: tuple[str, str] | None = None

    def hold(self, owner: str, name: str) -> None:
        """Bring the trainer to a version, with its optimiser's state where there is one.

        A version of another shape goes on from its adapter, with a fresh state.
        """
        if self._holds == (owner, name):
            return
        self._holds = None
        state = None if name == BASE_VERSION else self._state(owner, name)
        self._trainer.load_state(copy.deepcopy(state or self._fresh))
        if state is None and name != BASE_VERSION:
            self._files.read(owner, name)
            self._trainer.load_adapter(self._files.folder(owner, name))
        self._holds = (owner, name)

    def let_go(self) -> None:
        """The trainer's weights are those of no version, from now on."""
        self._holds = None

    def holds_now(self, owner: str, name: str) -> None:
        """The trainer's weights are those of this version."""
        self._holds = (owner, name)

    def save(self, owner: str, name: str) -> None:
        """Keep the optimiser's state after a version that was just trained."""
        self._states.save(owner, name, self._trainer.state())

    def keep(self, owner: str, names: Collection[str]) -> None:
        """Remove the states of this owner's other versions."""
        self._states.keep(owner, names)

    def _state(self, owner: str, name: str) -> dict[str, Any] | None:
        try:
            then = self._files.manifest(owner, name).version.config
        except ModelError:
            then = {}  # whoever needs its files will say what is wrong with them
        now = self._training.model_dump(mode="json")
        if odd := [key for key in _SHAPE if key in then and then[key] != now[key]]:
            changes = ", ".join(f"training.{key} was {then[key]}, is {now[key]}" for key in odd)
            log.info("%s of %s is taken into another shape: %s", name, owner, changes)
            return None
        return self._states.load(owner, name)
