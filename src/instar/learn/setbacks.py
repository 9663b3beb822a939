"""Counts what goes wrong with the same turns, so that none of them stops learning for ever.

What is nobody's fault (the store, the disk) is only passed on: it is tried again for as long as it
takes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from instar.errors import StoreError

log = logging.getLogger("instar.learn")

TRIES = 3
"""How often something may fail before it is set aside."""
_NAMED = 64


class Setbacks:
    """What failed in this process, and how often."""

    def __init__(self) -> None:
        self._tries: Counter[tuple[str, ...]] = Counter()

    @contextmanager
    def blaming(self, names: Iterable[str], give_up: Callable[[], object]) -> Iterator[None]:
        """What fails in here is the fault of these turns; after some tries it calls `give_up`.

        The error goes on to the caller, with a note that names them.
        """
        key = tuple(names)
        try:
            yield
        except Exception as error:
            if _is_nobodys(error):
                raise
            self._tries[key] += 1
            told = ", ".join(key[:_NAMED]) + (", ..." if len(key) > _NAMED else "")
            error.add_note(f"This was learning from {told}: try {self._tries[key]} of {TRIES}.")
            if self._tries[key] >= TRIES:
                del self._tries[key]
                log.error("set aside until this process starts again, after %r: %s", error, told)
                give_up()
            raise


def _is_nobodys(error: Exception) -> bool:
    return isinstance(error, StoreError | OSError) or isinstance(error.__cause__, OSError)
