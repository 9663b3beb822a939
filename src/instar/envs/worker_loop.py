"""The inside of a worker process: answer questions on standard input, one JSON line each.

It imports nothing of instar, since it runs under another Python where instar is not installed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any


def serve(actions: Mapping[str, Callable[..., Any]], *, seconds: float) -> None:
    """Answer until standard input ends, which it also does when the parent is killed.

    No answer may take longer than this: the alarm then ends this process by itself, so that one
    that hangs does not outlive a parent that was killed meanwhile.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What a library prints must not come between the answers.
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        number, do = asked.pop("id"), asked.pop("do")
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            found = {"id": number, "ok": actions[do](**asked)}
        except Exception as error:
            found = {"id": number, "error": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(found) + "\n")
        answers.flush()
