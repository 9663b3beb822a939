"""The sandboxed interpreter, and an audit of every scorer that its tasks are graded with."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from instar.envs import open_environment
from instar.envs.bwrap import find_bwrap
from instar.envs.foreign import Foreign, ForeignWorker, open_worker
from instar.envs.interpreter import SCRIPT, InterpreterEnvironment, answer_in
from instar.envs.interpreter_python import PythonRunner, open_python
from instar.envs.interpreter_tasks import EASY, EXACT, GENERATORS
from instar.envs.toolcall_grade import Call
from instar.envs.toolcall_tasks import call_message
from instar.errors import ConfigError
from instar.types import Message

PYTHON = os.environ.get("INSTAR_TEST_TOOLCALL_PYTHON", "")
needs_gym = pytest.mark.skipif(not PYTHON, reason="reasoning-gym is not here: make test-toolcall")
needs_bwrap = pytest.mark.skipif(
    find_bwrap() is None or not shutil.which("unshare"), reason="bubblewrap is not here: make bwrap"
)


@pytest.fixture
async def python() -> AsyncIterator[PythonRunner]:
    async with open_python(backend="bwrap", seconds=5, limit=100, memory_mb=256) as opened:
        yield opened


@pytest.fixture
async def worker() -> AsyncIterator[ForeignWorker]:
    foreign = Foreign(script=SCRIPT, package="reasoning_gym", python=PYTHON, timeout_s=30)
    async with open_worker(foreign) as opened:
        yield opened


@pytest.fixture
async def place() -> AsyncIterator[InterpreterEnvironment]:
    async with open_environment("interpreter", {"python": PYTHON, "level": "easy"}) as opened:
        assert isinstance(opened, InterpreterEnvironment)
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


async def is_right(worker: ForeignWorker, text: str, task: dict[str, Any]) -> bool:
    found: bool = await worker.ask("score", text=text, exact=task["name"] in EXACT, **task)
    return found


def task_of(name: str, split: str, number: int, **config: Any) -> dict[str, Any]:
    return {"name": name, "seed": 0, "config": config, "split": split, "number": number}


@needs_gym
async def test_only_the_right_answer_is_right(worker: ForeignWorker) -> None:
    for name in GENERATORS:
        await audit(worker, name)


async def audit(worker: ForeignWorker, name: str) -> None:
    tasks = [task_of(name, "train", number) for number in range(4)]
    answers = [await worker.ask("answer", **task) for task in tasks]
    for task, answer in zip(tasks, answers, strict=True):
        assert await is_right(worker, answer, task)
        question = await worker.ask("question", **task)
        others = [one for one in answers if one.split() != answer.split()]
        wrong = [
            "zzz",
            "-999",
            "{}",
            "",
            " ",
            "I do not know.",
            "x" * 3000,
            question,
            f"{answer} or zzz",
        ]
        for text in (*wrong, *(others if name in EXACT else [])):
            assert not await is_right(worker, text, task), text[:80]


@needs_gym
async def test_the_two_bad_scorers_are_mended(worker: ForeignWorker) -> None:
    halting, primes = task_of("game_of_life_halting", "train", 0), task_of(
        "prime_factorization", "train", 0
    )  # fmt: skip
    # As shipped, one gives 1 to any word; the other raises on them, which here is a wrong answer.
    assert await worker.ask("score", text="zzz", exact=False, **halting)
    assert not await is_right(worker, "zzz", halting)
    assert not await is_right(worker, "two times three", primes)


@needs_gym
async def test_no_question_is_in_both_splits(worker: ForeignWorker) -> None:
    for name, config in EASY.items():
        asked = {
            split: {
                await worker.ask("question", **task_of(name, split, number, **config))
                for number in range(30)
            }
            for split in ("train", "test")
        }
        assert not asked["train"] & asked["test"]


@needs_gym
@needs_bwrap
async def test_an_attempt_with_code_and_the_right_answer_scores_1(
    place: InterpreterEnvironment,
) -> None:
    for task in (await place.tasks("test"))[:10]:
        await place.reset(task)
        answer = await place._worker.ask("answer", **place._task)
        run = call_message("c", Call("code_interpreter", {"code": f"print({answer!r})"}))
        messages, done = await place.step(run)
        assert not done
        assert messages == [{"role": "tool", "tool_call_id": "c", "content": f"{answer}\n"}]
        _, done = await place.step({"role": "assistant", "content": f"<answer>{answer}</answer>"})
        assert done
        reward, details = await place.score()
        assert reward == 1
        assert details["runs"] == 1


@needs_gym
@needs_bwrap
@pytest.mark.parametrize(
    "text",
    ["", "{answer}", "It is {answer}.", "<answer></answer>", "<answer>{answer}</answer>" * 2],
)
async def test_a_right_answer_in_the_wrong_form_scores_0(
    place: InterpreterEnvironment, text: str
) -> None:
    await place.reset((await place.tasks("train"))[0])
    answer = await place._worker.ask("answer", **place._task)
    reply: Message = {"role": "assistant", "content": text.format(answer=answer)}
    assert (await place.step(reply))[1]
    assert (await place.score())[0] == 0


@needs_gym
@needs_bwrap
async def test_an_attempt_has_so_many_turns_and_no_more() -> None:
    options = {"python": PYTHON, "level": "easy", "max_turns": 2}
    async with open_environment("interpreter", options) as place:
        await place.reset((await place.tasks("train"))[0])
        run = call_message("c", Call("code_interpreter", {"code": "1"}))
        assert not (await place.step(run))[1]
        assert (await place.step(run))[1]
        assert (await place.score())[0] == 0


@needs_gym
@needs_bwrap
async def test_a_new_attempt_has_a_new_interpreter(place: InterpreterEnvironment) -> None:
    task = (await place.tasks("train"))[0]
    for code, shown in (("x = 1", "(no output)"), ("x", "NameError")):
        await place.reset(task)
        messages, _ = await place.step(call_message("c", Call("code_interpreter", {"code": code})))
        assert shown in messages[0]["content"]


@needs_bwrap
async def test_an_unknown_generator_is_named() -> None:
    with pytest.raises(ConfigError, match="no generator 'countdown'"):
        async with open_environment("interpreter", {"generators": "countdown"}):
            pass


def test_what_runs_in_another_python_imports_nothing_of_ours() -> None:
    for name in ("worker_loop", "gym_worker", "bfcl_worker", "interpreter_repl"):
        text = SCRIPT.with_name(f"{name}.py").read_text("utf-8")
        assert "import instar" not in text
        assert "from instar" not in text
    assert Path(SCRIPT).name == "gym_worker.py"
