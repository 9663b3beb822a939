"""Values to bytes and back, exactly: token ids, log-probs and JSON.

Every blob starts with one byte that says what follows, so a blob can be read without its
column; its high bit is set where the rest is a zstd frame.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import zstandard

from instar.errors import StoreError
from instar.types import Sampling

_ZSTD = 0x80
_SMALL = 64
"""Blobs below this many bytes rarely shrink."""
HEAD = 19
"""Bytes at the beginning of a blob that `count` needs: the kind and the frame's header."""

_DTYPES = {
    ord(code): np.dtype("<" + form)
    for code, form in {"H": "u2", "I": "u4", "q": "i8", "f": "f4", "d": "f8"}.items()
}
_ORJSON, _STDLIB = ord("J"), ord("j")

SETTINGS = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "max_tokens",
    "stop",
    "stop_ids",
    "top_logprobs",
)
"""The fields of `Sampling` by position in a stored row. Append only."""


class _Zstd(threading.local):
    """zstd contexts may not be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=3)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def seal(code: int, raw: bytes) -> bytes:
    """One byte of kind and the payload, compressed where that is shorter."""
    if len(raw) >= _SMALL:
        packed = _zstd.compressor.compress(raw)
        if len(packed) < len(raw):
            return bytes((code | _ZSTD,)) + packed
    return bytes((code,)) + raw


def unseal(blob: bytes) -> tuple[int, bytes]:
    if not blob:
        raise StoreError("Found an empty blob, expected a kind byte. The store is damaged.")
    code, raw = blob[0], blob[1:]
    try:
        return (code & ~_ZSTD, _zstd.decompressor.decompress(raw)) if code & _ZSTD else (code, raw)
    except zstandard.ZstdError as error:
        raise StoreError(f"A blob could not be decompressed ({error}). Restore a backup.") from None


def pack_ints(values: Sequence[int]) -> bytes:
    """Token ids in 2 bytes each where they fit, else 4, else 8."""
    wide = np.fromiter(values, np.int64, len(values))
    low, high = (int(wide.min()), int(wide.max())) if len(wide) else (0, 0)
    if low < 0 or high >= 1 << 32:
        return seal(ord("q"), wide.astype("<i8").tobytes())
    if high >= 1 << 16:
        return seal(ord("I"), wide.astype("<u4").tobytes())
    return seal(ord("H"), wide.astype("<u2").tobytes())


def pack_floats(values: Sequence[float]) -> bytes:
    """Log-probs in 4 bytes each where every one is a float32 (most engines), else in 8."""
    wide = np.fromiter(values, np.float64, len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype("<f4")
    # Compared as bits: -0.0 is not 0.0 here, and a NaN equals itself.
    if np.array_equal(narrow.astype(np.float64).view(np.int64), wide.view(np.int64)):
        return seal(ord("f"), narrow.tobytes())
    return seal(ord("d"), wide.astype("<f8").tobytes())


def unpack(blob: bytes) -> tuple[Any, ...]:
    """The tuple that `pack_ints` or `pack_floats` was given."""
    return tuple(_array(blob).tolist())


def count(head: bytes, size: int) -> int:
    """How many values `unpack` would find in a blob of so many bytes that begins like this."""
    code = head[0]
    raw = zstandard.frame_content_size(head[1:]) if code & _ZSTD else size - 1
    return int(raw) // _DTYPES[code & ~_ZSTD].itemsize


def _array(blob: bytes) -> npt.NDArray[Any]:
    code, raw = unseal(blob)
    if code not in _DTYPES:
        raise StoreError(f"Found a blob of kind {code}, expected one of {sorted(_DTYPES)}.")
    return np.frombuffer(raw, _DTYPES[code])


class Json(NamedTuple):
    """JSON text and which library reads it back exactly."""

    code: int
    raw: bytes


def to_json(value: object) -> Json:
    """What orjson would refuse or alter goes by the standard library.

    It refuses integers beyond 64 bits and halves of surrogate pairs, and writes an infinity
    (1e999, to Python) as null.
    """
    try:
        raw = orjson.dumps(value)
    except TypeError:
        return _by_stdlib(value)
    if b"null" in raw and orjson.loads(raw) != value:
        return _by_stdlib(value)
    return Json(_ORJSON, raw)


def _by_stdlib(value: object) -> Json:
    return Json(_STDLIB, json.dumps(value, separators=(",", ":")).encode())


def json_array(parts: Sequence[Json]) -> Json:
    """One array of texts that are encoded already."""
    code = _STDLIB if any(part.code == _STDLIB for part in parts) else _ORJSON
    return Json(code, b"[" + b",".join(part.raw for part in parts) + b"]")


def pack_json(value: object) -> bytes:
    return seal(*to_json(value))


def unpack_json(blob: bytes) -> Any:
    code, raw = unseal(blob)
    if code == _ORJSON:
        return orjson.loads(raw)
    if code == _STDLIB:
        return json.loads(raw)
    raise StoreError(f"Found a blob of kind {code}, expected JSON ({_ORJSON} or {_STDLIB}).")


def pack_settings(settings: Sampling) -> bytes:
    values = (getattr(settings, name) for name in SETTINGS)
    return pack_json([list(value) if isinstance(value, tuple) else value for value in values])


def unpack_settings(blob: bytes) -> Sampling:
    values = dict(zip(SETTINGS, unpack_json(blob), strict=False))
    values["stop"] = tuple(values["stop"])
    values["stop_ids"] = tuple(values["stop_ids"])
    return Sampling(**values)
