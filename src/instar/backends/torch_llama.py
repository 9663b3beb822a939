"""The lean path: Llama, Mistral, Qwen2 and Qwen3 with fused weights and no module overhead.

All tokens of a step, whatever sequence they belong to, go through each linear layer in one
product. Attention is called once a slab for the sequences that are drawing replies, and once
a sequence for those whose prompt is being read. On CPUs the weights are packed for oneDNN.

N tokens of the step, B sequences, T cached tokens, H heads, K key/value heads, G = H / K,
D head size, F features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from instar.backends.torch_cache import Kv, KvPool, Slab
from instar.backends.torch_lora import Adapter
from instar.backends.torch_model import Work
from instar.backends.torch_tensors import Tensors
from instar.backends.torch_weights import Layer, Weights, merge, read_weights

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
SCALED_ROPES = frozenset({"llama3", "linear", "yarn"})
"""Rotary scalings whose frequencies do not depend on the length of the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    heads: int
    kv_heads: int
    head_size: int
    layers: int
    eps: float

    @property
    def width(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_size


def fits(config: dict[str, Any], folder: Path) -> bool:
    """Whether this path computes exactly what the model's own code would."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return (
        config["model_type"] in MODEL_TYPES
        and config.get("hidden_act") == "silu"
        and (kind == "default" or kind in SCALED_ROPES)
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and not _slides(config)
        and "quantization_config" not in config
        and Tensors.present(folder)
    )


def _slides(config: dict[str, Any]) -> bool:
    window = config.get("sliding_window")
    if config["model_type"].startswith("qwen"):
        return bool(config.get("use_sliding_window"))
    return window is not None


def _shape(config: dict[str, Any]) -> Shape:
    heads = config["num_attention_heads"]
    return Shape(
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        layers=config["num_hidden_layers"],
        eps=config["rms_norm_eps"],
    )


def _frequencies(config: dict[str, Any], folder: Path, size: int) -> tuple[Tensor, float]:
    """Rotary frequencies and the factor on cosine and sine."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        theta = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
        return 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size), 1.0
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    full = AutoConfig.from_pretrained(folder)
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](full, torch.device("cpu"))
    return frequencies, float(factor)


