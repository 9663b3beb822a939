"""Memory for keys and values: where running replies keep them, and what finished turns leave.

Running replies of one version and one size class share a slab, so that one attention call
serves them all. A finished turn leaves a copy in the prefix cache, from which the session's
next turn starts. The cache forgets the least recently used turns first.

L layers, R rows, C capacity in tokens, W width of a token's keys and values together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

SMALLEST = 128
"""Tokens a row holds at least; sizes double from here, so a row moves seldom as it grows."""

MIN_REUSE = 16
"""A shorter common prefix costs more to copy than to read."""


class Memory(Protocol):
    """The keys and values of one sequence."""

    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Slab:
    """Rows of equal capacity in one tensor; the rows in use come first, without gaps."""

    __slots__ = ("data_LRCW", "rows")

    def __init__(self, data_LRCW: Tensor) -> None:
        self.data_LRCW = data_LRCW
        self.rows: list[Kv] = []

    @property
    def capacity(self) -> int:
        return self.data_LRCW.shape[2]


class Kv:
    """The keys and values of one sequence: a row of a slab and how much of it is filled."""

    __slots__ = ("group", "length", "row", "slab")

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self.row = len(slab.rows)
        self.length = 0
        self.group: str | None = None
        """The version whose batch it sits in; None while it is alone in its slab."""
        slab.rows.append(self)

    @property
    def nbytes(self) -> int:
        data = self.slab.data_LRCW
        return data.nbytes // data.shape[1]

    def filled(self, length: int) -> Tensor:
        """[L, length, W]"""
        return self.slab.data_LRCW[:, self.row, :length]


class KvPool:
    """Hands out rows and keeps those of one batch together."""

    def __init__(
        self, *, layers: int, width: int, context: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._layers, self._width, self._context = layers, width, context
        self._dtype, self._device = dtype, device
        self._slabs: dict[tuple[str, int], Slab] = {}

    def token_bytes(self) -> int:
        return self._layers * self._width * self._dtype.itemsize

    def size_class(self, length: int) -> int:
        size = SMALLEST
        while size < length:
            size *= 2
        return max(length, min(size, self._context))

    def alone(self, length: int) -> Kv:
        """An empty row in a slab of its own, with room for `length` tokens."""
        return Kv(self._slab(1, length))

    def copy(self, source: Kv, *, length: int, capacity: int) -> Kv:
        """A row of its own that starts as the first `length` tokens of another."""
        kv = self.alone(capacity)
        kv.filled(length).copy_(source.filled(length))
        kv.length = length
        return kv

    def keep(self, source: Kv) -> Kv:
        """A copy that nobody writes to or moves, as small as it can be."""
        kv = self.copy(source, length=source.length, capacity=source.length)
        # A row and its slab hold each other. Were they left so, what the cache drops would stay
        # until the garbage collector looks, which it seldom does for a few objects, however large.
        kv.slab.rows.clear()
        return kv

    def seat(self, kv: Kv, group: str) -> None:
        """Put a row into its group's batch, with room for one token more."""
        if kv.group == group and kv.length < kv.slab.capacity:
            return
        capacity = self.size_class(kv.length + 1)
        slab = self._slabs.get((group, capacity))
        if slab is None and kv.group is None and kv.slab.capacity == capacity:
            self._slabs[group, capacity] = kv.slab
        else:
            slab = self._room(group, capacity)
            row = len(slab.rows)
            slab.data_LRCW[:, row, : kv.length].copy_(kv.filled(kv.length))
            self.release(kv)
            kv.slab, kv.row = slab, row
            slab.rows.append(kv)
        # Longer rows of the batch make attention pass over this one's end too. It is masked
        # there, but 0 times what happens to lie in fresh memory may be not a number.
        kv.slab.data_LRCW[:, kv.row, kv.length :].zero_()
        kv.group = group

    def release(self, kv: Kv) -> None:
        """Give a row back; the last row moves into the gap."""
        slab, last = kv.slab, kv.slab.rows.pop()
        if last is not kv:
            data = slab.data_LRCW
            data[:, kv.row, : last.length].copy_(data[:, last.row, : last.length])
            last.row = kv.row
            slab.rows[kv.row] = last
        if not slab.rows and kv.group is not None:
            del self._slabs[kv.group, slab.capacity]
        kv.group = None

    def _room(self, group: str, capacity: int) -> Slab:
        slab = self._slabs.get((group, capacity))
        if slab is None:
            slab = self._slabs[group, capacity] = self._slab(1, capacity)
        rows = slab.data_LRCW.shape[1]
        if len(slab.rows) == rows:
            wider = self._slab(rows * 2, capacity).data_LRCW
            wider[:, :rows].copy_(slab.data_LRCW)
            slab.data_LRCW = wider
        return slab

    def _slab(self, rows: int, capacity: int) -> Slab:
        size = (self._layers, rows, capacity, self._width)
        return Slab(torch.empty(size, dtype=self._dtype, device=self._device))


M = TypeVar("M", bound=Memory)


@dataclass(slots=True, kw_only=True)
class _Entry(Generic[M]):
    version: str
    ids: np.ndarray
    memory: M


class PrefixCache(Generic[M]):
    """What finished turns left, found by the longest common beginning of their tokens."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[int, _Entry[M]] = OrderedDict()
        self._next = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def admits(self, nbytes: int) -> bool:
        return nbytes <= self._limit

    def find(self, version: str, ids: np.ndarray) -> tuple[M | None, int]:
        """The entry that shares most with the beginning of `ids`, and how many tokens."""
        best, key = 0, None
        for at, entry in self._entries.items():
            if entry.version == version and (shared := common(entry.ids, ids)) > best:
                best, key = shared, at
        if key is None:
            return None, 0
        self._entries.move_to_end(key)
        return self._entries[key].memory, best

    def add(self, version: str, ids: Sequence[int] | np.ndarray, memory: M) -> None:
        """Keep an entry, in place of those it continues."""
        new = np.asarray(ids[: memory.length], dtype=np.int64)
        for at, entry in list(self._entries.items()):
            if entry.version == version and common(entry.ids, new) == len(entry.ids):
                self._remove(at)
        self._entries[self._next] = _Entry(version=version, ids=new, memory=memory)
        self._next += 1
        self.nbytes += memory.nbytes
        while self.nbytes > self._limit:
            self._remove(next(iter(self._entries)))

    def covers(self, version: str, ids: np.ndarray) -> bool:
        """Whether an entry already holds all of these tokens."""
        return self.find(version, ids)[1] == len(ids)

    def forget(self, version: str) -> None:
        self._drop(at for at, entry in self._entries.items() if entry.version == version)

    def clear(self) -> None:
        self._drop(self._entries)

    def _drop(self, keys: Iterable[int]) -> None:
        for at in list(keys):
            self._remove(at)

    def _remove(self, key: int) -> None:
        self.nbytes -= self._entries.pop(key).memory.nbytes


def common(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two sequences share from their beginning."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size
