"""Opens a model folder for the worker: the lean path where it fits, else transformers.

Both paths look the same to the scheduler: they read tokens into the memory of a sequence and
give the logits that follow the last of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from instar.backends.torch_cache import Memory
from instar.backends.torch_lora import Adapter
from instar.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Tokens of one sequence to read in this step."""

    memory: Any
    ids: Sequence[int]
    decoding: bool
    """Whether this is the one newest token of a reply, rather than part of a prompt."""
    wanted: bool = True
    """Whether the logits after the last token are needed."""


class Model(Protocol):
    """A causal language model with one set of base weights and merged copies beside it."""

    path: str
    context: int
    vocab: int
    device: torch.device
    base: Any
    """The weights of the model as it was loaded."""

    def merge(self, adapter: Adapter) -> Any:
        """The base weights with an adapter in them. The base is left as it was."""
        ...

    def forward(self, version: str, weights: Any, work: Sequence[Work]) -> Tensor:
        """Read the tokens; the logits [wanted, vocab] that follow, in the order of `work`."""
        ...

    def begin(self, source: Any, *, shared: int, length: int) -> Memory:
        """Memory for `length` tokens whose first `shared` are those of `source`."""
        ...

    def reusable(self, source: Any, shared: int) -> int:
        """How many of the first `shared` tokens of a memory another sequence can start from."""
        ...

    def keep(self, memory: Any) -> Memory:
        """A copy for the prefix cache, as small as it can be."""
        ...

    def kept_bytes(self, memory: Any) -> int:
        """How much `keep` would take."""
        ...

    def release(self, memory: Any) -> None: ...


def open_model(folder: Path, *, device: str, dtype: str, context: int | None) -> Model:
    """The model in this folder; ModelError says what is wrong with it."""
    config = read_config(folder)
    target = pick_device(device)
    if target.type == "cuda":
        # cuDNN plans its attention anew for every length, which takes 2 ms a layer and token.
        torch.backends.cuda.enable_cudnn_sdp(False)
    limit = context_limit(config, context)
    from instar.backends import torch_llama

    if torch_llama.fits(config, folder):
        return torch_llama.LlamaModel(
            folder, config, device=target, dtype=pick_dtype(dtype, config, target), context=limit
        )
    from instar.backends.torch_generic import GenericModel

    return GenericModel(
        folder, device=target, dtype=pick_dtype(dtype, config, target), context=limit
    )


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(
            f"{path} does not exist; expected a Hugging Face model folder there."
        ) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is no readable JSON file: {error}.") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelError(f"{path} names no model_type; expected a Hugging Face model config.")
    return config


def context_limit(config: dict[str, Any], asked: int | None) -> int:
    text = config.get("text_config") or config
    known = text.get("max_position_embeddings") or text.get("n_positions")
    if known is None and asked is None:
        raise ModelError(
            "config.json names no max_position_embeddings. Set `context` of the engine."
        )
    return min(value for value in (known, asked) if value is not None)


def pick_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"device {device!r} is not known; expected auto, cpu or cuda.") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {device!r} was asked for, but PyTorch finds no CUDA GPU here.")
    return found


def pick_dtype(dtype: str, config: dict[str, Any], device: torch.device) -> torch.dtype:
    name = dtype
    if dtype == "auto":
        # Below AVX-512 a bfloat16 product is several times slower than a float32 one.
        own = config.get("dtype") or config.get("torch_dtype") or "float32"
        name = "float32" if device.type == "cpu" else str(own)
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ModelError(f"config.json names the dtype {name!r}, which PyTorch does not know.")
    return found


def set_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
