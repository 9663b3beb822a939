"""Values to bytes and back: exactly, and small."""

from __future__ import annotations

import dataclasses
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_turns import json_values, settings

from instar.errors import StoreError
from instar.record import codec
from instar.types import Sampling


@given(st.lists(st.integers(0, 2**16) | st.integers(-(2**63), 2**63 - 1)))
def test_ids_come_back(values: list[int]) -> None:
    assert codec.unpack(codec.pack_ints(values)) == tuple(values)


@given(st.lists(st.integers(0, 2**16) | st.integers(-(2**63), 2**63 - 1)), st.integers(1, 400))
def test_a_blobs_beginning_says_how_many_values_it_has(values: list[int], times: int) -> None:
    blob = codec.pack_ints(values * times)
    assert codec.count(blob[: codec.HEAD], len(blob)) == len(values) * times


@given(st.lists(st.floats(width=32) | st.floats()))
def test_floats_come_back_bit_by_bit(values: list[float]) -> None:
    found = codec.unpack(codec.pack_floats(values))
    assert [struct.pack("<d", value) for value in found] == [
        struct.pack("<d", value) for value in values
    ]


@given(json_values)
def test_json_comes_back(value: object) -> None:
    assert repr(codec.unpack_json(codec.pack_json(value))) == repr(value)


@given(st.lists(json_values))
def test_an_array_of_encoded_parts_is_the_array(parts: list[object]) -> None:
    encoded = codec.json_array([codec.to_json(part) for part in parts])
    assert repr(codec.unpack_json(codec.seal(*encoded))) == repr(parts)


@given(settings)
def test_settings_come_back(value: Sampling) -> None:
    assert codec.unpack_settings(codec.pack_settings(value)) == value


def test_every_setting_is_stored() -> None:
    assert tuple(field.name for field in dataclasses.fields(Sampling)) == codec.SETTINGS


def test_sizes_follow_the_values() -> None:
    ids = np.random.default_rng(0).integers(0, 2**16, 1000).tolist()
    assert len(codec.pack_ints(ids)) <= 2 * len(ids) + 1
    assert len(codec.pack_ints([*ids, 2**17])) <= 4 * len(ids) + 8
    halves = [float(np.float32(math.sin(i))) for i in range(1000)]
    assert len(codec.pack_floats(halves)) <= 4 * len(halves) + 1


@pytest.mark.parametrize("blob", [b"", b"?abc", bytes((ord("H") | 0x80,)) + b"no frame"])
def test_damage_is_named(blob: bytes) -> None:
    with pytest.raises(StoreError):
        codec.unpack(blob)
    with pytest.raises(StoreError):
        codec.unpack_json(blob)
