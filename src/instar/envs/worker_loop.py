"""The inside of a worker process: answer requests on standard input, one JSON line each.

It imports nothing of instar, since it runs under another Python where instar is not installed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any


def serve(actions: Mapping[str, Callable[..., Any]]) -> None:
    """Answer until standard input ends, which it also does when the parent is killed.

    A request says how long it may take. The alarm then ends this process by itself, so that one
    that hangs does not outlive a parent that was killed meanwhile.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What a library prints must not come between the answers.
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request.pop("seconds"))
        try:
            answer = {"ok": actions[request.pop("do")](**request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
