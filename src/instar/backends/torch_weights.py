"""The weights of the lean path: the checkpoint's modules fused, packed and merged.

Queries, keys and values lie in one matrix, gate and up in another, so that a layer is four
products. A version is a set of weights that shares with the base whatever its adapter did
not touch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from instar.backends.torch_lora import Adapter, Change
from instar.backends.torch_tensors import Tensors
from instar.errors import ModelError

FUSED = {
    "self_attn.q_proj": ("qkv", 0),
    "self_attn.k_proj": ("qkv", 1),
    "self_attn.v_proj": ("qkv", 2),
    "self_attn.o_proj": ("out", 0),
    "mlp.gate_proj": ("gate_up", 0),
    "mlp.up_proj": ("gate_up", 1),
    "mlp.down_proj": ("down", 0),
}
"""Where each of the checkpoint's modules lies in the fused weights."""


class Linear:
    """A fused linear layer: rows of one or more of the checkpoint's modules."""

    __slots__ = ("_bias", "_packed", "_weight", "apply", "splits")

    def __init__(self, weight: Tensor, bias: Tensor | None, splits: tuple[int, ...]) -> None:
        self.splits = splits
        self._bias = bias
        self._packed = can_pack(weight)
        self._weight = pack(weight) if self._packed else weight
        self.apply = self._bind()

    @property
    def inputs(self) -> int:
        return self._weight.shape[1]

    def dense(self) -> Tensor:
        return self._weight.to_dense() if self._packed else self._weight

    def merged(self, changes: dict[int, Change]) -> Linear:
        """A copy with changes added to some of its parts."""
        weight = self.dense() if self._packed else self._weight.clone()
        for part, change in changes.items():
            start = sum(self.splits[:part])
            change.add_to(weight[start : start + self.splits[part]])
        return Linear(weight, self._bias, self.splits)

    def _bind(self) -> Callable[[Tensor], Tensor]:
        weight, bias = self._weight, self._bias
        if not self._packed:
            return lambda x: F.linear(x, weight, bias)
        product = torch.ops.mkldnn._linear_pointwise.default
        return lambda x: product(x, weight, bias, "none", [], "")


def can_pack(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def pack(weight: Tensor) -> Tensor:
    """oneDNN's own layout: about twice as fast as plain rows for a few tokens at a time."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return packed


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    linears: dict[str, Linear]
    """`qkv`, `out`, `gate_up` and `down`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One version of the model; versions share whatever their adapters did not touch."""

    layers: tuple[Layer, ...]
    norm: Tensor
    embed: Tensor
    head: Linear


def merge(base: Weights, adapter: Adapter) -> Weights:
    """The weights with an adapter in them; nothing is built unless all of it fits."""
    changes: dict[tuple[int, str], dict[int, Change]] = {}
    head: dict[int, Change] = {}
    for name, change in adapter.items():
        if name == "lm_head":
            head[0] = _checked(name, change, base.head, 0)
            continue
        at, field, part = _place(name, len(base.layers))
        linear = base.layers[at].linears[field]
        changes.setdefault((at, field), {})[part] = _checked(name, change, linear, part)
    layers = list(base.layers)
    for (at, field), parts in changes.items():
        linears = layers[at].linears
        layers[at] = replace(layers[at], linears=linears | {field: linears[field].merged(parts)})
    merged_head = base.head.merged(head) if head else base.head
    return replace(base, layers=tuple(layers), head=merged_head)


def _place(name: str, layers: int) -> tuple[int, str, int]:
    """Example: model.layers.3.mlp.up_proj is layer 3, gate_up, part 1."""
    head, _, rest = name.removeprefix("model.layers.").partition(".")
    if not name.startswith("model.layers.") or rest not in FUSED or not head.isdecimal():
        raise ModelError(
            f"The adapter changes {name}, which this model does not have or which cannot be "
            f"merged; expected lm_head or model.layers.N. and one of {', '.join(FUSED)}."
        )
    if int(head) >= layers:
        raise ModelError(f"The adapter changes {name}, but this model has {layers} layers.")
    return int(head), *FUSED[rest]


def _checked(name: str, change: Change, linear: Linear, part: int) -> Change:
    expected = (linear.splits[part], linear.inputs)
    if change.shape != expected:
        raise ModelError(
            f"The adapter's change to {name} has the shape {list(change.shape)}, but this model's "
            f"weight has {list(expected)}. It was made for another model."
        )
    return change


def read_weights(tensors: Tensors, *, layers: int, tied: bool) -> Weights:
    embed = tensors["model.embed_tokens.weight"]
    head = embed if tied or "lm_head.weight" not in tensors else tensors["lm_head.weight"]
    return Weights(
        layers=tuple(_read_layer(tensors, f"model.layers.{at}.") for at in range(layers)),
        norm=tensors["model.norm.weight"],
        embed=embed,
        head=Linear(head, None, (head.shape[0],)),
    )


def _read_layer(tensors: Tensors, prefix: str) -> Layer:
    def fused(field: str) -> Linear:
        names = [prefix + name for name, (goal, _) in FUSED.items() if goal == field]
        weights = [tensors[f"{name}.weight"] for name in names]
        biases = [tensors[f"{name}.bias"] for name in names if f"{name}.bias" in tensors]
        bias = torch.cat(biases) if len(biases) == len(names) else None
        return Linear(torch.cat(weights), bias, tuple(len(weight) for weight in weights))

    return Layer(
        norm=tensors[prefix + "input_layernorm.weight"],
        mlp_norm=tensors[prefix + "post_attention_layernorm.weight"],
        q_norm=tensors.find(prefix + "self_attn.q_norm.weight"),
        k_norm=tensors.find(prefix + "self_attn.k_norm.weight"),
        linears={field: fused(field) for field in ("qkv", "out", "gate_up", "down")},
    )
