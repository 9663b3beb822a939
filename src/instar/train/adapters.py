"""A saved adapter, read into whatever is trained now.

A person may change the shape of what is trained after versions were made. A version goes on in the
new shape where that holds all of it: a larger rank, another alpha, more target modules, or all
linear layers. Where it does not, nothing is cut off; the error says what would hold it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from instar.errors import ModelError

_KEY = "base_model.model."
_HALVES = {".lora_B.weight": ".lora_A.weight", ".lora_embedding_B": ".lora_embedding_A"}
"""How the upper and the lower half of a layer's change are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an adapter changes in one layer: scale times up times down."""

    down_RI: Tensor
    up_OR: Tensor
    scale: float

    @property
    def rank(self) -> int:
        return len(self.down_RI)

    def product(self) -> Tensor:
        out_OI: Tensor = self.scale * (self.up_OR.float() @ self.down_RI.float())
        return out_OI


def write(tensors: dict[str, Tensor], file: Path) -> None:
    """Write the tensors of an adapter. A full disk is an OSError, as everywhere else."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{file.name} cannot be written: {error}") from error


def read(folder: Path, file: str) -> dict[str, Change]:
    """The changes in PEFT's folder form, by the name of their layer."""
    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    alphas = config.get("alpha_pattern") or {}
    tensors = load_file(folder / file)
    found = {}
    for upper, lower in _HALVES.items():
        for key in (one for one in tensors if one.endswith(upper)):
            name, down_RI = key[len(_KEY) : -len(upper)], tensors[key.removesuffix(upper) + lower]
            scale = alphas.get(name, config["lora_alpha"]) / len(down_RI)
            found[name] = Change(down_RI=down_RI, up_OR=tensors[key], scale=scale)
    return found


@torch.no_grad()
def into_lora(peft: Any, changes: Mapping[str, Change], folder: Path) -> None:
    """Bring adapter layers to these changes; what they have room for beyond stays as it is."""
    layers = lora_layers(peft)
    _check_names(changes, set(layers), folder, setting="training.lora_target_modules")
    for name, layer in layers.items():
        down_RI, up_OR = _halves(layer)
        change = changes.get(name)
        if change is not None and change.rank > len(down_RI):
            raise ModelError(
                f"The version in {folder} has an adapter of rank {change.rank} on {name}, expected "
                f"at most the {len(down_RI)} of training.lora_rank. {_what_to_do('lora_rank')}"
            )
        up_OR.zero_()
        if change is not None:
            down_RI[: change.rank] = change.down_RI.to(down_RI)
            scale = change.scale / layer.scaling["default"]
            up_OR[:, : change.rank] = (change.up_OR * scale).to(up_OR)


@torch.no_grad()
def into_weights(
    layers: Mapping[str, nn.Linear],
    before: Mapping[str, nn.Linear],
    changes: Mapping[str, Change],
    folder: Path,
) -> None:
    """Bring layers that are trained whole to what these changes make of those before."""
    _check_names(changes, set(layers), folder, setting="training.use_lora")
    for name, module in layers.items():
        weight_OI = before[name].weight.float()
        if name in changes:
            weight_OI = weight_OI + changes[name].product().to(weight_OI.device)
        module.weight.copy_(weight_OI)


def lora_layers(peft: Any) -> dict[str, Any]:
    """PEFT's own layers by the name of what they adapt."""
    from peft.tuners.lora.layer import LoraLayer

    found = peft.named_modules()
    return {name.removeprefix(_KEY): one for name, one in found if isinstance(one, LoraLayer)}


def _halves(layer: Any) -> tuple[Tensor, Tensor]:
    if "default" in layer.lora_embedding_A:
        return layer.lora_embedding_A["default"], layer.lora_embedding_B["default"]
    return layer.lora_A["default"].weight, layer.lora_B["default"].weight


def _check_names(
    changes: Mapping[str, Change], known: set[str], folder: Path, *, setting: str
) -> None:
    told = {name for name, change in changes.items() if bool(change.up_OR.any())}
    if odd := sorted(told - known):
        raise ModelError(
            f"The version in {folder} changes {odd[0]} ({len(odd)} such layers), which is not "
            f"trained now. {_what_to_do(setting.removeprefix('training.'))}"
        )


def _what_to_do(setting: str) -> str:
    return (
        f"Set training.{setting} as it was for that version, or so that it takes in more; or go "
        "back to the model as it came: `instar versions promote base`."
    )
