"""Rows of keys and values, and the cache of what finished turns left."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.backends.torch_cache import SMALLEST, Kv, KvPool, PrefixCache, common


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    length: int
    nbytes: int


def kept(length: int, nbytes: int = 10) -> Kept:
    return Kept(length=length, nbytes=nbytes)


def ids(*values: int) -> np.ndarray:
    return np.asarray(values)


def test_the_longest_common_beginning_is_found() -> None:
    cache: PrefixCache[Kept] = PrefixCache(100)
    short, long = kept(3), kept(4)
    cache.add("base", [1, 2, 9], short)
    cache.add("base", [1, 2, 3, 4], long)
    assert cache.find("base", ids(1, 2, 3, 7)) == (long, 3)
    assert cache.find("base", ids(1, 2, 9, 9)) == (short, 3)
    assert cache.find("base", ids(5, 5)) == (None, 0)
    assert cache.find("v1", ids(1, 2, 3)) == (None, 0)


def test_the_least_recently_used_goes_first() -> None:
    cache: PrefixCache[Kept] = PrefixCache(25)
    cache.add("base", [1, 1], kept(2))
    cache.add("base", [2, 2], kept(2))
    cache.find("base", ids(1, 1))
    cache.add("base", [3, 3], kept(2))
    assert cache.nbytes == 20
    assert cache.find("base", ids(2, 2))[1] == 0
    assert cache.find("base", ids(1, 1))[1] == 2
    assert cache.find("base", ids(3, 3))[1] == 2


def test_a_longer_turn_takes_the_place_of_what_it_continues() -> None:
    cache: PrefixCache[Kept] = PrefixCache(100)
    cache.add("base", [1, 2], kept(2))
    cache.add("v1", [1, 2], kept(2))
    cache.add("base", [1, 2, 3], kept(3))
    assert len(cache) == 2
    assert cache.nbytes == 20
    assert cache.covers("base", ids(1, 2, 3))
    assert not cache.covers("v1", ids(1, 2, 3))


def test_a_version_is_forgotten_whole() -> None:
    cache: PrefixCache[Kept] = PrefixCache(100)
    cache.add("base", [1], kept(1))
    cache.add("v1", [1], kept(1))
    cache.forget("v1")
    assert cache.find("v1", ids(1)) == (None, 0)
    assert cache.find("base", ids(1))[1] == 1
    cache.clear()
    assert (len(cache), cache.nbytes) == (0, 0)


def test_what_is_too_large_is_not_admitted() -> None:
    cache: PrefixCache[Kept] = PrefixCache(9)
    assert cache.admits(9)
    assert not cache.admits(10)


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=8))
def test_common_counts_equal_beginnings(a: list[int], b: list[int]) -> None:
    shared = common(np.asarray(a, dtype=np.int64), np.asarray(b, dtype=np.int64))
    assert a[:shared] == b[:shared]
    assert a[shared : shared + 1] != b[shared : shared + 1] or shared == min(len(a), len(b))


def pool(context: int = 1000) -> KvPool:
    return KvPool(
        layers=2, width=3, context=context, dtype=torch.float32, device=torch.device("cpu")
    )


def fill(kv: Kv, mark: float, length: int) -> None:
    kv.filled(length).fill_(mark)
    kv.length = length


def holds(kv: Kv, mark: float) -> bool:
    return bool((kv.filled(kv.length) == mark).all()) and kv.length > 0


def test_sizes_double_up_to_the_context() -> None:
    sizes = [pool().size_class(length) for length in (1, SMALLEST, SMALLEST + 1, 600, 1000)]
    assert sizes == [SMALLEST, SMALLEST, 2 * SMALLEST, 1000, 1000]


def test_a_lone_row_becomes_a_batch_without_a_copy() -> None:
    rows = pool()
    kv = rows.alone(SMALLEST)
    fill(kv, 1.0, 5)
    before = kv.slab
    rows.seat(kv, "base")
    assert kv.slab is before


def test_a_row_that_outgrows_its_slab_moves() -> None:
    rows = pool()
    first, second = rows.alone(SMALLEST), rows.alone(SMALLEST)
    fill(first, 1.0, SMALLEST)
    fill(second, 2.0, 7)
    rows.seat(second, "base")
    rows.seat(first, "base")
    assert first.slab.capacity == 2 * SMALLEST
    assert second.slab.capacity == SMALLEST
    assert holds(first, 1.0)
    assert holds(second, 2.0)


def test_what_the_cache_drops_is_freed_at_once() -> None:
    """Not when the garbage collector comes by: gigabytes would wait for it."""
    rows, cache = pool(), PrefixCache[Kv](1 << 20)
    kv = rows.alone(8)
    kv.length = 4
    gc.disable()
    try:
        kept_row = rows.keep(kv)
        data = weakref.ref(kept_row.slab.data_LRCW)
        cache.add("base", [1, 2, 3, 4], kept_row)
        del kept_row
        assert data() is not None
        cache.forget("base")
        assert data() is None
    finally:
        gc.enable()


def test_groups_do_not_share_slabs() -> None:
    rows = pool()
    kvs = [rows.alone(SMALLEST) for _ in range(2)]
    for at, kv in enumerate(kvs):
        fill(kv, at + 1.0, 3)
        rows.seat(kv, f"v{at}")
    assert kvs[0].slab is not kvs[1].slab


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("jlgc"), st.integers(0, 9)), max_size=40))
def test_rows_keep_their_values_through_joins_leaves_and_growth(
    steps: list[tuple[str, int]],
) -> None:
    rows, running, mark = pool(), [], 0.0
    marks: dict[int, float] = {}
    for action, number in steps:
        if action == "j":
            mark += 1.0
            kv = rows.alone(rows.size_class(10 + number))
            fill(kv, mark, 10 + number)
            marks[id(kv)] = mark
            rows.seat(kv, "base")
            running.append(kv)
        elif running:
            kv = running[number % len(running)]
            if action == "l":
                running.remove(kv)
                rows.release(kv)
            elif action == "g":
                grown = min(kv.length * 3, 990)
                kv.length = min(kv.length, kv.slab.capacity)
                while kv.length < grown:
                    rows.seat(kv, "base")
                    fill(kv, marks[id(kv)], min(grown, kv.slab.capacity))
            else:
                copy = rows.copy(kv, length=kv.length, capacity=kv.length)
                assert holds(copy, marks[id(kv)])
        for kv in running:
            assert holds(kv, marks[id(kv)])
            assert kv.slab.rows[kv.row] is kv
    for kv in list(running):
        rows.release(kv)
    with pytest.raises(StopIteration):
        next(iter(rows._slabs))
