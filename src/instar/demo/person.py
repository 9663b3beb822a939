"""A persona file: what the simulated person asks, and what they say to an answer."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from instar.errors import ConfigError

FOLDER = Path(__file__).parent / "personas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody to learn from."""

    name: str
    asked: tuple[str, ...]
    """Prompts they learn with."""
    kept: tuple[str, ...]
    """Prompts that are never trained on: the report is made on these."""
    score: Callable[[str, str], float]
    """How far an answer is what they want, 0 to 1. Only the report may know."""
    respond: Callable[[str, str], str]

    def likes(self, prompt: str, answer: str) -> bool:
        return pleased(self.score(prompt, answer))


def pleased(score: float) -> bool:
    """Whether an answer of this score is a good one; few graded scores ever reach 1."""
    return score >= 0.5


def personas() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "__init__")


def load_person(name: str, *, seed: int, kept: int = 16) -> Person:
    """A persona that comes with instar, or anyone's own FILE.py."""
    file = Path(name) if name.endswith(".py") else FOLDER / f"{name}.py"
    if not file.exists():
        raise ConfigError(
            f"--persona is {name}; known are {', '.join(personas())}, or name a FILE.py with "
            "prompts, score(prompt, answer) and respond(prompt, answer)"
        )
    module = _load(file)
    # Personas draw their words from the random module.
    random.seed(seed)
    prompts = list(dict.fromkeys(module.prompts))
    random.Random(seed).shuffle(prompts)
    if len(prompts) < 2 * kept:
        kept = len(prompts) // 3
    if kept < 1:
        raise ConfigError(f"{file.name} has {len(prompts)} prompts; at least 3 are needed")
    return Person(
        name=file.stem,
        asked=tuple(prompts[kept:]),
        kept=tuple(prompts[:kept]),
        score=module.score,
        respond=module.respond,
    )


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"instar_persona_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{file} does not run: {type(error).__name__}: {error}") from error
    missing = [name for name in ("prompts", "score", "respond") if not hasattr(module, name)]
    if missing:
        raise ConfigError(f"{file} has no {', '.join(missing)}; a persona needs all three")
    return module
