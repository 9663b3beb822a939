"""A persona file: what the simulated person asks, and what they say to an answer."""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from instar.errors import ConfigError
from instar.own_file import load_file

FOLDER = Path(__file__).parent / "personas"
T = TypeVar("T")


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
    if not file.is_file() and name.endswith(".py"):
        raise ConfigError(
            f"--persona is {name}, and there is no such file; expected one with prompts, "
            f"score(prompt, answer) and respond(prompt, answer), or {', '.join(personas())}"
        )
    if not file.is_file():
        raise ConfigError(
            f"--persona is {name}; known are {', '.join(personas())}, or name a FILE.py with "
            "prompts, score(prompt, answer) and respond(prompt, answer)"
        )
    # Personas draw their words from the random module, some already while they are loaded.
    random.seed(seed)
    module = _load(file)
    prompts = list(dict.fromkeys(_prompts(file, module.prompts)))
    random.Random(seed).shuffle(prompts)
    if len(prompts) < 2 * kept:
        kept = len(prompts) // 3
    if kept < 1:
        raise ConfigError(f"{file.name} has {len(prompts)} prompts; at least 3 are needed")
    return Person(
        name=file.stem,
        asked=tuple(prompts[kept:]),
        kept=tuple(prompts[:kept]),
        score=_told(file, "score", module.score, _number),
        respond=_told(file, "respond", module.respond, _words),
    )


def _load(file: Path) -> ModuleType:
    module = load_file(file)
    missing = [name for name in ("prompts", "score", "respond") if not hasattr(module, name)]
    if missing:
        raise ConfigError(f"{file} has no {', '.join(missing)}; a persona needs all three")
    return module


def _prompts(file: Path, found: object) -> list[str]:
    wrong = f"prompts of {file} must be a list of strings, and none of them empty"
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise ConfigError(f"{wrong}; found {type(found).__name__}")
    prompts = list(found)
    for at, one in enumerate(prompts):
        if not isinstance(one, str) or not one.strip():
            raise ConfigError(f"{wrong}; number {at} is {one!r:.80}")
    return prompts


def _told(
    file: Path, name: str, function: Any, read: Callable[[Any], T]
) -> Callable[[str, str], T]:
    """A function of the file, whose failures say where they come from."""
    try:
        inspect.signature(function).bind("prompt", "answer")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} of {file} must be {name}(prompt, answer): {error}") from error

    def call(prompt: str, answer: str) -> T:
        try:
            found = _awaited(function(prompt, answer))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{name} of {file} failed on {answer!r:.80}: {problem}") from error
        try:
            return read(found)
        except ValueError as error:
            raise ConfigError(
                f"{name} of {file} returned {found!r:.80} for the prompt {prompt!r:.80} and the "
                f"answer {answer!r:.80}; it must return {error}"
            ) from None

    return call


def _awaited(found: Any) -> Any:
    """What a function gave, `async def` or not."""
    if not inspect.isawaitable(found):
        return found

    async def wait() -> Any:
        return await found

    # In a thread of its own: the demo's has an event loop already.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


def _number(found: Any) -> float:
    """What `score` returned; a ValueError says what it must be."""
    # One number of numpy or torch counts too; several do not, nor does a string of digits.
    if hasattr(found, "item"):
        with suppress(TypeError, ValueError, RuntimeError):
            found = found.item()
    if not isinstance(found, Real) or not math.isfinite(found):
        raise ValueError("a finite number")
    return float(found)


def _words(found: Any) -> str:
    """What `respond` returned."""
    if not isinstance(found, str):
        raise ValueError("a string: what the person says next")
    return found
