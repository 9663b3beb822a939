"""The inside of the sandbox: runs Python handed in on standard input and keeps its variables.

One JSON line in ({"code": ..., "limit": ...}), one out ({"out": ...}). It is sent into the sandbox
as text and imports nothing of instar.
"""

import ast
import contextlib
import io
import json
import os
import sys
import traceback
from typing import Any


def _run(code: str, names: dict[str, Any]) -> None:
    """Run it, and show the value of a last line that has one, as a Python prompt does."""
    tree = ast.parse(code, "<code>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
        if value is not None:
            print(repr(value))


def _shortened(text: str, limit: int) -> str:
    half = limit // 2
    return text if len(text) <= limit else text[:half] + "\n[...]\n" + text[-half:]


def main() -> None:
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    names: dict[str, Any] = {"__name__": "__main__"}
    for line in requests:
        request = json.loads(line)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                _run(request["code"], names)
            except BaseException:
                kind, error, _ = sys.exc_info()
                said.write("".join(traceback.format_exception_only(kind, error)))
        out = _shortened(said.getvalue(), request["limit"])
        answers.write(json.dumps({"out": out}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
