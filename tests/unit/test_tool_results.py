"""What tool results say: exit statuses in any shape, errors, and what was only shown."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.judge.calls import calls_in, only_shows
from instar.judge.next_state import Case, ToolResult
from instar.judge.tool_results import all_told, any_failed, read_result, readings


def vote(text: str, call: str = "") -> int | None:
    return read_result(ToolResult(text=text, call=call)).vote


def shell(command: str) -> str:
    return f"bash({json.dumps({'command': command})})"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit code: 0\nerror: none", 1),
        ("Process exited with code 127", -1),
        ("Traceback (most recent call last):\nKeyError: 'k'", -1),
        ("12 passed, 0 failed", 1),
        ("1 failed, 11 passed", -1),
        ('{"error": null, "result": 4}', 1),
        ('{"success": false}', -1),
        ("HTTP/1.1 404 Not Found", -1),
        ("cat: x: Permission denied", -1),
        ("[]", 0),
        ("", 0),
        ("No results found.", 0),
        ("def f():\n    raise ValueError('x is missing')", None),
        ("The blue whale is large.", None),
    ],
)
def test_results_are_read(text: str, expected: int | None) -> None:
    assert vote(text) == expected


FORMS = (
    "exit code: {}",
    "Exit-Code {}",
    "exit_code={}",
    "[exit code {}]",
    "exit {}",
    "(exit status {})",
    "Exit status: {}",
    "returncode={}",
    "return code {}",
    "<exit_code>{}</exit_code>",
    "Process exited with code {}",
    "(Command exited with code {})",
    "Process finished with exit code {}",
    "Wall time: 0.2 seconds\nProcess exited with code {}\nOutput:\nhello",
    "hello\n\nCommand exited with code {}",
    '{{"exit_code": {}}}',
    '{{"exit_code": {}, "stdout": "building...", "stderr": ""}}',
    '{{"returncode": {}, "output": ""}}',
    '{{"exitCode":{},"stderr":""}}',
    '{{"exit_status": {}}}',
    '{{"exit_code": "{}"}}',
    '{{"metadata":{{"exit_code":{}}}}}',
    '{{"output":"collected 3 items\\n","metadata":{{"exit_code":{},"duration_seconds":0.6}}}}',
    '{{"code": {}, "killed": false, "stderr": ""}}',
    '{{"status": {}, "stdout": "", "stderr": ""}}',
    '{{"exit_code": {}, "stdout": "cut off here',
    "{{'stdout': '', 'returncode': {}}}",
)
STATUSES = st.sampled_from((0, 1, 2, 127, 137, -9))


@pytest.mark.parametrize("form", FORMS)
def test_an_exit_status_decides_in_any_shape(form: str) -> None:
    for status in (1, 2, 127, -9):
        found = read_result(ToolResult(text=form.format(status)))
        assert (found.vote, found.sure) == (-1, True)
    good = read_result(ToolResult(text=form.format(0)))
    assert (good.vote, good.sure) == (1, True)


@given(st.lists(st.tuples(st.sampled_from(FORMS[:15]), STATUSES), min_size=1, max_size=5))
def test_a_failure_wins_over_successes_wherever_it_stands(parts: list[tuple[str, int]]) -> None:
    expected = -1 if any(status for _, status in parts) else 1
    texts = [form.format(status) for form, status in parts]
    assert vote("\n\n".join(texts)) == expected
    apart = tuple(ToolResult(text=one) for one in texts)
    case = Case(request="", response="", next="", role="tool", results=apart)
    assert all_told(readings(case)) == expected
    assert any_failed(case) is (expected == -1)


@pytest.mark.parametrize(
    "text",
    [
        "main.c:12:5: error: expected ';' before 'return'\n  12 | return 0;",
        "src/a.ts(3,5): error TS2345: Argument of type 'string'\n  return x;",
        "error[E0382]: borrow of moved value: `v`\n --> src/main.rs:3:5\n  | fn main() {",
        "./main.go:5:2: undefined: fmt.Printn\nfunc main() {",
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    return g(x)\n'
        "    import json\nValueError: no",
        "5 passed in 0.2s\n\nmake: *** [all] Error 2",
        "Segmentation fault (core dumped)",
        "bash: pytest: command not found",
        "3 failed, 12 passed in 0.4s",
        "FAILED tests/test_a.py::test_x - assert 1 == 2",
        '{"ok": false, "reason": "timeout after 30s"}',
        '{"isError": true, "content": "city is required"}',
        '{"error": "no such city"}',
        '{"timed_out": true, "stdout": ""}',
        "Timeout 30000ms exceeded waiting for selector '#buy'",
        "Timed out after 30 seconds",
    ],
)
def test_errors_that_cannot_be_mistaken(text: str) -> None:
    found = read_result(ToolResult(text=text))
    assert (found.vote, found.sure) == (-1, True)


LOG = """2026-01-01 INFO start
2026-01-01 ERROR the database is down
Traceback (most recent call last):
ValueError: x
Process exited with code 1
exit code: 2"""


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ('read_file({"path": "app.log"})', LOG),
        ('view({"path": "a.c"})', "int main() {\nexit(1);\nerror: x\n}"),
        (shell("cat app.log"), LOG),
        (shell("cd /var/log && tail -n 50 app.log | grep -i error"), LOG),
        ('shell({"command": ["bash", "-lc", "cat run.sh"]})', "#!/bin/sh\nset -e\nfail\nexit 1"),
        (shell("git log -3"), "commit 1\n    Fix: ValueError: x\nerror: y\nexit code: 1\n"),
        (shell("cat a.log"), json.dumps({"output": LOG, "metadata": {"exit_code": 0}})),
        (shell("grep -n error app.log"), "12:error: disk full\n90:error: timeout"),
        (shell("git diff"), '-    raise ValueError("bad")\n+    return None'),
        (shell("./run.sh"), "exit code: 0\nworker 3 exited with code 1, started again\nall fine"),
        (shell("./run.sh"), json.dumps({"exit_code": 0, "stderr": "error: exit code: 3"})),
        ('read_file({"path": "ci.json"})', '{\n "name": "a",\n "exit_code": 1,\n "b": 2\n}'),
    ],
)
def test_what_was_asked_for_may_speak_of_errors(call: str, text: str) -> None:
    found = read_result(ToolResult(text=text, call=call))
    assert (found.vote, found.sure) == (1, True)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ('read_file({"path": "x"})', "Error: ENOENT: no such file or directory, open 'x'"),
        ('read_file({"path": "x"})', '{"error": "no such file"}'),
        (shell("cat x"), "cat: x: No such file or directory"),
        (shell("cat x"), json.dumps({"output": LOG, "metadata": {"exit_code": 1}})),
        (shell("cat Makefile && make"), "all:\n\tgcc a.c\nmake: *** [all] Error 1"),
        (shell("pytest | tail -3"), "FAILED tests/test_a.py::test_x\n1 failed, 2 passed in 1s"),
    ],
)
def test_showing_may_fail_too(call: str, text: str) -> None:
    assert vote(text, call) == -1


@pytest.mark.parametrize(
    ("call", "shows"),
    [
        ('read_file({"path": "a"})', True),
        ('readFile({"path": "a"})', True),
        ('Grep({"pattern": "x"})', True),
        (shell("cat a && ls | head -3"), True),
        (shell("cd src; sed -n 1,9p a.py"), True),
        (shell("git -C x diff"), True),
        (shell("cat a > b; make"), False),
        (shell("rm -r a"), False),
        (shell("cd src"), False),
        ("bash(" + "[" * 5000 + ")", False),
        ('write_file({"path": "a"})', False),
        ("bash()", False),
        ("make({})", False),
        ("", False),
    ],
)
def test_what_a_call_does(call: str, shows: bool) -> None:
    assert only_shows(call) is shows


def test_calls_stand_in_the_reply() -> None:
    assert calls_in('I will (hopefully) look.\nls({})\nread_file({"path": "a(b)"})') == (
        "ls({})",
        'read_file({"path": "a(b)"})',
    )


@pytest.mark.parametrize(
    "response",
    [
        'I will look. bash({"command": "grep -rn TODO src"})',
        'Looking.\n[tool: bash {"command": "grep -rn TODO src"}]',
        '<tool_call>{"name": "bash", "arguments": {"command": "grep -rn TODO src"}}</tool_call>',
        '{"name": "bash", "arguments": {"command": "grep -rn TODO src"}}',
        "I will look:\n```bash\ngrep -rn TODO src\n```",
        "$ grep -rn TODO src",
        "bash: grep -rn TODO src",
        "grep -rn TODO src",
    ],
)
def test_a_call_may_be_written_in_many_ways(response: str) -> None:
    assert calls_in(response) == ('bash({"command": "grep -rn TODO src"})',)
    found = "src/a.py:12: # TODO: handle errors and exceptions"
    case = Case(request="", response=response, next=found, role="tool")
    assert [(one.vote, one.sure) for one in readings(case)] == [(1, True)]


@pytest.mark.parametrize(
    "response",
    ["", "Find attached the report.", "I fixed it.\nhead over heels", '{"name": 3}', "{", "[1]"],
)
def test_what_only_looks_like_a_call_is_none(response: str) -> None:
    assert calls_in(response) == ()


@pytest.mark.parametrize(
    ("call", "text", "expected"),
    [
        (shell("grep -rn foo src"), "(no output)\n\nexit code 1", 0),
        (shell("cd src && rg foo"), '{"stdout": "", "stderr": "", "exit_code": 1}', 0),
        (shell("diff a b"), "1c1\n< a\n---\n> b\n\nexit code 1", 1),
        (shell("grep foo src"), "grep: src: No such file or directory\n\nexit code 2", -1),
        (shell("cd src && grep foo a"), "sh: 1: cd: src: not found\n\nexit code 1", -1),
        (shell("cat a"), "\n\nexit code 1", -1),
    ],
)
def test_the_status_of_a_search_is_an_answer(call: str, text: str, expected: int) -> None:
    found = read_result(ToolResult(text=text, call=call))
    assert (found.vote, found.sure) == (expected, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"status":"ok","replicas":3}', (1, True)),
        ('{"result": "success"}', (1, True)),
        ('{"id": "ZX81", "status": "confirmed"}', (1, True)),
        ('{"id": "ZX81", "status": "confirmed", "error": "no seat"}', (-1, True)),
        ('{"status": 200, "body": "an error page"}', (1, True)),
        ('{"statusCode": 404, "message": "gone"}', (-1, True)),
        ('{"status": "ok", "error": "no such city"}', (-1, True)),
        ('{"status": "ok", "results": []}', (0, False)),
        ('{"status": 7}', (None, False)),
        ('{"status": "201"}', (1, True)),
        ('{"jsonrpc": "2.0", "id": 1, "result": {"ok": true}}', (1, True)),
        ('{"result": {"isError": true, "content": []}}', (-1, True)),
        ('[{"id": 1, "name": "a"}]', (1, True)),
        ('[{"id": 1, "error": "no such city"}]', (-1, False)),
        ("[[]]", (None, False)),
        ("[1] 24118", (None, False)),
        ('{"status": true}', (1, False)),
    ],
)
def test_an_object_says_how_it_went(text: str, expected: tuple[int | None, bool]) -> None:
    found = read_result(ToolResult(text=text))
    assert (found.vote, found.sure) == expected


@given(st.text(max_size=300), st.sampled_from(["", "read_file({})", shell("cat a"), "x("]))
def test_any_text_can_be_read(text: str, call: str) -> None:
    assert vote(text, call) in (-1, 0, 1, None)


@pytest.mark.parametrize("piece", ["\n", " ", "[(<", "exit code ", "error: ", '{"a":', "a:1:1 "])
def test_a_long_result_is_gone_over_once(piece: str) -> None:
    text = piece * (150_000 // len(piece))
    began = time.process_time()
    vote(text)
    vote(text, shell("cat a"))
    assert time.process_time() - began < 10  # over and over, it takes minutes
