"""YAML as people expect it, with the line of every key.

JSON is YAML, so one reader serves both. Scalars follow YAML 1.2: `1e-6` is a number, `no` is
a word, and a time of day is not sixty times something. A key that stands twice is an error.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from instar.errors import ConfigError

DEPTH = 100
"""Most levels of a document: what is read is walked through, level by level."""


class _TooDeep(yaml.MarkedYAMLError):
    """There are more."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2's core schema."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth >= DEPTH:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _TooDeep(problem_mark=event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_SCALARS = {
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", "~nN\0"),
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "tag:yaml.org,2002:int": (r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "tag:yaml.org,2002:merge": (r"<<", "<"),
}
_Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _SCALARS.items():
    _starts = ["" if char == "\0" else char for char in _first]
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _starts)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    """PyYAML reads 010 as eight; YAML 1.2 and people read ten."""
    try:
        return int(node.value, 16 if "0x" in node.value else 10)
    except ValueError:
        problem = f"a number of {len(node.value)} digits, which is too long"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor(
    "tag:yaml.org,2002:float",
    lambda loader, node: float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan")),
)


@dataclass(frozen=True, slots=True)
class Marked:
    """A value with the line it stands on; a mapping holds Marked values."""

    value: Any
    line: int
    text: str | None = None
    """A scalar as it was written."""


def read_yaml(text: str, *, name: str) -> Marked:
    """Parse one document. `name` is what errors call it, such as the file's path."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return Marked({}, 1) if node is None else _mark(loader, node, name=name, above=())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1} column {mark.column + 1}" if mark else ""
        if isinstance(error, _TooDeep):
            raise _too_deep(f"{name}{where}") from None
        problem = error.problem or error.context or "it cannot be read"
        raise ConfigError(f"{name}{where}: this is not YAML: {problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: this is not YAML: {error}") from None
    except RecursionError:
        # Each within its bounds, but one stands in the other by its name.
        raise _too_deep(name) from None


def read_file(path: Path) -> Marked:
    """Parse a YAML or JSON file; its top level is a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}; give --config another one") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    root = read_yaml(text, name=str(path))
    if root.value is None:
        return Marked({}, 1)
    if not isinstance(root.value, dict):
        raise ConfigError(
            f"{path}: found {describe(root.value)} at the top, expected `section:` lines"
        )
    return root


def describe(value: object) -> str:
    """A found value for an error message, with its type in YAML's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    words = {str: "a string", int: "an integer", float: "a number", list: "a list"}
    word = words.get(type(value), "a section" if isinstance(value, dict) else type(value).__name__)
    # A list may name itself, or others many times over: what would not be shown is not written.
    shown = reprlib.repr(value) if not isinstance(value, str) else f'"{value}"'
    return f"{shown if len(shown) <= 60 else shown[:57] + '...'} ({word})"


def plain(marked: Marked) -> Any:
    """The value without its lines."""
    if isinstance(marked.value, dict):
        return {key: plain(value) for key, value in marked.value.items()}
    return marked.value


def _too_deep(place: str) -> ConfigError:
    return ConfigError(
        f"{place}: found lists or sections nested more than {DEPTH} deep, expected settings, of "
        "which the deepest has 3 levels"
    )


def _mark(loader: _Loader, node: yaml.Node, *, name: str, above: tuple[int, ...]) -> Marked:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        text = node.value if isinstance(node, yaml.ScalarNode) else None
        return Marked(loader.construct_object(node, deep=True), line, text)
    if id(node) in above:
        raise ConfigError(f"{name} line {line}: this mapping contains itself")
    seen: set[str] = set()
    for key, _ in node.value:
        at = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{name} line {at}: a key is a list or a section, expected a word")
        if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
            raise ConfigError(f'{name} line {at}: the key "{key.value}" stands here a second time')
        seen.add(key.value)
    loader.flatten_mapping(node)
    found: dict[str, Marked] = {}
    for key, value in node.value:
        inner = _mark(loader, value, name=name, above=(*above, id(node)))
        found[str(key.value)] = Marked(inner.value, key.start_mark.line + 1, inner.text)
    return Marked(found, line)
