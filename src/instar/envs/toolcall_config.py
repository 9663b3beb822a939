"""A tools_config.json becomes skills, so that tasks can be made for anybody's own tools.

The file lists tools in OpenAI's form, as bare functions, in Anthropic's form (`input_schema`), or
as an object from name to tool; the list may stand under "tools". Parameters are a JSON schema or
plainly a name and a type each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from instar.envs.toolcall_skills import SKILLS, Skill, Slot
from instar.errors import ConfigError
from instar.types import Tool

TRAIN = (
    "{about} {given}.",
    "Please use the tool for this: {about} {given}.",
    "I need your help. {about} {given}.",
)
TEST = ("Do this for me: {about} {given}.", "{given}. {about}")
BY_NAME: dict[str, tuple[Any, ...]] = {
    name: slot.pool
    for skill in SKILLS
    for name, slot in skill.slots.items()
    if slot.type == "string"
}
"""Parameters with a name that our own tools have too get values that make sense for it."""
BY_NAME |= {"location": BY_NAME["city"], "email": BY_NAME["to"], "query": BY_NAME["word"]}
TYPES = ("string", "integer", "number", "boolean", "array", "object")


def load_tools_config(path: Path) -> tuple[Skill, ...]:
    """The file's tools as skills; ConfigError says which entry is wrong."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"tools_config {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"tools_config {path} is no JSON: {error}") from None
    skills = tuple(_skill(entry) for entry in _entries(found))
    names = [skill.name for skill in skills]
    if not skills:
        raise ConfigError(f"tools_config {path} lists no tools; expected at least one")
    if len(set(names)) < len(names):
        raise ConfigError(f"tools_config {path} names a tool twice; found {', '.join(names)}")
    return skills


def _entries(found: Any) -> Iterable[dict[str, Any]]:
    if isinstance(found, dict) and isinstance(found.get("tools"), list | dict):
        found = found["tools"]
    if isinstance(found, dict):
        found = [{"name": name, **_object(entry, name)} for name, entry in found.items()]
    if not isinstance(found, list):
        raise ConfigError("tools_config: expected a list of tools, or an object from name to tool")
    for entry in found:
        tool = _object(entry, "a tool")
        yield _object(tool.get("function", tool), "function")


def _skill(entry: dict[str, Any]) -> Skill:
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"tools_config: a tool needs a name, found {json.dumps(entry)[:200]}")
    schema = _schema(entry.get("parameters", entry.get("input_schema")) or {}, name)
    asked = schema["required"] or list(schema["properties"])
    slots = {one: _slot(one, schema["properties"][one], name) for one in asked}
    about = str(entry.get("description") or name.replace("_", " ")).strip().rstrip(".") + "."
    given = ", ".join(f"{one} is {{{one}}}" for one in slots) or "It needs nothing else"
    escaped = about.replace("{", "{{").replace("}", "}}")
    declared: Tool = {
        "type": "function",
        "function": {"name": name, "description": about, "parameters": schema},
    }
    return Skill(
        name=name,
        about=about,
        slots=slots,
        train=tuple(phrase.format(about=escaped, given=given) for phrase in TRAIN),
        test=tuple(phrase.format(about=escaped, given=given) for phrase in TEST),
        declared=declared,
    )


def _schema(found: Any, tool: str) -> dict[str, Any]:
    """A whole JSON schema, also from the plain form {"city": "string"}."""
    found = _object(found, f"parameters of {tool}")
    plain = not isinstance(found.get("properties"), dict)
    if plain and found.get("type") == "object":
        found = {}
    properties = {
        name: {"type": one} if isinstance(one, str) else dict(_object(one, f"{tool}.{name}"))
        for name, one in (found if plain else found["properties"]).items()
    }
    required = [] if plain else list(found.get("required") or [])
    if plain:
        required = [name for name, one in properties.items() if one.pop("required", True)]
    missing = [name for name in required if name not in properties]
    if missing:
        raise ConfigError(f"tools_config: {tool} requires {missing[0]}, which it does not describe")
    return {"type": "object", "properties": properties, "required": required}


def _slot(name: str, schema: dict[str, Any], tool: str) -> Slot:
    kind = schema.get("type", "string")
    if kind not in TYPES:
        raise ConfigError(
            f"tools_config: {tool}.{name} has type {kind!r}; expected one of {', '.join(TYPES)}"
        )
    return Slot(kind, str(schema.get("description", "")), _pool(name, kind, schema, tool))


def _pool(name: str, kind: str, schema: dict[str, Any], tool: str) -> tuple[Any, ...]:
    if schema.get("enum"):
        return tuple(schema["enum"])
    if schema.get("examples"):
        return tuple(schema["examples"])
    if kind in ("integer", "number"):
        least = int(schema.get("minimum", 1))
        return tuple(range(least, int(schema.get("maximum", least + 98)) + 1))
    if kind == "boolean":
        return (True, False)
    if kind == "array":
        items = _slot(name, schema.get("items") or {}, tool).pool
        return tuple(list(pair) for pair in pairwise(items)) or ([*items],)
    if kind == "object":
        inner = {one: _slot(one, part, tool).pool for one, part in schema["properties"].items()}
        size = min((len(pool) for pool in inner.values()), default=1)
        return tuple({one: pool[place] for one, pool in inner.items()} for place in range(size))
    return BY_NAME.get(name, BY_NAME["word"])


def _object(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ConfigError(f"tools_config: {what} must be an object, found {json.dumps(found)[:80]}")
    return found
