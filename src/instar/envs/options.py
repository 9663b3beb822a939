"""What an environment can be told: one pydantic model each, checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from instar.errors import ConfigError


class EnvironmentOptions(BaseModel):
    """The base of every environment's options: unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Options = TypeVar("Options", bound=EnvironmentOptions)


def read_options(kind: type[Options], name: str, options: Mapping[str, Any]) -> Options:
    """The options as values, or a ConfigError that names what is wrong."""
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "options"
        known = ", ".join(kind.model_fields)
        raise ConfigError(
            f"environment {name}: {where}: {first['msg']}, found {first['input']!r}; "
            f"its options are {known}"
        ) from None


def split_list(found: Any) -> Any:
    """`a,b` from a command line is the list that a config file would give."""
    if isinstance(found, str):
        return [part.strip() for part in found.split(",") if part.strip()]
    return found


_TEST_EVERY = 4


def of_split(given: Iterable[tuple[str, str | None]], split: str) -> list[str]:
    """Names of a split; a task that names none belongs to `test` if it is every fourth."""
    if split not in ("train", "test"):
        raise ConfigError(f"there is no split {split!r}; known are train and test")
    return [
        name
        for place, (name, own) in enumerate(given, 1)
        if (own or ("train" if place % _TEST_EVERY else "test")) == split
    ]
