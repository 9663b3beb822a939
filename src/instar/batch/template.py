"""A model's chat template and tokenizer files, read without transformers.

Comes in: a Hugging Face model folder. Goes out: a compiled template with the settings that
transformers gives it, the special tokens, and what the template can do. Importing
transformers takes seconds; serving needs only this.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from instar.errors import ModelError, RequestError
from instar.types import Message, Tool

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{{ part['text'] if part['type'] == 'text' else '<|image|>' }}"
    "{% endfor %}{% endif %}"
    "{{ '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The plainest template there is; used where a model brings none and by the fake engine."""

_COMPLAINTS = (
    *(jinja2.TemplateError, TypeError, LookupError, ValueError),
    *(AttributeError, ArithmeticError, RecursionError),
)
"""What running a template may raise: it is the model's code, on a client's data."""

_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token")


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant said; for rendering it is only its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One compiled chat template."""

    source: str
    special: dict[str, str]
    """Names such as eos_token, as templates use them."""
    run: Callable[..., str]

    def text(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        generate: bool = True,
        options: dict[str, Any] | None = None,
    ) -> str:
        """Render; a template's own complaint becomes a 400 that repeats it."""
        try:
            return self.run(
                **{**self.special, **(options or {})},
                messages=list(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=generate,
            )
        except _COMPLAINTS as error:
            raise RequestError(
                f"This model's chat template cannot render the conversation: {error}",
                param="messages",
                code="template_error",
            ) from error


def compile_template(source: str, special: dict[str, str]) -> Template:
    """Compile with the same environment that transformers uses."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, LoopControlExtension]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        compiled = env.from_string(source)
    except jinja2.TemplateError as error:
        raise ModelError(f"the model's chat template does not compile: {error}") from error
    return Template(source=source, special=special, run=compiled.render)


def read_template(folder: Path) -> Template:
    """The chat template of a model folder, or ChatML where it has none."""
    config = _read_json(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    source = file.read_text("utf-8") if file.exists() else config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default") or next(iter(named.values()))
    return compile_template(source or CHATML, _special_tokens(folder, config))


def read_eos_ids(folder: Path) -> tuple[int, ...]:
    """Ids that end a reply, as generation_config.json or config.json gives them."""
    for name in ("generation_config.json", "config.json"):
        found = _read_json(folder / name).get("eos_token_id")
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return ()


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    merged = {**_read_json(folder / "special_tokens_map.json"), **config}
    out = {}
    for name in _SPECIAL_NAMES:
        value = merged.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            out[name] = value
    return out


def _read_json(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{file.name} of the model is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file.name} of the model holds a {type(found).__name__}, not an object")
    return found


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes <, > and &, which no model was trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
