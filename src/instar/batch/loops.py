"""Where a reply goes round in circles: it says again what it said before.

A teacher who has read so far would go on in the same circle, and surely, whatever its hint says.
Drawn to that, a policy learns to repeat itself.
"""

from __future__ import annotations

from collections.abc import Sequence

_MUCH = 0.25
"""Share of a reply that repeats where it goes in circles. Code and lists repeat a little, too."""


def circles(ids: Sequence[int], size: int) -> tuple[bool, ...]:
    """Tokens that only repeat, in a reply that goes round in circles; in others there are none."""
    found = repeats(ids, size)
    return found if sum(found) >= _MUCH * len(ids) else (False,) * len(ids)


def repeats(ids: Sequence[int], size: int) -> tuple[bool, ...]:
    """Of each token, whether it is one of `size` in a row that have stood in `ids` before.

    Nothing repeats where `size` is 0.
    """
    found = [False] * len(ids)
    seen: set[tuple[int, ...]] = set()
    for end in range(size, len(ids) + 1) if size else ():
        run = tuple(ids[end - size : end])
        if run in seen:
            found[end - size : end] = [True] * size
        seen.add(run)
    return tuple(found)
