"""What keeps an owner's training waiting: tried again after a while, and said once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from instar.errors import InstarError

log = logging.getLogger("instar.learn")

_AGAIN_S = 10.0
_SAY_AGAIN_S = 600.0


class Troubles:
    """By owner; '' is what concerns all of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._said: dict[str, tuple[str, float]] = {}

    def waits(self, owner: str) -> bool:
        """Whether it is too early to try again."""
        return self._clock() < self._until.get(owner, float("-inf"))

    def note(self, owner: str, error: Exception) -> None:
        """Something failed: wait, and say so unless that has just been said."""
        now = self._clock()
        self._until[owner] = now + _AGAIN_S
        if not isinstance(error, InstarError):
            # Nobody foresaw it, so whoever mends it needs to know where it was.
            log.error("training of %s failed", owner, exc_info=error)
            return
        text, at = self._said.get(owner, ("", float("-inf")))
        if text != str(error) or now - at >= _SAY_AGAIN_S:
            self._said[owner] = (str(error), now)
            log.error("training%s has to wait: %s", f" of {owner}" if owner else "", error)

    def is_over(self, owner: str) -> None:
        self._until.pop(owner, None)
        self._said.pop(owner, None)
