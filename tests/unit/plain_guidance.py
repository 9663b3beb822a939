"""A guided teacher as plain code says it, one row and one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def guided(hinted_MV: Tensor, plain_MV: Tensor, guidance: float) -> Tensor:
    """Logits of hinted x (hinted / plain) ^ guidance; unlikely tokens gain nothing by it."""
    rows = []
    for hinted_V, plain_V in zip(hinted_MV.softmax(1), plain_MV.softmax(1), strict=True):
        most = float(hinted_V.max())
        row = []
        for p, r in zip(hinted_V, plain_V, strict=True):
            gain = (p / r) ** guidance
            row.append(p * (gain if float(p) > 0.1 * most else torch.clamp(gain, max=1.0)))
        rows.append(torch.stack(row).log())
    return torch.stack(rows)
