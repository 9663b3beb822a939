"""Reads the tensors of a checkpoint by name, from one safetensors file or several."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from instar.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Tensors:
    """A checkpoint that is open for reading."""

    def __init__(self, folder: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        self._folder, self._device, self._dtype = folder, device, dtype
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}

    @staticmethod
    def present(folder: Path) -> bool:
        return (folder / SINGLE).is_file() or (folder / INDEX).is_file()

    def __enter__(self) -> Self:
        for name in self._names():
            path = self._folder / name
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} is no readable safetensors file: {error}.") from error
            self._files.update(dict.fromkeys(file.keys(), file))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._files:
            raise ModelError(f"The checkpoint in {self._folder} holds no {name}; expected it.")
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.to(self._device, self._dtype)

    def find(self, name: str) -> Tensor | None:
        if name not in self:
            return None
        return self[name]

    def _names(self) -> list[str]:
        if (self._folder / SINGLE).is_file():
            return [SINGLE]
        index = json.loads((self._folder / INDEX).read_text(encoding="utf-8"))
        return sorted(set(index["weight_map"].values()))
