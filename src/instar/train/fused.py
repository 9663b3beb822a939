"""Fused GPU kernels for what lies between a model's large matrix products.

Norms, rotary positions and gated activations read and write memory many times over when each
elementary operation is a pass of its own. The kernels are those of the liger-kernel package
(`pip install instar[gpu]`), which compute the same functions in one pass each; without it, or for
a model that it does not know, training works as before and takes longer.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger("instar.train")


def fuse(model: Any) -> bool:
    """Give a transformers model on a GPU fused kernels; whether there were any for it."""
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError as error:
        log.info("no fused kernels (%s); `pip install instar[gpu]` makes training faster", error)
        return False
    kind = model.config.model_type
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        log.info("liger-kernel has no kernels for %s models", kind)
        return False
    module = sys.modules[type(model).__module__]
    plain = dict(vars(module))
    # The losses are ours: they never hold the logits of more than a chunk either.
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
    confine(module, plain)
    return True


def confine(module: Any, plain: dict[str, Any]) -> None:
    """Undo for all other models what liger changed in transformers' module.

    It changes the module beside the model that it was given, but the process may have another
    model of that kind on the CPU, where no such kernel runs: a judge, for one. Layers of the given
    model have their kernels already; a function goes by where its tensors are.
    """
    for name, now in list(vars(module).items()):
        before = plain.get(name, now)
        if now is before:
            continue
        setattr(module, name, before if isinstance(before, type) else _by_device(before, now))


def _by_device(plain: Callable[..., Any], fused: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def either(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return (fused if tensor.is_cuda else plain)(tensor, *args, **kwargs)

    return either
