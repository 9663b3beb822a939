"""The clients that need no more than a few lines: each function says or writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from instar.connect.json_text import prune, put, take
from instar.connect.plan import Edit, Plan, Server, own_file

_BEGIN, _END = "# >>> instar\n", "# <<< instar\n"


def codex(server: Server, folder: Path) -> Plan:
    """A profile of its own: codex layers it over the person's config, which stays untouched."""
    text = f"""\
# Written by `instar connect codex`; start codex with: codex --profile instar
model = {json.dumps(server.model)}
model_provider = "instar"
model_context_window = {server.context}

[model_providers.instar]
name = "instar"
base_url = {json.dumps(server.url)}
wire_api = "responses"
experimental_bearer_token = {json.dumps(server.key)}
"""
    file = folder / "instar.config.toml"
    edit = own_file(file, text, mark="# Written by `instar connect codex`")
    return Plan(edits=(edit,), says="Start codex with: codex --profile instar")


def claude_code(server: Server, folder: Path) -> Plan:
    """Variables only: in its settings they would apply to all other work with it, too."""
    lines = [
        f"export ANTHROPIC_BASE_URL={server.root}",
        f"export ANTHROPIC_API_KEY={server.key}",
        f"export ANTHROPIC_MODEL={server.model}",
        f"export ANTHROPIC_SMALL_FAST_MODEL={server.model}",
        f"export CLAUDE_CODE_MAX_OUTPUT_TOKENS={server.reply}",
        "claude",
    ]
    return Plan(says="\n".join(lines))


def opencode(server: Server, folder: Path) -> Plan:
    """A provider entry in its config."""
    path = ("provider", "instar")
    model: dict[str, object] = {
        "name": server.model,
        "limit": {"context": server.context, "output": server.reply},
    }
    if server.sees:
        model["attachment"] = True
        model["modalities"] = {"input": ["text", "image"], "output": ["text"]}
    entry = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "instar",
        "options": {"baseURL": server.url, "apiKey": server.key},
        "models": {server.model: model},
    }
    commented = folder / "opencode.jsonc"
    edit = Edit(
        file=commented if commented.exists() else folder / "opencode.json",
        put=lambda text: put(text, path, entry),
        take=lambda text: _taken(text, path),
    )
    return Plan(edits=(edit,), says=f"Start opencode with: opencode --model instar/{server.model}")


def llm(server: Server, folder: Path) -> Plan:
    """A model of the `llm` command line; its file is a list, so the block is appended."""
    block = f"""\
{_BEGIN}- model_id: instar
  model_name: {json.dumps(server.model)}
  api_base: {json.dumps(server.url)}
  can_stream: true
  supports_tools: true
{_END}"""
    edit = Edit(
        file=folder / "extra-openai-models.yaml",
        put=lambda text: _joined(_without_block(text), block),
        take=_without_block,
    )
    return Plan(edits=(edit,), says=f"Ask it with: llm --model instar --key {server.key} 'Hello'")


def aider(server: Server, folder: Path) -> Plan:
    return Plan(
        says=f"export OPENAI_API_BASE={server.url}\nexport OPENAI_API_KEY={server.key}\n"
        f"aider --model openai/{server.model}"
    )


def litellm(server: Server, folder: Path) -> Plan:
    return Plan(
        says=f"""\
import litellm

litellm.completion(
    model="openai/{server.model}",
    api_base="{server.url}",
    api_key="{server.key}",
    messages=messages,
    extra_headers={{"X-Session-Id": session}},  # optional: without it the history is the session
)"""
    )


def openai(server: Server, folder: Path) -> Plan:
    return Plan(
        says=f"""\
export OPENAI_BASE_URL={server.url}
export OPENAI_API_KEY={server.key}

Then, in Python or JavaScript, ask for the model "{server.model}". To name the session yourself,
send the header X-Session-Id: without it the history is the session."""
    )


def _taken(text: str, path: Sequence[str]) -> str:
    left = take(text, path)
    return text if left == text else prune(left, path[:1])


def _joined(text: str, block: str) -> str:
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{block}"


def _without_block(text: str) -> str:
    start, end = text.find(_BEGIN), text.find(_END)
    return text if start < 0 or end < start else text[:start] + text[end + len(_END) :]
