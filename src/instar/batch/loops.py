"""Where a reply goes round in circles: it says again what it said before.

A teacher who has read so far would go on in the same circle, and surely, whatever its hint says.
Drawn to that, a policy learns to repeat itself.
"""

from __future__ import annotations

from collections.abc import Sequence


def repeats(ids: Sequence[int], size: int) -> tuple[bool, ...]:
    """Of each token, whether the `size` tokens that end with it have stood in `ids` before.

    Nothing repeats where `size` is 0.
    """
    seen: set[tuple[int, ...]] = set()
    found = []
    for end in range(1, len(ids) + 1):
        run = tuple(ids[max(0, end - size) : end])
        found.append(0 < size == len(run) and run in seen)
        seen.add(run)
    return tuple(found)
