"""What a frozen model makes of a case: hidden states as features.

The conversation is laid out as the model knows it, up to where it would answer the next state.
Two states are read at one inner layer: the mean over the next state's tokens (what was said)
and the last one (what the model is about to say: thanks returned, an apology, a new answer).
Long texts are cut in the middle to bound the time; `features.py` still reads them whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instar.errors import ModelError
from instar.judge.next_state import Case
from instar.threads import at_most

if TYPE_CHECKING:
    import torch

BATCH = 8
REQUEST = (16, 8)
RESPONSE = (16, 8)
NEXT = (48, 32)
"""Tokens kept of the beginning and of the end of each part."""


class Encoder:
    """The first `layers` layers of a causal model, on the CPU. Made once; reads many cases."""

    def __init__(
        self, folder: Path, *, layers: int, context: bool = True, threads: int = 1
    ) -> None:
        from tokenizers import Tokenizer

        self.layers = layers
        self._context = context
        self._threads = threads
        self._tokenizer = _open(Tokenizer.from_file, folder / "tokenizer.json")
        self._model = _load(folder, layers)
        self._start, self._end = (self._ids(mark) for mark in ("<|im_start|>", "<|im_end|>"))

    @property
    def width(self) -> int:
        """Features a case."""
        return 2 * int(self._model.config.hidden_size)

    def encode(self, cases: Sequence[Case]) -> torch.Tensor:
        """One row a case, in their order."""
        import torch

        framed = [self._frame(case) for case in cases]
        order = sorted(range(len(cases)), key=lambda at: len(framed[at][0]))
        rows: list[torch.Tensor | None] = [None] * len(cases)
        with at_most(self._threads):
            for at in range(0, len(order), BATCH):
                part = order[at : at + BATCH]
                for index, row in zip(part, self._read([framed[i] for i in part]), strict=True):
                    rows[index] = row
        return torch.stack([row for row in rows if row is not None])

    def _read(self, framed: Sequence[tuple[list[int], int, int]]) -> list[torch.Tensor]:
        import torch

        longest = max(len(ids) for ids, _, _ in framed)
        # Padding stands behind and attention looks back, so it changes nothing.
        batch = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _, _ in framed])
        with torch.inference_mode():
            states = self._model(batch, use_cache=False, output_hidden_states=True).hidden_states
        layer = states[self.layers]
        return [
            torch.cat([one[len(ids) - 1], one[start:end].mean(0)]).clone()
            for one, (ids, start, end) in zip(layer, framed, strict=True)
        ]

    def _frame(self, case: Case) -> tuple[list[int], int, int]:
        """Token ids, and where the next state begins and ends among them."""
        before: list[int] = []
        if self._context:
            before += self._said("user", case.request, REQUEST)
            before += self._said("assistant", case.response, RESPONSE)
        before += [*self._start, *self._ids("user\n")]
        if case.role == "tool":
            before += self._ids("Tool result: ")
        following = _cut(self._ids(case.next.strip()), NEXT) or self._ids(" ")
        after = [*self._end, *self._ids("\n"), *self._start, *self._ids("assistant\n")]
        return before + following + after, len(before), len(before) + len(following)

    def _said(self, role: str, text: str, keep: tuple[int, int]) -> list[int]:
        words = _cut(self._ids(text.strip()), keep)
        return [*self._start, *self._ids(f"{role}\n"), *words, *self._end, *self._ids("\n")]

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found


def _cut(ids: list[int], keep: tuple[int, int]) -> list[int]:
    head, tail = keep
    return ids if len(ids) <= head + tail else ids[:head] + ids[-tail:]


def _load(folder: Path, layers: int) -> Any:
    import torch
    from transformers import AutoModel
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    model = _open(lambda path: AutoModel.from_pretrained(path, dtype=torch.float32), folder)
    if not hasattr(model, "layers") or len(model.layers) < layers:
        raise ModelError(
            f"{folder} has no {layers} layers to read, which the judge's head was trained on. "
            "Train one for it: instar judge train --model DIR"
        )
    # One more than is read: the last one kept would come out through the final norm.
    model.layers = model.layers[: layers + 1]
    return model.eval().requires_grad_(False)


def _open(opener: Any, path: Path) -> Any:
    try:
        return opener(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ModelError(f"{path} cannot be read for judging: {error}") from error
