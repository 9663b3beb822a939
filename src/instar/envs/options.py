"""What an environment can be told: one pydantic model each, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
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
