"""Memory that a long-running trainer must not keep."""

from __future__ import annotations

import contextlib
import ctypes

CPU_PASS_TOKENS = 1024
"""Tokens of one pass on a CPU, where more in one pass are no faster: only more is held at once.
The gradients are the same, since they are summed over the passes of a batch."""


def give_back() -> None:
    """Hand what was freed back to the system.

    The C library keeps freed blocks that lie below one in use. The activations of a batch differ
    in size from those of the last, so that these gaps fill badly and a process grows by updates.
    """
    with contextlib.suppress(AttributeError, OSError):  # not everywhere is it glibc
        ctypes.CDLL(None).malloc_trim(0)