class LlamaModel:
    """A Llama-like model over fused weights."""

    path = "lean"

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        *,
        device: torch.device,
        dtype: torch.dtype,
        context: int,
    ) -> None:
        self.context, self.device = context, device
        self._shape = shape = _shape(config)
        frequencies, self._rope_factor = _frequencies(config, folder, shape.head_size)
        self._frequencies = frequencies.to(device)
        with Tensors(folder, device=device, dtype=dtype) as tensors:
            self.base = read_weights(
                tensors, layers=shape.layers, tied=bool(config.get("tie_word_embeddings"))
            )
        self.vocab = self.base.embed.shape[0]
        self._pool = KvPool(
            layers=shape.layers, width=shape.width, context=context, dtype=dtype, device=device
        )

    def merge(self, adapter: Adapter) -> Weights:
        return merge(self.base, adapter)

    def begin(self, source: Kv | None, *, shared: int, length: int) -> Kv:
        capacity = self._pool.size_class(min(length + 1, self.context))
        if source is None:
            return self._pool.alone(capacity)
        return self._pool.copy(source, length=shared, capacity=capacity)

    def reusable(self, source: Kv, shared: int) -> int:
        return min(shared, source.length)

    def keep(self, memory: Kv) -> Kv:
        return self._pool.keep(memory)

    def kept_bytes(self, memory: Kv) -> int:
        return self._pool.token_bytes() * memory.length

    def release(self, memory: Kv) -> None:
        self._pool.release(memory)

    def forward(self, version: str, weights: Weights, work: Sequence[Work]) -> Tensor:
        batch = _Batch(work, version, self._pool, self.device)
        angles_ND = batch.positions_N.float()[:, None] * self._frequencies
        dtype = weights.embed.dtype
        cos, sin = angles_ND.cos() * self._rope_factor, angles_ND.sin() * self._rope_factor
        cos_N1D = torch.cat((cos, cos), -1).to(dtype)[:, None]
        # The first half of a head turns against the second: the sign is kept in the sine.
        sin_N1D = torch.cat((-sin, sin), -1).to(dtype)[:, None]
        masks = [call.mask(self._shape, dtype, self.device) for call in batch.calls]
        x_NF = F.embedding(batch.ids_N, weights.embed)
        for at, layer in enumerate(weights.layers):
            x_NF = self._layer(x_NF, layer, at, batch, cos_N1D, sin_N1D, masks)
        for item in batch.order:
            item.memory.length += len(item.ids)
        x_NF = F.rms_norm(x_NF[batch.wanted], (x_NF.shape[-1],), weights.norm, self._shape.eps)
        return weights.head.apply(x_NF)

    def _layer(
        self,
        x_NF: Tensor,
        layer: Layer,
        at: int,
        batch: _Batch,
        cos_N1D: Tensor,
        sin_N1D: Tensor,
        masks: list[Tensor | None],
    ) -> Tensor:
        shape, features, linears = self._shape, (x_NF.shape[-1],), layer.linears
        qkv = linears["qkv"].apply(F.rms_norm(x_NF, features, layer.norm, shape.eps))
        self._rotate(qkv, layer, cos_N1D, sin_N1D)
        split = shape.heads * shape.head_size
        parts = []
        for call, mask in zip(batch.calls, masks, strict=True):
            rows = qkv[call.start : call.stop]
            call.store(at, rows[:, split:])
            parts.append(call.attend(at, rows[:, :split], mask, shape))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        x_NF = x_NF + linears["out"].apply(attended)
        gate, up = (
            linears["gate_up"]
            .apply(F.rms_norm(x_NF, features, layer.mlp_norm, shape.eps))
            .chunk(2, -1)
        )
        return x_NF.add_(linears["down"].apply(F.silu(gate).mul_(up)))

    def _rotate(self, qkv: Tensor, layer: Layer, cos_N1D: Tensor, sin_N1D: Tensor) -> None:
        """Turn queries and keys in place."""
        heads, keys, size = self._shape.heads, self._shape.kv_heads, self._shape.head_size
        turned = qkv[:, : (heads + keys) * size].view(-1, heads + keys, size)
        if layer.q_norm is not None and layer.k_norm is not None:
            queries, kept = turned[:, :heads], turned[:, heads:]
            queries.copy_(F.rms_norm(queries, (size,), layer.q_norm, self._shape.eps))
            kept.copy_(F.rms_norm(kept, (size,), layer.k_norm, self._shape.eps))
        swapped = turned.roll(size // 2, -1)
        turned.mul_(cos_N1D).addcmul_(swapped, sin_N1D)


class _Call:
    """One attention call: some rows of a slab, each with the same number of new tokens."""

    __slots__ = ("count", "flat_N", "kvs", "new", "row", "slab", "start", "stop", "total")

    def __init__(self, kvs: Sequence[Kv], *, new: int, start: int, device: torch.device) -> None:
        self.slab: Slab = kvs[0].slab
        self.kvs, self.new, self.row, self.count = kvs, new, kvs[0].row, len(kvs)
        self.start, self.stop = start, start + new * len(kvs)
        self.total = max(kv.length for kv in kvs) + new
        capacity = self.slab.capacity
        flat = [kv.row * capacity + kv.length + i for kv in kvs for i in range(new)]
        self.flat_N = torch.tensor(flat, device=device)

    def store(self, layer: int, kv_NW: Tensor) -> None:
        self.slab.data_LRCW[layer].flatten(0, 1).index_copy_(0, self.flat_N, kv_NW)

    def mask(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """What each new token must not see, added to its scores; None where it sees all."""
        lengths = [kv.length for kv in self.kvs]
        if self.new == 1 and min(lengths) == max(lengths):
            return None
        seen = torch.arange(self.total, device=device)
        own = torch.tensor(lengths, device=device)[:, None] + torch.arange(self.new, device=device)
        hidden = seen > own[..., None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(
            hidden, float("-inf")
        )
        return mask.repeat(1, shape.heads // shape.kv_heads, 1)[:, None]

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, shape: Shape) -> Tensor:
        """[new tokens, heads x head size]"""
        count, new, size = self.count, self.new, shape.head_size
        kv = self.slab.data_LRCW[layer, self.row : self.row + count, : self.total]
        kv = kv.view(count, self.total, 2, shape.kv_heads, size)
        keys, values = kv[:, :, 0].transpose(1, 2), kv[:, :, 1].transpose(1, 2)
        # Queries that share a key/value head are laid out as more queries of that one head.
        q = q.view(count, new, shape.kv_heads, -1, size).permute(0, 2, 3, 1, 4)
        groups = q.shape[2]
        out = F.scaled_dot_product_attention(q.flatten(2, 3), keys, values, attn_mask=mask)
        out = out.view(count, shape.kv_heads, groups, new, size).permute(0, 3, 1, 2, 4)
        return out.reshape(count * new, -1)


class _Batch:
    """The tokens of a step in the order in which they are computed."""

    __slots__ = ("calls", "ids_N", "order", "positions_N", "wanted")

    def __init__(
        self, work: Sequence[Work], version: str, pool: KvPool, device: torch.device
    ) -> None:
        owners = {id(item.memory): item for item in work}
        slabs: dict[int, Slab] = {}
        for item in work:
            if item.decoding:
                pool.seat(item.memory, version)
        for item in work:
            if item.decoding:
                slabs[id(item.memory.slab)] = item.memory.slab
        groups: list[list[Kv]] = [list(slab.rows) for slab in slabs.values()]
        groups += [[item.memory] for item in work if not item.decoding]
        self.calls: list[_Call] = []
        self.order: list[Work] = []
        start = 0
        for kvs in groups:
            items = [owners[id(kv)] for kv in kvs]
            call = _Call(kvs, new=len(items[0].ids), start=start, device=device)
            self.calls.append(call)
            self.order += items
            start = call.stop
        self.ids_N = torch.tensor([i for item in self.order for i in item.ids], device=device)
        positions = [item.memory.length + i for item in self.order for i in range(len(item.ids))]
        self.positions_N = torch.tensor(positions, device=device)
        self.wanted = torch.tensor(self._wanted(work), dtype=torch.int64, device=device)

    def _wanted(self, work: Sequence[Work]) -> list[int]:
        """Rows of the last tokens whose logits are asked for, in the order of the request."""
        ends, end = {}, 0
        for item in self.order:
            end += len(item.ids)
            ends[id(item)] = end - 1
        return [ends[id(item)] for item in work if item.wanted]
