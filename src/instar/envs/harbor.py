"""Terminal tasks in Harbor's format: instruction.md, task.toml, environment/, tests/, solution/.

Folders written for Harbor load as they are, as far as their Dockerfile can be followed without
Docker and without a network: WORKDIR, ENV, ARG, COPY, ADD of local files, and RUN of what the
sandbox has. `write` makes such a folder from a task.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from instar.errors import ConfigError

WORKDIR = "/app"
IGNORED = {"FROM", "LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "USER", "SHELL", "MAINTAINER"}
"""Dockerfile instructions that mean nothing here: the sandbox has its own system and user."""
CONTEXT = "/tmp/.context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task, whoever wrote it."""

    id: str
    instruction: str
    kind: str = "bash_commands"
    difficulty: str = "medium"
    workdir: str = WORKDIR
    env: dict[str, str] = field(default_factory=dict)
    setup: str = ""
    """Bash that makes the starting state; runs in the working folder."""
    context: Path | None = None
    """A folder that setup may copy from."""
    tests: Path | dict[str, str] = field(default_factory=dict)
    """Files of /tests when the task is graded, test.sh among them; the agent never sees them."""
    solution: str = ""
    max_steps: int | None = None
    needs: tuple[str, ...] = ()
    """Programs that the task cannot do without."""
    split: str = ""
    """`train` or `test`; empty: by its place in the list."""
    verifier_s: float = 60.0


def load_folder(folder: Path) -> list[Task]:
    """Every task below a folder, by name."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; tasks names a folder of Harbor tasks")
    found = sorted(path.parent for path in folder.rglob("task.toml"))
    if not found:
        raise ConfigError(f"{folder} holds no task: expected folders with a task.toml in them")
    return [_load(path, path.relative_to(folder).as_posix()) for path in found]


def _load(folder: Path, name: str) -> Task:
    try:
        settings = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        instruction = (folder / "instruction.md").read_text(encoding="utf-8").strip()
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the task {folder} cannot be read: {error}") from None
    if not (folder / "tests" / "test.sh").is_file():
        raise ConfigError(f"the task {folder} has no tests/test.sh to grade it with")
    about = {**settings.get("task", {}), **settings.get("metadata", {})}
    solution = folder / "solution" / "solve.sh"
    dockerfile = folder / "environment" / "Dockerfile"
    text = dockerfile.read_text(encoding="utf-8") if dockerfile.is_file() else ""
    workdir, env, setup = follow_dockerfile(text, str(dockerfile))
    return Task(
        id=name if name != "." else folder.resolve().name,
        instruction=instruction,
        kind=str(about.get("category", "bash_commands")),
        difficulty=str(about.get("difficulty", "medium")),
        workdir=workdir,
        env=env,
        setup=setup,
        context=folder / "environment" if dockerfile.is_file() else None,
        tests=folder / "tests",
        solution=solution.read_text(encoding="utf-8") if solution.is_file() else "",
        max_steps=about.get("max_steps"),
        split=str(about.get("split", "")),
        verifier_s=float(settings.get("verifier", {}).get("timeout_sec", 60.0)),
    )


def follow_dockerfile(text: str, name: str) -> tuple[str, dict[str, str], str]:
    """The working folder, the environment and the bash that a Dockerfile comes to."""
    workdir, env, lines = WORKDIR, dict[str, str](), list[str]()
    for word, rest in _instructions(text):
        if word == "WORKDIR":
            workdir = rest if rest.startswith("/") else f"{workdir.rstrip('/')}/{rest}"
            lines.append(f"mkdir -p {shlex.quote(workdir)}; cd {shlex.quote(workdir)}")
        elif word in ("ENV", "ARG"):
            pairs = _pairs(rest)
            env.update(pairs if word == "ENV" else {})
            lines += [f"export {key}={shlex.quote(value)}" for key, value in pairs.items()]
        elif word == "RUN":
            lines.append(shlex.join(json.loads(rest)) if rest.startswith("[") else f"( {rest}\n)")
        elif word in ("COPY", "ADD"):
            lines.append(_copy(rest, name))
        elif word not in IGNORED:
            raise ConfigError(
                f"{name} has {word}, which cannot be followed without Docker; use the docker "
                "sandbox with an image of this task, or leave the task out"
            )
    return workdir, env, "\n".join(lines)


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    kept = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(kept))
    for line in joined.splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


def _pairs(rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _copy(rest: str, name: str) -> str:
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    if any(word.startswith("--from") for word in words):
        raise ConfigError(f"{name} copies from another image, which needs Docker")
    *sources, target = [word for word in words if not word.startswith("--")]
    if any("://" in source for source in sources):
        raise ConfigError(f"{name} adds a file of the network, which a sandbox does not have")
    to = shlex.quote(target)
    lines = [f"mkdir -p {to if target.endswith('/') or len(sources) > 1 else f'$(dirname {to})'}"]
    for source in sources:
        at = f"{CONTEXT}/{source.strip('/')}".rstrip("/.") if source.strip("./") else CONTEXT
        # What is copied of a folder is its contents, not the folder.
        lines.append(
            f"if [ -d {shlex.quote(at)} ]; then mkdir -p {to}; cp -a {shlex.quote(at)}/. {to}/; "
            f"else cp -a {_globbed(at)} {to}; fi"
        )
    return "\n".join(lines)


def _globbed(path: str) -> str:
    """Quoted but for the signs of a pattern."""
    return re.sub(r"[^\w@%+=:,./*?\[\]-]", lambda found: "\\" + found[0], path)


def write(task: Task, folder: Path) -> None:
    """A task with its tests as texts, as a folder that Harbor and `load_folder` read."""
    assert isinstance(task.tests, dict)
    settings: dict[str, dict[str, Any]] = {
        "metadata": {"category": task.kind, "difficulty": task.difficulty},
        "verifier": {"timeout_sec": task.verifier_s},
    }
    lines = ['version = "1.0"']
    for section, values in settings.items():
        lines += ["", f"[{section}]", *(f"{key} = {json.dumps(v)}" for key, v in values.items())]
    docker = f"FROM debian:bookworm-slim\nWORKDIR {task.workdir}\nCOPY setup.sh /tmp/setup.sh\n"
    files = {
        "task.toml": "\n".join(lines) + "\n",
        "instruction.md": task.instruction + "\n",
        "environment/Dockerfile": docker + "RUN bash /tmp/setup.sh && rm /tmp/setup.sh\n",
        "environment/setup.sh": task.setup or ":\n",
        "solution/solve.sh": task.solution,
        **{f"tests/{name}": text for name, text in task.tests.items()},
    }
    for name, text in files.items():
        path = folder / task.id / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
