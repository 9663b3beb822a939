"""The sandboxed interpreter: what code may do in it, and what counts as an answer."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest

from instar.envs import open_environment
from instar.envs.bwrap import find_bwrap
from instar.envs.interpreter import SCRIPT, answer_in
from instar.envs.interpreter_python import PythonRunner, open_python
from instar.errors import ConfigError

needs_bwrap = pytest.mark.skipif(
    find_bwrap() is None or not shutil.which("unshare"), reason="bubblewrap is not here: make bwrap"
)


@pytest.fixture
async def python() -> AsyncIterator[PythonRunner]:
    async with open_python(backend="bwrap", seconds=5, limit=100, memory_mb=256) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>42</answer>", "42"),
        ("So it is\n<answer> 42 </answer> of course.", "42"),
        ("<answer>a\nb</answer>", "a\nb"),
        ("", None),
        ("42", None),
        ("The answer is 42.", None),
        ("<answer></answer>", None),
        ("<answer>  </answer>", None),
        ("<answer>42", None),
        ("</answer>42<answer>", None),
        ("<answer>1</answer><answer>2</answer>", None),
        ("<answer>1 <answer>2</answer>", None),
        ("<answer>" + "1 " * 3000 + "</answer>", None),
    ],
)
def test_what_counts_as_an_answer(text: str, answer: str | None) -> None:
    assert answer_in(text) == answer


@needs_bwrap
async def test_variables_are_kept_and_a_last_value_is_shown(python: PythonRunner) -> None:
    assert await python.run("import math\nx = math.factorial(5)") == ""
    assert await python.run("print('x is', x)") == "x is 120\n"
    assert await python.run("x + 1") == "121\n"
    assert await python.run("def f(n):\n    return n * x\nf(2)") == "240\n"


@needs_bwrap
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("input()", "EOFError"),
        ("print('it''s \"quoted\" $HOME `x` \\\\')", 'its "quoted" $HOME `x` \\'),
        ("print('é' * 3, '\\udc80'.encode('utf-8', 'surrogatepass'))", "ééé"),
        ("import numpy", "ModuleNotFoundError"),
        ("open('/etc/shadow').read()", "Error"),
        ("import urllib.request as u; u.urlopen('http://1.1.1.1', timeout=2)", "Error"),
        ("\x00", "Error"),
    ],
)
async def test_what_goes_wrong_is_told_in_words(
    python: PythonRunner, code: str, words: str
) -> None:
    await python.run("kept = 7")
    assert words in await python.run(code)
    assert await python.run("kept") == "7\n"


@needs_bwrap
async def test_long_output_is_cut_in_the_middle(python: PythonRunner) -> None:
    found = await python.run("print('a' * 5000 + 'b' * 5000)")
    assert found == "a" * 50 + "\n[...]\n" + "b" * 49 + "\n"


@needs_bwrap
async def test_what_code_writes_past_print_is_not_taken_for_an_answer(
    python: PythonRunner,
) -> None:
    code = "import os\nos.write(1, b'{\"out\": \"forged\"}\\n')\nprint('true')"
    assert await python.run(code) == "true\n"


@needs_bwrap
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("while True: pass", "Stopped after 1 s."),
        ("import os; os._exit(0)", "Killed."),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "Killed."),
        ("x = bytearray(4 * 10**9)", ""),
    ],
)
async def test_code_that_hangs_or_dies_costs_its_variables(code: str, why: str) -> None:
    async with open_python(backend="bwrap", seconds=1, limit=300, memory_mb=64) as python:
        await python.run("kept = 7")
        found = await python.run(code)
        assert found.startswith(why)
        if "lost" in found:
            assert "NameError" in await python.run("kept")
        else:
            assert "MemoryError" in found
        assert await python.run("1 + 1") == "2\n"


@needs_bwrap
async def test_two_interpreters_share_nothing(python: PythonRunner) -> None:
    async with open_python(backend="bwrap", seconds=5, limit=100, memory_mb=256) as other:
        await python.run("x = 1; open('/tmp/x', 'w').write('x')")
        assert "NameError" in await other.run("x")
        assert "FileNotFoundError" in await other.run("open('/tmp/x')")


@needs_bwrap
async def test_an_unknown_generator_is_named() -> None:
    with pytest.raises(ConfigError, match="no generator 'countdown'"):
        async with open_environment("interpreter", {"generators": "countdown"}):
            pass


def test_what_runs_in_another_python_imports_nothing_of_ours() -> None:
    folder = SCRIPT.parent
    foreign = [folder / "worker_loop.py", folder / "interpreter_repl.py"]
    workers = sorted(folder.rglob("*_worker.py"))
    assert SCRIPT in workers
    for file in (*foreign, *workers):
        text = file.read_text("utf-8")
        assert "import instar" not in text
        assert "from instar" not in text
