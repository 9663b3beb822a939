"""The inside of `bfcl`: its data and its own checkers, in a process of their own.

Loaded by `worker_loop.py` under a Python that has bfcl-eval; imports nothing of instar. The
checkers evaluate calls as Python text, so a call is only ever written from a known name and
literals.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any

MODEL = "instar"
KEPT = ("description", "default", "enum", "items", "properties", "required")
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string", "double": "number"}
TYPES |= {"HashMap": "object", "Boolean": "boolean", "String": "string", "long": "integer"}


def _stub_models() -> None:
    """The checkers import every vendor's SDK only to ask whether dots in names are underscores."""
    module = types.ModuleType("bfcl_eval.constants.model_config")
    config = types.SimpleNamespace(underscore_to_dot=True)
    module.MODEL_CONFIG_MAPPING = {MODEL: config}  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module


@cache
def _entries(category: str, hints: bool = True) -> dict[str, dict[str, Any]]:
    """A category's tasks; with hints on the language the tools are as a model is shown them."""
    from bfcl_eval.utils import load_dataset_entry

    found = load_dataset_entry(category, include_language_specific_hint=hints)
    return {entry["id"]: entry for entry in found}


@cache
def _gold(category: str) -> dict[str, Any]:
    from bfcl_eval.utils import load_ground_truth_entry

    return {entry["id"]: entry["ground_truth"] for entry in load_ground_truth_entry(category)}


def ids(categories: list[str]) -> list[str]:
    return [name for category in categories for name in _entries(category)]


def task(name: str) -> dict[str, Any]:
    """The turns of a task, its tools, and the tools that are told of later."""
    entry = _entries(_category(name))[name]
    later = {
        int(turn): [_tool(function) for function in functions]
        for turn, functions in entry.get("missed_function", {}).items()
    }
    return {
        "turns": entry["question"],
        "tools": [_tool(function) for function in entry["function"]],
        "later": later,
    }


def gold(name: str) -> Any:
    """What the benchmark takes for right; for tests and demonstrations."""
    return _gold(_category(name)).get(name)


def check_calls(name: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """A single-turn task: whether these calls are what was wanted."""
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    category = _category(name)
    if "irrelevance" in category:
        return {"valid": not calls}
    if "relevance" in category:
        return {"valid": bool(calls)}
    language = Language.PYTHON
    if category == "simple_java":
        language = Language.JAVA
    elif category == "simple_javascript":
        language = Language.JAVASCRIPT
    wanted, functions = _gold(category)[name], _entries(category, hints=False)[name]["function"]
    made = [{call["name"]: call["arguments"]} for call in calls]
    found = ast_checker(functions, made, wanted, language, category, MODEL)
    return {"valid": bool(found["valid"]), "error": str(found.get("error_type", ""))}


def execute(name: str, attempt: str, calls: list[dict[str, Any]]) -> list[str]:
    """A multi-turn task: do these calls, and tell what each gave."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import (
        execute_multi_turn_func_call,
    )

    entry = _entries(_category(name))[name]
    results, _ = execute_multi_turn_func_call(
        func_call_list=[_written(call) for call in calls],
        initial_config=entry["initial_config"],
        involved_classes=entry["involved_classes"],
        model_name=attempt,
        test_entry_id=name,
        long_context="long_context" in name,
    )
    return [str(result) for result in results]


def check_turns(name: str, attempt: str, turns: list[list[list[dict[str, Any]]]]) -> dict[str, Any]:
    """A multi-turn task: replay what was called in each turn beside the gold calls."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    category = _category(name)
    decoded = [[[_written(call) for call in step] for step in turn] for turn in turns]
    found = multi_turn_checker(
        decoded, _gold(category)[name], _entries(category)[name], category, attempt
    )
    # The executor keeps every instance it made in its module.
    for key in [key for key in vars(multi_turn_utils) if key.startswith(f"{attempt}_")]:
        delattr(multi_turn_utils, key)
    return {"valid": bool(found["valid"]), "error": str(found.get("error_type", ""))}


def _written(call: dict[str, Any]) -> str:
    """A call as Python text. Names were checked against the tools; values are literals."""
    if not all(part.isidentifier() for part in (call["name"], *call["arguments"])):
        return "None"
    values = ", ".join(f"{key}={value!r}" for key, value in call["arguments"].items())
    return f"{call['name']}({values})"


def _category(name: str) -> str:
    return name.rsplit("_", 1)[0]


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": function["name"].replace(".", "_"),
            "description": function["description"],
            "parameters": _schema(function["parameters"]),
        },
    }


def _schema(found: dict[str, Any]) -> dict[str, Any]:
    """BFCL's own type names as those of JSON Schema."""
    schema = {key: value for key, value in found.items() if key in KEPT}
    kind = found.get("type", "string")
    schema["type"] = TYPES.get(kind, kind)
    if "properties" in schema:
        schema["properties"] = {
            key: _schema(value) if isinstance(value, dict) else {"type": "string"}
            for key, value in schema["properties"].items()
        }
        schema["required"] = [
            key for key in schema.get("required") or [] if key in schema["properties"]
        ]
    if isinstance(schema.get("items"), dict):
        schema["items"] = _schema(schema["items"])
    return schema


def open_actions(folder: str) -> dict[str, Callable[..., Any]]:
    os.environ["BFCL_PROJECT_ROOT"] = folder
    _stub_models()
    return {one.__name__: one for one in (ids, task, gold, check_calls, execute, check_turns)}
