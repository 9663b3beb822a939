"""Which known setting an unknown one was most likely meant to be.

Names are compared as words and as letters; a key of the same section is preferred. There is always
an answer, and it is never a section that the unknown key stands in already.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

SHORT = {
    "bs": "batch_size",
    "ckpt": "checkpoint_path",
    "ctx": "context",
    "epoch": "steps_per_batch",
    "epochs": "steps_per_batch",
    "lr": "learning_rate",
    "num_epochs": "steps_per_batch",
    "path": "checkpoint_path",
    "r": "lora_rank",
    "wd": "weight_decay",
}
"""What other programs call a setting, where letters do not show it."""

_SURE = 0.6
"""From this likeness of names on, the one may well be meant by the other."""
_SECTION = 0.5
"""What the likeness of sections counts beside that of names."""


def nearest(path: str, known: Sequence[str]) -> tuple[str, bool]:
    """The nearest of the known dotted paths, and whether it may well be what was meant."""
    above, _, name = path.rpartition(".")
    name = _plain(name)
    around = {path[: at.start()] for at in re.finditer(r"\.", path)}

    def closeness(one: str) -> float:
        section, _, other = one.rpartition(".")
        # A name alone is rather that of a section, where one has it.
        there = _letters(above, section) if above else 0.1 * (not section)
        return _likeness(name, other) + _SECTION * there

    best = max((one for one in known if one not in around), key=closeness)
    return best, _likeness(name, best.rpartition(".")[2]) >= _SURE


def _plain(name: str) -> str:
    """As settings are written here: `LearningRate` and `learning-rate` are `learning_rate`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()


def _likeness(name: str, known: str) -> float:
    """From 0 to 1. `rank` is like `lora_rank`: its words are some of that name's."""
    if SHORT.get(name) == known:
        return 0.9
    ratio = _letters(name, known)
    return max(ratio, 0.7 + 0.2 * ratio) if {*name.split("_")} <= {*known.split("_")} else ratio


def _letters(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
