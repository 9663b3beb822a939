"""How long a sequence a model can be trained on, where something in it sets an end.

Beyond an attention window a token no longer sees all that came before it, which tree attention
does not cut. A table of positions ends. And rotary positions that change with the length of what
is read at once are no longer those of each turn where turns of different lengths are read together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_POSITIONS = re.compile(r"\bwpe\b|position|pos_e")
"""Names of tables with one row a position."""
_SPARE = 2
"""Rows that such a table may have beyond the positions that can be used (OPT)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The longest sequence, and what makes it so."""

    tokens: int
    why: str
    """As in: a turn is longer than `why`."""

    def __str__(self) -> str:
        return f"{self.why} ({self.tokens} tokens)"


def shorter(one: Limit, other: Limit | None) -> Limit:
    """The limit that is met first."""
    return other if other is not None and other.tokens < one.tokens else one


def limit_of(model: Any) -> Limit | None:
    """The longest sequence of a transformers model; None where nothing in it sets an end."""
    config = model.config.get_text_config()
    found = [*_windows(config), *_rotary(config), *_tables(model, config)]
    return min(found, key=lambda one: one.tokens, default=None)


def _windows(config: Any) -> Iterator[Limit]:
    kinds = getattr(config, "layer_types", None)
    for name, kind in (("sliding_window", "sliding"), ("attention_chunk_size", "chunked")):
        size = getattr(config, name, None)
        if size and (kinds is None or any(kind in one for one in kinds)):
            yield Limit(tokens=int(size), why="the model's attention window")


def _rotary(config: Any) -> Iterator[Limit]:
    """Where frequencies follow the length, they are the plain ones up to this one."""
    rope = getattr(config, "rope_parameters", None) or {}
    each = [rope, *(one for one in rope.values() if isinstance(one, dict))]
    for one in each:
        kind = str(one.get("rope_type", ""))
        if "dynamic" in kind:
            end = config.max_position_embeddings
        elif kind == "longrope":
            end = one.get("original_max_position_embeddings") or config.max_position_embeddings
        else:
            continue
        yield Limit(tokens=int(end), why=f"the positions that {kind} RoPE leaves as they are")


def _tables(model: Any, config: Any) -> Iterator[Limit]:
    """Learned positions, and others that are looked up."""
    size = int(getattr(config, "max_position_embeddings", None) or 0)
    tables = [*model.named_parameters(), *model.named_buffers()]
    for name, table in tables if size else ():
        if table.dim() == 2 and size <= len(table) <= size + _SPARE and _POSITIONS.search(name):
            yield Limit(tokens=size, why="the model's table of positions")
