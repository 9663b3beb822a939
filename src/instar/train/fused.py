"""Fused GPU kernels for what lies between a model's large matrix products.

Norms, rotary positions and gated activations read and write memory many times over when each
elementary operation is a pass of its own. The kernels are those of the liger-kernel package
(`pip install instar[gpu]`), which compute the same functions in one pass each; without it, or for
a model that it does not know, training works as before and takes longer.
"""

from __future__ import annotations

import logging
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
    # The losses are ours: they never hold the logits of more than a chunk either.
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
    return True
