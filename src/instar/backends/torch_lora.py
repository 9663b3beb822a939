"""Reads a LoRA adapter in PEFT's folder form and merges it into weights.

In comes a folder with adapter_config.json and adapter_model.safetensors; out go the two
factors of each touched module, checked, so that a merge cannot fail half way.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from instar.errors import ModelError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change to one module's weight: scale x up @ down."""

    down: Tensor
    """[rank, inputs], PEFT's lora_A."""
    up: Tensor
    """[outputs, rank], PEFT's lora_B."""
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.up.shape[0], self.down.shape[1]

    def add_to(self, weight: Tensor) -> None:
        """Add to a weight in place, in float32 so that small changes survive bfloat16."""
        device = weight.device
        product = self.up.to(device, torch.float32) @ self.down.to(device, torch.float32)
        if weight.shape != product.shape and weight.shape == product.shape[::-1]:
            product = product.T  # GPT-2's Conv1D keeps its weights the other way round
        weight.copy_(weight.float().add_(product, alpha=self.scale))


Adapter = dict[str, Change]
"""Module name, such as model.layers.0.self_attn.q_proj, to its change."""


def read_adapter(folder: Path) -> Adapter:
    """The adapter in this folder; ModelError says what is wrong with it."""
    config = _config(folder / CONFIG_FILE)
    tensors = _tensors(folder / WEIGHTS_FILE)
    downs = {name: value for name, value in tensors.items() if name.endswith(".lora_A.weight")}
    ups = {name for name in tensors if name.endswith(".lora_B.weight")}
    wanted = {name.replace(".lora_A.", ".lora_B.") for name in downs}
    if odd := sorted(tensors.keys() - downs.keys() - ups) + sorted(ups ^ wanted):
        raise ModelError(
            f"{folder / WEIGHTS_FILE} holds {odd[0]!r}, which is no half of a LoRA pair. "
            "Expected only lora_A.weight and lora_B.weight of linear modules."
        )
    if not downs:
        raise ModelError(f"{folder / WEIGHTS_FILE} holds no tensors; expected LoRA pairs.")
    root = "sqrt" if config.get("use_rslora") else "plain"
    return {
        _module(name): _change(
            down,
            tensors[name.replace(".lora_A.", ".lora_B.")],
            alpha=config["lora_alpha"],
            root=root,
        )
        for name, down in downs.items()
    }


def _change(down: Tensor, up: Tensor, *, alpha: float, root: str) -> Change:
    rank = down.shape[0]
    return Change(down=down, up=up, scale=alpha / (rank**0.5 if root == "sqrt" else rank))


def _module(name: str) -> str:
    return name.removeprefix(PREFIX).removesuffix(".lora_A.weight")


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(
            f"{path} does not exist; expected a PEFT folder with {CONFIG_FILE} and {WEIGHTS_FILE}."
        )
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} is no readable JSON file: {error}.") from error
    if config.get("peft_type") != "LORA" or not isinstance(config.get("lora_alpha"), int | float):
        raise ModelError(
            f"{path} has peft_type {config.get('peft_type')!r} and lora_alpha "
            f"{config.get('lora_alpha')!r}; expected 'LORA' and a number."
        )
    extras = ("use_dora", "alpha_pattern", "modules_to_save", "trainable_token_indices")
    if found := [key for key in extras if config.get(key)]:
        raise ModelError(f"{path} sets {found[0]}, which this engine cannot merge. Use plain LoRA.")
    if config.get("bias", "none") != "none":
        raise ModelError(f"{path} has bias {config['bias']!r}; expected 'none'.")
    return config


def _tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ModelError(f"{path} does not exist; expected the adapter's weights there.")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path} is no readable safetensors file: {error}.") from error
    for name, value in tensors.items():
        if value.dim() != 2 or not bool(torch.isfinite(value).all()):
            raise ModelError(
                f"{path}: {name} has shape {list(value.shape)} or holds values that are not "
                "finite; expected a finite matrix."
            )
    return tensors
