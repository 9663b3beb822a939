"""The trained part of the probe: a few small networks on frozen features, as plain tensors.

    hidden (D) -> centred, scaled, projected (P)  }
    words  (L) -> centred, scaled                 } -> K networks -> 3 logits each

Each of the K networks was trained on another draw of the cases, so that they differ; `probe.py`
makes votes of them. A head is two files: `head.safetensors` and `head.json`, which says what it was
trained on.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instar.errors import ModelError
from instar.judge.features import NAMES

if TYPE_CHECKING:
    import torch

LABELS = (-1, 0, 1)
"""Which label each logit stands for."""
SHIPPED = Path(__file__).parent / "data"
CLAMP = 4.0
"""Features further out than this, in standard deviations, say no more."""
_NAMES = ("center", "scale", "basis", "word_center", "word_scale", "w1", "b1", "w2", "b2")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInfo:
    """What a head needs to know of its features, and how good it was."""

    layers: int
    """The layer of the frozen model whose states are read."""
    context: bool
    """Whether the model is shown the request and the reply before the next state."""
    width: int
    """Hidden features a case; they tell one model from another."""
    temperature: float
    """Divides the logits, so that a confidence of 0.8 is right eight times in ten."""
    words: tuple[str, ...] = NAMES
    accuracy: float | None = None
    macro_f1: float | None = None
    """On cases that it was not trained on; None where there were none."""
    cases: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """K networks and what they share."""

    info: HeadInfo
    tensors: dict[str, torch.Tensor]

    def logits(self, hidden: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """(K, N, 3), at the calibrated temperature."""
        import torch

        t = self.tensors
        shown = ((hidden - t["center"]) / t["scale"]) @ t["basis"]
        said = (words - t["word_center"]) / t["word_scale"]
        x = torch.cat([shown, said], dim=1).clamp(-CLAMP, CLAMP)
        inner = torch.relu(torch.einsum("nf,kfh->knh", x, t["w1"]) + t["b1"][:, None])
        out = torch.einsum("knh,kho->kno", inner, t["w2"]) + t["b2"][:, None]
        return out / self.info.temperature

    def save(self, folder: Path) -> None:
        """Write both files; each appears whole or not at all."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        halves = {name: one.half().contiguous() for name, one in self.tensors.items()}
        part = folder / "head.safetensors.part"
        save_file(halves, part)
        part.chmod(0o644)  # the library closes its files to others
        part.replace(folder / "head.safetensors")
        info = folder / "head.json.part"
        text = json.dumps(dataclasses.asdict(self.info), indent=1, ensure_ascii=False)
        info.write_text(text + "\n", encoding="utf-8")
        info.replace(folder / "head.json")


def load_head(folder: Path) -> Head:
    """Read a head. Raises ModelError if it is damaged or was trained on other features."""
    from safetensors.torch import load_file

    try:
        kept: dict[str, Any] = json.loads((folder / "head.json").read_text(encoding="utf-8"))
        kept["words"] = tuple(kept["words"])
        info = HeadInfo(**kept)
        tensors = {
            name: one.float() for name, one in load_file(folder / "head.safetensors").items()
        }
        missing = set(_NAMES) - set(tensors)
    except Exception as error:  # safetensors has an exception of its own for a damaged file
        raise ModelError(
            f"{folder} holds no readable head of the judge: {error!r}. "
            "Train one: instar judge train"
        ) from error
    if missing or info.words != NAMES:
        raise ModelError(
            f"The judge's head in {folder} was trained on other features than this instar has. "
            "Train it again: instar judge train"
        )
    return Head(info=info, tensors=tensors)
