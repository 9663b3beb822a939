"""Numbers on their way to the device that computes with them.

A plain copy to a GPU waits until all that the GPU was told to do is done, and then the GPU waits
until it is told more. From pinned memory the copy takes its place in the row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def sent(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of these numbers there."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)
