"""A lean forward and backward pass for PEFT's LoRA layers.

PEFT adds the adapter's output to the layer's in passes of their own over memory, and casts in
others; beside small matrix products these cost more than the adapter itself. Here both
products end in one tensor. PEFT keeps the weights, the switching and the files.

T tokens, I inputs, O outputs, R rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _LoraLinear(torch.autograd.Function):
    """x W' + scale (x A') B', for a W that is not trained."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        down_RI: Tensor,
        up_OR: Tensor,
        scale: float,
    ) -> Tensor:
        down, up = down_RI.to(x_TI.dtype), up_OR.to(x_TI.dtype)
        middle_TR = x_TI @ down.T
        out_TO = F.linear(x_TI, weight_OI, bias_O)
        out_TO.addmm_(middle_TR, up.T, alpha=scale)
        ctx.save_for_backward(x_TI, weight_OI, down_RI, up_OR, middle_TR)
        ctx.scale = scale
        return out_TO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_TO,) = grads
        x_TI, weight_OI, down_RI, up_OR, middle_TR = ctx.saved_tensors
        grad_middle_TR = (grad_TO @ up_OR.to(grad_TO.dtype)) * ctx.scale
        grad_x_TI = None
        if ctx.needs_input_grad[0]:
            grad_x_TI = grad_TO @ weight_OI
            grad_x_TI.addmm_(grad_middle_TR, down_RI.to(grad_TO.dtype))
        grad_down_RI = (grad_middle_TR.T @ x_TI).to(down_RI.dtype)
        grad_up_OR = (grad_TO.T @ middle_TR).to(up_OR.dtype) * ctx.scale
        return grad_x_TI, None, None, grad_down_RI, grad_up_OR, None


def _forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if layer.disable_adapters or layer.resting:
        out: Tensor = layer.base_layer(x)
        return out
    base = layer.base_layer
    flat_TI = x.reshape(-1, x.shape[-1]).to(base.weight.dtype)
    out_TO: Tensor = _LoraLinear.apply(  # type: ignore[no-untyped-call]
        flat_TI,
        base.weight,
        base.bias,
        layer.lora_A["default"].weight,
        layer.lora_B["default"].weight,
        layer.scaling["default"],
    )
    return out_TO.reshape(*x.shape[:-1], -1)


def make_lean(model: nn.Module, *, dropout: float) -> list[Any]:
    """Give plain LoRA layers the lean pass; none at all unless every one of them can take it."""
    from peft.tuners.lora.layer import Linear, LoraLayer

    layers = [one for one in model.modules() if isinstance(one, LoraLayer)]
    plain = [one for one in layers if type(one) is Linear and type(one.base_layer) is nn.Linear]
    if dropout or len(plain) != len(layers):
        return []
    for layer in plain:
        layer.resting = False
        layer.forward = MethodType(_forward, layer)
    return plain


@contextmanager
def resting(lean: list[Any]) -> Iterator[None]:
    """The base speaks alone. PEFT's own switch walks through the whole model each time."""
    for layer in lean:
        layer.resting = True
    try:
        yield
    finally:
        for layer in lean:
            layer.resting = False
