"""The generic path: any causal language model that transformers can load, in its own modules.

Each sequence keeps the cache that the model makes for itself and is stepped on its own, so
that sliding windows, recurrent states and whatever else a model does are right by
construction. Batches gain nothing here; the lean path is for that.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from instar.backends.torch_lora import Adapter
from instar.backends.torch_model import Work
from instar.errors import ModelError

Weights = dict[str, Tensor]
"""Module name to its weight, for the modules that an adapter touched."""


class CacheMemory:
    """A sequence's own cache, as the model fills it."""

    __slots__ = ("cache", "length")

    def __init__(self, cache: Any, length: int) -> None:
        self.cache = cache
        self.length = length

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in _tensors(self.cache))


class GenericModel:
    """A transformers model."""

    path = "transformers"

    def __init__(
        self, folder: Path, *, device: torch.device, dtype: torch.dtype, context: int
    ) -> None:
        from transformers import AutoModelForCausalLM, DynamicCache

        try:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
            # Further lines name every kind of model that there is.
            why = f"{str(error).partition(chr(10))[0]}{_blind(folder)}"
            raise ModelError(f"transformers could not load the model in {folder}: {why}") from error
        self._model = model.to(device).eval()
        self._new_cache: Callable[[], Any] = partial(DynamicCache, config=model.config)
        self.context, self.device = context, device
        self.vocab = int(self._model.get_input_embeddings().weight.shape[0])
        self.base: Weights = {}
        self._loaded: Weights = {}
        parameters = inspect.signature(type(self._model).forward).parameters
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def merge(self, adapter: Adapter) -> Weights:
        merged = {}
        for name, change in adapter.items():
            weight = self._original(name)
            if tuple(weight.shape) not in (change.shape, change.shape[::-1]):
                raise ModelError(
                    f"The adapter's change to {name} has the shape {list(change.shape)}, but this "
                    f"model's weight has {list(weight.shape)}. It was made for another model."
                )
            merged[name] = weight.detach().clone()
            change.add_to(merged[name])
        return merged

    def begin(self, source: CacheMemory | None, *, shared: int, length: int) -> CacheMemory:
        if source is None:
            return CacheMemory(self._new_cache(), 0)
        cache = copy.deepcopy(source.cache)
        if shared < source.length:
            cache.crop(shared - source.length)
        return CacheMemory(cache, shared)

    def reusable(self, source: CacheMemory, shared: int) -> int:
        if shared >= source.length:
            return source.length
        return shared if _can_crop(source.cache) else 0

    def keep(self, memory: CacheMemory) -> CacheMemory:
        return memory

    def kept_bytes(self, memory: CacheMemory) -> int:
        return memory.nbytes

    def release(self, memory: CacheMemory) -> None:
        """Nothing is shared between sequences: the memory goes with its last reference."""

    def forward(self, version: str, weights: Weights, work: Sequence[Work]) -> Tensor:
        self._put(weights)
        rows = []
        for item in work:
            ids = torch.tensor([item.ids], device=self.device)
            out = self._model(
                input_ids=ids, past_key_values=item.memory.cache, use_cache=True, **self._options
            )
            item.memory.length += len(item.ids)
            if item.wanted:
                rows.append(out.logits[0, -1])
        return torch.stack(rows) if rows else torch.empty(0, self.vocab, device=self.device)

    def _put(self, weights: Weights) -> None:
        """Point the modules at one version's weights."""
        if weights is self._loaded:
            return
        for name in self._loaded.keys() - weights.keys():
            self._model.get_submodule(name).weight.data = self.base[name]
        # A copy, since a merge in another thread may add to the base.
        for name, value in list(weights.items()):
            self._model.get_submodule(name).weight.data = value
        self._loaded = weights

    def _original(self, name: str) -> Tensor:
        """A module's own weight, noted before any version takes its place."""
        if name not in self.base:
            try:
                module = self._model.get_submodule(name)
            except AttributeError as error:
                raise ModelError(
                    f"The adapter changes {name}, which this model does not have. "
                    "It was made for another model."
                ) from error
            self.base[name] = module.weight.data
        return self.base[name]


def _can_crop(cache: Any) -> bool:
    """Whether a cache can be cut to any length: not where old entries were overwritten."""
    layers = getattr(cache, "layers", [])
    return bool(layers) and all(type(layer).__name__ == "DynamicLayer" for layer in layers)


def _tensors(cache: Any) -> list[Tensor]:
    found = []
    for layer in getattr(cache, "layers", []):
        found += [value for value in vars(layer).values() if isinstance(value, Tensor)]
    return found


def _blind(folder: Path) -> str:
    """What to do about a model that sees, which this engine does not let it."""
    try:
        sees = "vision_config" in json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, TypeError):
        return ""
    return " This engine reads text only; serve a model that sees with engine.type=vllm." * sees
