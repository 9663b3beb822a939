"""Imports point one way, environment variables are read in one place, and files stay small.

types <- errors, text, ids, tries <- protocols <- config <- stages <- backends, envs <- loop
<- the rest
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "instar"
MODULES = sorted(PACKAGE.rglob("*.py"))
STAGES = ("gateway", "record", "judge", "batch", "train", "publish")
LAYERS: tuple[tuple[str, ...], ...] = (
    ("types",),
    ("errors", "text", "ids", "synthetic", "threads", "tries"),
    ("protocols", "own_file"),
    ("config_section", "config_training", "config", "config_yaml", "config_nearest", "config_load"),
    STAGES,
    ("backends", "envs"),
    ("loop", "web", "learn", "launch"),
    ("demo", "playing"),
    ("cli", "commands", "connect", "dashboard", "status", "rollouts", "test_rollout", "__main__"),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
LOOSE = LEVEL["config"], LEVEL["loop"], LEVEL["cli"]
"""Levels whose parts may import each other; elsewhere a part imports only lower levels."""
MAX_MODULE = 500
MAX_FUNCTION = 60
CHILD_ENVIRONMENT = {"env", "environ", "environment"}
"""`os.environ` may be copied into a variable or argument of these names, for a child process."""

HANDOVER = {"backends/wire.py", "backends/vllm_plugin.py"}
"""These read, in a child process, the variables that instar itself set for that child."""


def part_of(module: Path) -> str:
    """The top-level name below the package: `gateway` for gateway/app.py."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(module: Path) -> str:
    return str(module.relative_to(PACKAGE))


def imported_parts(module: Path) -> Iterator[tuple[int, str]]:
    """(line, part of instar) of every import in a file, wherever it stands."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "instar" and len(parts) > 1 and parts[1] != "__version__":
                yield node.lineno, parts[1]


def allowed(importer: str, imported: str) -> bool:
    if importer == imported:
        return True
    here, there = LEVEL[importer], LEVEL[imported]
    return there < here or (there == here and here in LOOSE)


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_imports_point_down(module: Path) -> None:
    part = part_of(module)
    if part == "__init__":
        # What `import instar` offers is imported when it is called, and not before.
        assert {part for _, part in imported_parts(module)} <= {"rollouts"}
        return
    assert part in LEVEL, f"{name_of(module)}: say in LAYERS where {part} belongs"
    wrong = [
        f"{name_of(module)}:{line} imports instar.{other}"
        for line, other in imported_parts(module)
        if not allowed(part, other)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("importer", "imported", "right"),
    [
        ("gateway", "record", False),
        ("gateway", "types", True),
        ("types", "errors", False),
        ("record", "config", True),
        ("protocols", "config", False),
        ("backends", "batch", True),
        ("batch", "backends", False),
        ("loop", "gateway", True),
        ("gateway", "loop", False),
        ("commands", "status", True),
        ("backends", "envs", False),
    ],
)
def test_the_rule_itself(importer: str, imported: str, right: bool) -> None:
    assert allowed(importer, imported) is right


def environment_reads(tree: ast.AST) -> Iterator[int]:
    """Lines that read the environment otherwise than to hand a copy to a child process.

    Setting a variable is no reading: some libraries can be told things in no other way.
    """
    excused: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            excused.add(id(node.value))
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        elif isinstance(node, ast.keyword) and node.arg in CHILD_ENVIRONMENT:
            excused |= {id(inner) for inner in ast.walk(node.value)}
            continue
        else:
            continue
        if all(isinstance(one, ast.Name) and one.id in CHILD_ENVIRONMENT for one in targets):
            excused |= {id(inner) for inner in ast.walk(value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            if {alias.name for alias in node.names} & {"environ", "getenv", "environb"}:
                yield node.lineno
        elif (
            isinstance(node, ast.Attribute)
            and node.attr in {"environ", "getenv", "environb"}
            and id(node) not in excused
        ):
            yield node.lineno


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_environment_is_read_only_in_config(module: Path) -> None:
    if name_of(module) in {"config.py", *HANDOVER}:
        return
    tree = ast.parse(module.read_text(encoding="utf-8"))
    assert [f"{name_of(module)}:{line}" for line in environment_reads(tree)] == []


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("import os\nx = os.environ['A']", [2]),
        ("import os\nx = os.getenv('A')", [2]),
        ("from os import environ", [1]),
        ("import os\nenv = {**os.environ, 'A': '1'}", []),
        ("import os\nrun(env={**os.environ})", []),
        ("import os\nos.environ['A'] = '1'", []),
        ("import os\nx['A'] = os.environ['A']", [2]),
    ],
)
def test_the_environment_rule_itself(code: str, lines: list[int]) -> None:
    assert list(environment_reads(ast.parse(code))) == lines


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_files_and_functions_stay_small(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_MODULE, f"{name_of(module)} is too long; split it"
    long = [
        f"{name_of(module)}:{node.lineno} {node.name} has {length} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION
    ]
    assert long == []


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_every_module_says_what_it_is(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))), name_of(module)
