"""The inside of `interpreter`: reasoning-gym's tasks and scorers, in a process of their own.

Loaded by `worker_loop.py` under a Python that has reasoning-gym; imports nothing of instar.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

TRIES = 64
"""How many draws a task has to find one of its own split."""
TEST_SHARE = 5
"""One question in so many is for testing, by its text: none can be in both splits."""


@cache
def _dataset(name: str, seed: int, config: tuple[tuple[str, Any], ...]) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=256 * TRIES, seed=seed, **dict(config))


@cache
def _item(
    name: str, seed: int, config: tuple[tuple[str, Any], ...], split: str, number: int
) -> dict[str, Any]:
    dataset = _dataset(name, seed, config)
    for place in range(number * TRIES, (number + 1) * TRIES):
        found: dict[str, Any] = dataset[place]
        if _is_test(found["question"]) == (split == "test"):
            return found
    raise LookupError(f"{name} has no {split} task {number}: its questions are too few")


def _is_test(question: str) -> bool:
    return hashlib.sha256(question.encode()).digest()[0] % TEST_SHARE == 0


def question(name: str, seed: int, config: dict[str, Any], split: str, number: int) -> str:
    text: str = _item(name, seed, _key(config), split, number)["question"]
    return text


def answer(name: str, seed: int, config: dict[str, Any], split: str, number: int) -> str:
    """The right answer; for tests and demonstrations."""
    return str(_item(name, seed, _key(config), split, number)["answer"])


def score(
    name: str, seed: int, config: dict[str, Any], split: str, number: int, text: str, exact: bool
) -> bool:
    """Whether the answer is right: the very one, or one that has full marks from the generator.

    A scorer that raises was given something that is no answer.
    """
    item = _item(name, seed, _key(config), split, number)
    if exact:
        return text.split() == str(item["answer"]).split()
    try:
        return bool(_dataset(name, seed, _key(config)).score_answer(text, item) >= 1)
    except Exception:
        return False


def _key(config: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(config.items())
    )


def open_actions(_folder: str) -> dict[str, Callable[..., Any]]:
    return {one.__name__: one for one in (question, answer, score)}
