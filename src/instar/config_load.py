"""From a file, overrides and flags to one `Config`, knowing where each value came from.

    load_config(Path("instar.yaml"), ["training.method=opd"], flags={"gateway.port": 8080})

Later wins: default, file, `--set`, flag. Every mistake is listed, each with its place, what
was found, what was expected and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from instar.config import UNIONS, Config, Section
from instar.config_nearest import nearest
from instar.config_yaml import Marked, describe, plain, read_file, read_yaml
from instar.errors import ConfigError

DEFAULT = "default"
_EXPECTED = {
    "int_parsing": "an integer",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a string",
    "path_type": "a path",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a section",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "at least {min_length} character",
    "too_short": "at least {min_length} entry",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting: a leaf of the tree."""

    path: str
    info: FieldInfo
    kind: str | None = None
    """The `type` that has this key, in a section where a type chooses the keys; else None."""

    @property
    def union(self) -> str | None:
        """The section whose type chooses whether there is this key."""
        return self.path.rpartition(".")[0] if self.kind else None

    def takes(self, kind: type) -> bool:
        """Whether a value of this type fits as it is."""
        return any(
            one is kind or typing.get_origin(one) is kind for one in _options(self.info.annotation)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value somebody set, and where."""

    value: Any
    source: str
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The tree, and for each setting where its value came from."""

    config: Config
    sources: dict[str, str]
    """By dotted path: `default`, `FILE:LINE`, `--set` or the flag, such as `--port`."""

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """(path, value, source) of every setting, in the tree's order."""
        for path, source in self.sources.items():
            yield path, value_at(self.config, path), source


@functools.cache
def keys() -> tuple[Key, ...]:
    """Every setting there is, in the tree's order; an engine's key once for each engine."""
    return tuple(_walk(Config, prefix="", kind=None))


@functools.cache
def sections() -> frozenset[str]:
    """The dotted path of every section."""
    found = {key.path.rpartition(".")[0] for key in keys()}
    return frozenset(found | {path.rpartition(".")[0] for path in found} - {""})


def load_config(
    file: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    flags: Mapping[str, Any] | None = None,
) -> Resolved:
    """Read a file, then `a.b=c` overrides, then flags (dotted path to value; None is not given)."""
    problems: list[str] = []
    given: dict[str, Given] = {}
    if file is not None:
        _flatten(read_file(file), path="", source=str(file), given=given, problems=problems)
    for override in overrides:
        _override(override, given=given, problems=problems)
    for path, value in (flags or {}).items():
        if value is not None:
            given[path] = Given(value=value, source=f"--{path.rpartition('.')[2]}")
    chosen = {union: _check_type(union, given, problems) for union in UNIONS}
    config = _validate(given, problems)
    if problems or config is None:
        raise ConfigError(_listed(problems))
    sources = {
        key.path: given[key.path].source if key.path in given else DEFAULT
        for key in keys()
        if key.kind is None or key.kind == chosen[str(key.union)]
    }
    return Resolved(config=config, sources=sources)


def value_at(config: Section, path: str) -> Any:
    """The value at a dotted path."""
    return functools.reduce(getattr, path.split("."), config)


def _walk(section: type[Section], *, prefix: str, kind: str | None) -> Iterator[Key]:
    for name, info in section.model_fields.items():
        path = f"{prefix}{name}"
        if path in UNIONS:
            for option, inner in UNIONS[path].items():
                yield from _walk(inner, prefix=f"{path}.", kind=option)
        elif isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from _walk(info.annotation, prefix=f"{path}.", kind=kind)
        else:
            yield Key(path=path, info=info, kind=kind)


def _options(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a type: `int | None` gives int and NoneType."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _options(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return tuple(one for part in typing.get_args(annotation) for one in _options(part))
    return (annotation,)


@functools.cache
def _by_path() -> dict[str, list[Key]]:
    found: dict[str, list[Key]] = {}
    for key in keys():
        found.setdefault(key.path, []).append(key)
    return found


def _flatten(
    marked: Marked, *, path: str, source: str, given: dict[str, Given], problems: list[str]
) -> None:
    """Put each setting of a nested mapping into `given` under its dotted path."""
    if marked.value is None and path in sections():
        return  # `training:` with nothing below it, as when every line is commented out
    if not isinstance(marked.value, dict):
        expected = f"keys such as {path}.type" if path in UNIONS else "its keys"
        problems.append(
            f"{path} ({_at(source, marked)}): found {describe(marked.value)}, but {path} is a "
            f"section: expected {expected}"
        )
        return
    for name, inner in marked.value.items():
        below = f"{path}.{name}" if path else name
        if below in _by_path():
            given[below] = Given(value=plain(inner), source=_at(source, inner), text=inner.text)
        elif below in sections():
            _flatten(inner, path=below, source=source, given=given, problems=problems)
        else:
            problems.append(_unknown(below, _at(source, inner)))


def _override(override: str, *, given: dict[str, Given], problems: list[str]) -> None:
    path, equals, text = override.partition("=")
    path = path.strip()
    if not equals or not path:
        problems.append(f'--set: found "{override}", expected a.b=c, such as training.method=opd')
        return
    try:
        marked = read_yaml(text, name=f"--set {path}")
    except ConfigError as error:
        problems.append(str(error))
        return
    if path in sections():
        _flatten(marked, path=path, source="--set", given=given, problems=problems)
        return
    if path not in _by_path():
        parent, _, name = path.rpartition(".")
        if any(key.takes(dict) for key in _by_path().get(parent, ())):
            # One entry of a free mapping, such as engine.env.NAME=value.
            before = given[parent].value if parent in given else {}
            given[parent] = Given(value={**before, name: text}, source="--set")
        else:
            problems.append(_unknown(path, "--set"))
        return
    value = None if text.strip() == "" and marked.value == {} else plain(marked)
    if all(key.takes(str) and not key.takes(type(value)) for key in _by_path()[path]):
        # A name such as 7 or true is a word where a word is expected.
        value = text.strip() if isinstance(value, bool | int | float) else value
    given[path] = Given(value=value, source="--set", text=text)


def _check_type(union: str, given: dict[str, Given], problems: list[str]) -> str:
    """The type of such a section; keys of another type are problems and are taken out."""
    options = UNIONS[union]
    chosen = given.get(f"{union}.type")
    kind = str(chosen.value) if chosen else next(iter(options))
    if kind not in options:
        return kind  # the validation says which there are
    by = f"{chosen.source}" if chosen else "by default"
    word = union.rpartition(".")[2]
    for path in [path for path in given if path.startswith(f"{union}.")]:
        owners = [key.kind for key in _by_path()[path] if key.kind]
        if kind not in owners:
            have = " and ".join(owners)
            problems.append(
                f"{path} ({given.pop(path).source}): this is a key of {word} {have}, but "
                f"{union}.type is {kind} ({by}); set {union}.type to {owners[0]} or remove the key"
            )
    given.setdefault(f"{union}.type", Given(value=kind, source=DEFAULT))
    return kind


def _validate(given: dict[str, Given], problems: list[str]) -> Config | None:
    tree: dict[str, Any] = {}
    for path, one in given.items():
        numeric = all(key.takes(int) or key.takes(float) for key in _by_path()[path])
        if numeric and isinstance(one.value, bool):
            problems.append(
                f"{path} ({one.source}): found {describe(one.value)}, expected a number"
            )
            continue
        *above, name = path.split(".")
        section = tree
        for part in above:
            section = section.setdefault(part, {})
        section[name] = one.value
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        for one_error in error.errors():
            problems.append(_explain(dict(one_error), given))
        return None


def _explain(error: dict[str, Any], given: dict[str, Given]) -> str:
    """One validation error as: place, found, expected."""
    parts = [str(part) for part in error["loc"]]
    for union, options in UNIONS.items():
        depth = union.count(".") + 1
        if ".".join(parts[:depth]) != union:
            continue
        if len(parts) > depth and parts[depth] in options:
            del parts[depth]
        if error["type"] == "union_tag_invalid":
            one = given[f"{union}.type"]
            expected = " or ".join(options)
            return f"{union}.type ({one.source}): found {describe(one.value)}, expected {expected}"
    path = ".".join(parts)
    owner = next(
        (".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in given),
        None,
    )
    place = f"{path} ({given[owner].source})" if owner else path
    if error["type"] == "value_error":
        sources = sorted({one.source for at, one in given.items() if at.startswith(f"{path}.")})
        where = f" ({', '.join(sources)})" if sources else ""
        return f"{path}{where}: {error['ctx']['error']}"
    expected = _EXPECTED.get(error["type"], "").format(**error.get("ctx", {}))
    return f"{place}: found {describe(error['input'])}, expected {expected or error['msg']}"


def _unknown(path: str, place: str) -> str:
    near, likely = nearest(path, [*_by_path(), *sorted(sections())])
    more = "" if likely else " `instar config show` lists all there are."
    return f"{path} ({place}): unknown key; did you mean {near}?{more}"


def _at(source: str, marked: Marked) -> str:
    return source if source == "--set" else f"{source}:{marked.line}"


def _listed(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return "\n".join(
        [f"{len(problems)} mistakes in the config:", *(f"  {one}" for one in problems)]
    )
