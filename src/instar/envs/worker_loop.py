"""The inside of a worker process: answers questions on standard input, one JSON line each.

Run as a file, with the script that knows the answers: `python worker_loop.py SCRIPT SECONDS ...`.
The script's `open_actions` is given what follows, and names a function for each question. Neither
imports anything of instar: they run under another Python, where instar is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO


def serve(actions: Mapping[str, Callable[..., Any]], answers: TextIO, *, seconds: float) -> None:
    """Answer until standard input ends, which it also does when the parent is killed.

    No answer may take longer than this: the alarm then ends this process by itself, so that one
    that hangs does not outlive a parent that was killed meanwhile.
    """
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


def load(script: str) -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("worker", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(script: str, seconds: str, *given: str) -> None:
    # The files beside this one must not be taken for packages of the same name.
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What a library prints must not come between the answers.
    os.dup2(2, 1)
    serve(load(script).open_actions(*given), answers, seconds=float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
