"""docs/config.md and docs/cli.md, made from the code so that they cannot say anything else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from instar.config import SECRETS, UNIONS, Config, Section
from instar.config_load import Key, keys

MADE = "<!-- Made by `make docs` from the code; edit the code instead. -->"


def pages() -> dict[str, str]:
    """The text of each page by its file name."""
    return {"config.md": config_page(), "cli.md": cli_page()}


def config_page() -> str:
    """Every setting: its path, type, default and meaning."""
    lines = [
        "# Settings",
        "",
        MADE,
        "",
        "A setting has a default, which a YAML or JSON file (`--config FILE`, else `config.yaml` "
        "in home), then `--set a.b=c`, then a flag such as `--port` override. "
        "`instar config show` prints every value and where it came from; "
        "`instar config check FILE` lists every mistake in a file.",
    ]
    titles: dict[str, str] = {}
    for key in keys():
        section = key.path.rpartition(".")[0]
        title = f"{section}, where `{section}.type` is `{key.kind}`" if key.kind else section
        if title not in titles:
            titles[title] = section
            lines += ["", f"## {title}", "", _about(section, key.kind), ""]
            lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
        lines.append(_row(key))
    lines += ["", "## Secrets", "", "Read from environment variables, and from nowhere else.", ""]
    lines += ["| variable | for |", "|---|---|"]
    lines += [f"| `{name}` | {purpose} |" for name, purpose in SECRETS.items()]
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """Every command with its options."""
    import typer.main

    from instar.cli import app

    lines = ["# Commands", "", MADE]
    for path, command in _commands(typer.main.get_command(app), ("instar",)):
        lines += ["", f"## `{' '.join(path)}`", "", _clean(command.help)]
        params = [one for one in command.params if not getattr(one, "hidden", False)]
        if params:
            lines += ["", "| option | default | meaning |", "|---|---|---|"]
            lines += [_option(one) for one in params]
        if command.epilog:
            lines += ["", _clean(command.epilog)]
    return "\n".join(lines) + "\n"


def _about(section: str, kind: str | None) -> str:
    found: type[Section] = Config
    if kind:
        found = UNIONS[section][kind]
    else:
        for part in section.split("."):
            found = cast(type[Section], found.model_fields[part].annotation)
    return _clean(found.__doc__)


def _row(key: Key) -> str:
    default = key.info.get_default(call_default_factory=True)
    if isinstance(default, Path):
        default = str(default)
    written = "none" if default is None else f"`{json.dumps(default)}`"
    kind = _type_name(key).replace("|", "\\|")
    return f"| `{key.path}` | {kind} | {written} | {_clean(key.info.description)} |"


def _type_name(key: Key) -> str:
    """A type in the words of the YAML file, with its bounds."""
    schema = key.info.annotation
    text = _plain_type(schema)
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {value:g}"
        for one in key.info.metadata
        for name, sign in signs.items()
        if (value := getattr(one, name, None)) is not None
    ]
    return f"{text} {', '.join(bounds)}".strip()


def _plain_type(annotation: Any) -> str:
    import typing

    if typing.get_origin(annotation) is typing.Annotated:
        return _plain_type(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{one}`" for one in typing.get_args(annotation))
    if typing.get_origin(annotation) is list:
        return f"list of {_plain_type(typing.get_args(annotation)[0])}"
    if typing.get_origin(annotation) is dict:
        return "mapping"
    if options := typing.get_args(annotation):
        return " or ".join(_plain_type(one) for one in options if one is not type(None))
    names = {str: "string", int: "integer", float: "number", bool: "true or false", Path: "path"}
    return names[annotation]


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _commands(inner, (*path, name))


def _option(param: Any) -> str:
    names = ", ".join(f"`{one}`" for one in param.opts) if param.param_type_name == "option" else ""
    default = param.default() if callable(param.default) else param.default
    empty = default is None or default is False or default == () or default == []
    written = "" if empty else f"`{default}`"
    return f"| {names or f'`{param.metavar or param.name}`'} | {written} | {_clean(param.help)} |"


def _clean(text: str | None) -> str:
    """Help text as it is read: wrapped lines joined, paragraphs kept."""
    paragraphs = (text or "").replace("\b", "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs).replace("|", "\\|").strip()
