"""OpenClaw: a provider entry in its config, and the plugin that names sessions and turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from instar.connect.json_text import get, prune, put, put_item, take, take_item
from instar.connect.plan import Edit, Plan, Server, own_file
from instar.errors import ConfigError

PLUGIN = "rl-training-headers"
PROVIDER = "instar"
SOURCE = Path(__file__).parent / PLUGIN
"""A link to extensions/rl-training-headers, so that a built package carries the plugin."""

_ENTRY = ("plugins", "entries", PLUGIN)
_PROVIDER = ("models", "providers", PROVIDER)
_PATHS = ("plugins", "load", "paths")
_ALLOW = ("plugins", "allow")
_PARENTS = (_PATHS, _PATHS[:2], _ENTRY[:2], _ENTRY[:1], _PROVIDER[:2], _PROVIDER[:1])


def plan(server: Server, folder: Path) -> Plan:
    """`folder` is OpenClaw's state folder, with openclaw.json in it."""
    if not folder.is_dir():
        raise ConfigError(
            f"found no OpenClaw in {folder}; start it once (openclaw onboard), or name its folder "
            "with --dir"
        )
    plugin = folder / "instar" / PLUGIN
    config = Edit(file=folder / "openclaw.json", put=_putter(server, plugin), take=_taker(plugin))
    files = [own_file(plugin / name, text, code=True) for name, text in _plugin_files()]
    return Plan(
        edits=(config, *files),
        folders=(plugin / "lib", plugin, plugin.parent),
        says=f"Choose the model with: openclaw models set {PROVIDER}/{server.model}\n"
        "A gateway that runs takes the change by itself; otherwise start it: openclaw gateway run",
        parting=f"If its model is still {PROVIDER}/{server.model}, choose another one: "
        "openclaw models set PROVIDER/MODEL",
    )


def _putter(server: Server, plugin: Path) -> Callable[[str], str]:
    entry = {
        "enabled": True,
        "hooks": {"allowConversationAccess": True},
        "config": {
            "rollout_endpoint": server.url,
            "training_mode": "async",
            "session_tracking": True,
        },
    }

    def put_in(text: str) -> str:
        text = put(text, _PROVIDER, _provider(server))
        text = put_item(text, _PATHS, str(plugin))
        if get(text, _ALLOW) is not None:
            text = put_item(text, _ALLOW, PLUGIN)
        return put(text, _ENTRY, entry)

    return put_in


def _taker(plugin: Path) -> Callable[[str], str]:
    def take_out(text: str) -> str:
        left = take(take(text, _ENTRY), _PROVIDER)
        left = take_item(take_item(left, _ALLOW, PLUGIN), _PATHS, str(plugin))
        if left == text:
            return text
        for parent in _PARENTS:
            left = prune(left, parent)
        return left

    return take_out


def _provider(server: Server) -> dict[str, object]:
    model = {
        "id": server.model,
        "name": f"instar: {server.model}",
        "reasoning": False,
        "input": ["text", "image"] if server.sees else ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": server.context,
        "maxTokens": server.reply,
        # Names the session where the plugin is switched off.
        "compat": {"sendSessionAffinityHeaders": True},
    }
    return {
        "baseUrl": server.url,
        "apiKey": server.key,
        "api": "openai-completions",
        "models": [model],
    }


def _plugin_files() -> list[tuple[str, str]]:
    names = ["package.json", "openclaw.plugin.json", "index.js", "lib/settings.js", "lib/turns.js"]
    return [(name, (SOURCE / name).read_text("utf-8")) for name in names]
