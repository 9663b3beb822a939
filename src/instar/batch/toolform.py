"""How model families write tool calls: one entry of FORMS each.

A form says which text opens and closes a call and reads what stands between. `auto` picks
the form whose opening text the model's own template mentions. A model whose template knows no
tools is told of them in its system message, in the Hermes form.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from instar.errors import ConfigError
from instar.types import Message, Tool

Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """One family's way of writing calls."""

    open: str
    close: str
    """Empty: a call runs to the end of the reply."""
    read: Callable[[str], list[Call]]
    """Reads what stands between; raises ValueError where that is no call."""
    bare: str = ""
    """A whole reply that begins with this may be a call without its opening text."""
    goes_on: Callable[[str], bool] = lambda body: False
    """Whether the closing text after this is a part of an argument: there it may stand, too."""


def _hermes_goes_on(body: str) -> bool:
    if body.lstrip().startswith(("{", "[")):
        return _in_json_string(body)
    xml, glm = ("<parameter=", "</parameter>"), ("<arg_value>", "</arg_value>")
    return _unclosed(body, *xml) or _unclosed(body, *glm)


def _in_json_string(body: str) -> bool:
    try:
        # With a blank behind it: the reader wants to see that an escape at the end is whole.
        json.loads(f"{body} ")
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def _unclosed(body: str, begin: str, end: str) -> bool:
    return body.count(begin) > body.count(end)


def _in_python_string(body: str) -> bool:
    try:
        ast.parse(f"[{body}]", mode="eval")
    except SyntaxError as error:
        return error.msg.startswith("unterminated")
    except (ValueError, RecursionError, MemoryError):
        return False
    return False


def _read_hermes(body: str) -> list[Call]:
    """JSON, or the XML of Qwen3-Coder, or the key/value tags of GLM: all use the same outer tag."""
    body = body.strip()
    if body.startswith("<function="):
        return [_read_qwen_xml(body)]
    if "<arg_key>" in body or re.fullmatch(r"[\w.-]+", body):
        return [_read_glm(body)]
    return _calls_of(json.loads(body))


def _read_qwen_xml(body: str) -> Call:
    head = re.match(r"<function=([^>\s]+)>", body)
    if head is None:
        raise ValueError("no function name")
    pairs = re.findall(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", body, re.DOTALL)
    return head[1], {name: _loose_value(value) for name, value in pairs}


def _read_glm(body: str) -> Call:
    name = body.split("<arg_key>", 1)[0].strip()
    pairs = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", body, re.DOTALL)
    return name, {key.strip(): _loose_value(value) for key, value in pairs}


def _read_llama(body: str) -> list[Call]:
    """JSON objects with semicolons between them, which may stand within them too."""
    calls, rest = [], body.strip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        calls += _calls_of(value)
        rest = rest[end:].lstrip("; \n\t")
    return calls


def _read_mistral(body: str) -> list[Call]:
    """`[{...}]`, or the newer `name[ARGS]{...}`, which may repeat."""
    body = body.strip()
    if "[ARGS]" not in body:
        return _read_json_calls(body)
    calls = re.split(r"\[TOOL_CALLS\]", body)
    named = [part.split("[ARGS]", 1) for part in calls if part.strip()]
    return [(name.strip(), _object(json.loads(args))) for name, args in named]


def _read_deepseek(body: str) -> list[Call]:
    pattern = (
        r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([^\n<]+?)"
        r"(?:\n```json\n|<｜tool▁sep｜>)(.*?)(?:\n```)?<｜tool▁call▁end｜>"
    )
    calls = [
        (name.strip(), _object(json.loads(args)))
        for name, args in re.findall(pattern, body, re.DOTALL)
    ]
    if not calls:
        raise ValueError("no call between the markers")
    return calls


def _read_kimi(body: str) -> list[Call]:
    pattern = (
        r"<\|tool_call_begin\|>\s*(?:functions\.)?([^\s:]+)(?::\d+)?\s*"
        r"<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>"
    )
    calls = [
        (name, _object(json.loads(args))) for name, args in re.findall(pattern, body, re.DOTALL)
    ]
    if not calls:
        raise ValueError("no call between the markers")
    return calls


def _read_pythonic(body: str) -> list[Call]:
    """`[get_weather(city="Oslo"), now()]`, as Llama 4 and OLMo write it."""
    tree = ast.parse("[" + body.rstrip().removesuffix("]") + "]", mode="eval").body
    if not isinstance(tree, ast.List):
        raise ValueError("not a list of calls")
    calls = []
    for node in tree.elts:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)) or node.args:
            raise ValueError("not a call with named arguments")
        calls.append((node.func.id, {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}))
    return calls


def _read_json_calls(body: str) -> list[Call]:
    return _calls_of(json.loads(body.strip()))


FORMS: dict[str, ToolForm] = {
    "hermes": ToolForm(
        open="<tool_call>", close="</tool_call>", read=_read_hermes, goes_on=_hermes_goes_on
    ),
    "llama": ToolForm(open="<|python_tag|>", close="", read=_read_llama, bare="{"),
    "mistral": ToolForm(open="[TOOL_CALLS]", close="", read=_read_mistral),
    "deepseek": ToolForm(
        open="<｜tool▁calls▁begin｜>",
        close="<｜tool▁calls▁end｜>",
        read=_read_deepseek,
        goes_on=lambda body: _unclosed(body, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    ),
    "kimi": ToolForm(
        open="<|tool_calls_section_begin|>",
        close="<|tool_calls_section_end|>",
        read=_read_kimi,
        goes_on=lambda body: _unclosed(body, "<|tool_call_begin|>", "<|tool_call_end|>"),
    ),
    "granite": ToolForm(open="<|tool_call|>", close="", read=_read_json_calls),
    "pythonic": ToolForm(
        open="<|python_start|>[",
        close="<|python_end|>",
        read=_read_pythonic,
        goes_on=_in_python_string,
    ),
}


def pick_form(name: str, template: str) -> ToolForm:
    """The form of that name; `auto` goes by the template's own words, and else takes Hermes."""
    if name == "auto":
        mentioned = [form for form in FORMS.values() if form.open in template]
        return mentioned[0] if mentioned else FORMS["hermes"]
    if name not in FORMS:
        raise ConfigError(
            f"gateway.tool_parser is {name!r}; it must be auto or one of {', '.join(FORMS)}"
        )
    return FORMS[name]


def describe_tools(tools: Sequence[Tool]) -> str:
    """The system text that tells a model without tool support how to call them."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def write_calls(message: Message) -> str:
    """An assistant's content with its calls in the Hermes form."""
    parts = [message.get("content") or ""]
    for call in message.get("tool_calls") or []:
        function = call["function"]
        body = {"name": function["name"], "arguments": arguments_of(function)}
        parts.append(f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>")
    return "\n".join(part for part in parts if part)


def arguments_of(function: dict[str, Any]) -> Any:
    """A call's arguments as an object, where they are one; clients send them as text."""
    raw = function.get("arguments", "{}")
    if not isinstance(raw, str):
        return raw
    try:
        return json.loads(raw or "{}")
    except (ValueError, RecursionError):
        return raw


def _calls_of(value: Any) -> list[Call]:
    entries = value if isinstance(value, list) else [value]
    return [_call_of(entry) for entry in entries]


def _call_of(entry: Any) -> Call:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ValueError("a call is an object with a name")
    arguments = entry.get("arguments", entry.get("parameters"))
    if arguments is None:
        return entry["name"], {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return entry["name"], _object(arguments)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"arguments are a {type(value).__name__}, not an object")
    return value


def _loose_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
