"""Two versions answer the same prompts: a running gateway is asked over HTTP, as any client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from instar.commands.common import console
from instar.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import httpx

    from instar.config import Config
    from instar.record.store import TurnStore

Prompt = dict[str, Any]
"""messages, tools, and hint: what the person had to ask for."""

WIDTH = 200
"""Most columns that two answers side by side take: they fill what they are given."""


async def held_out_prompts(
    store: TurnStore, owner: str, *, share: float, limit: int
) -> list[Prompt]:
    """Corrected turns that were never trained on, or else questions of the retention set."""
    from instar.publish.gate import retention_set
    from instar.record.versions import VersionBook

    turns = await VersionBook(store).held_out(owner, share=share, limit=limit)
    if turns:
        return [
            {
                "messages": list(turn.messages),
                "tools": list(turn.tools),
                "hint": turn.hint.told if turn.hint else None,
            }
            for turn in turns
        ]
    references = retention_set()
    spread = references[:: max(1, len(references) // limit)][:limit]
    return [
        {"messages": [{"role": "user", "content": one.question}], "tools": [], "hint": None}
        for one in spread
    ]


def answer_both(
    config: Config,
    prompts: Sequence[Prompt],
    versions: tuple[str, str],
    *,
    url: str | None,
    key: str | None,
    owner: str,
    tokens: int,
) -> list[dict[str, Any]]:
    """Each prompt with the answers of both versions, drawn without chance."""
    import httpx

    address = (url or _address(config)).rstrip("/").removesuffix("/v1") + "/v1"
    # What a person said is only quoted here: where they have it forgotten, no copy must be left.
    headers = {"x-no-record": "1", "x-no-train": "1", "x-turn-type": "side"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    with httpx.Client(base_url=address, headers=headers, timeout=300) as client:
        return [
            {
                "prompt": _last(prompt["messages"]),
                "hint": prompt["hint"],
                "answers": {
                    version: _answer(client, config.model.name, version, prompt, tokens, owner)
                    for version in versions
                },
            }
            for prompt in prompts
        ]


def show_side_by_side(answers: Sequence[dict[str, Any]], versions: tuple[str, str]) -> None:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    screen = console()
    screen.width = min(screen.width, WIDTH)
    for one in answers:
        table = Table(*versions, expand=True, box=None, header_style="bold")
        for column in table.columns:
            column.ratio = 1
        table.add_row(*(Text(one["answers"][version]) for version in versions))
        hint = f"the person asked for: {one['hint']}" if one["hint"] else None
        screen.print(
            Panel(
                table,
                title=Text(_short(one["prompt"])),
                subtitle=Text(_short(hint)) if hint else None,
                title_align="left",
                subtitle_align="left",
            )
        )


def _answer(
    client: httpx.Client, name: str, version: str, prompt: Prompt, tokens: int, owner: str
) -> str:
    import httpx

    body = {
        "model": f"{name}:{version}",
        "messages": prompt["messages"],
        "temperature": 0,
        "max_tokens": tokens,
        **({"tools": prompt["tools"]} if prompt["tools"] else {}),
    }
    try:
        response = client.post("/chat/completions", json=body)
    except httpx.TransportError as error:
        raise EngineError(
            f"no gateway answers at {client.base_url} ({error}); start one with `instar up`, "
            "or say where it is with --url"
        ) from None
    if response.status_code != 200:
        raise ConfigError(
            f"the gateway refused {version} for {owner}: {_reason(response)} "
            "(a gateway knows an owner by their key: --key)"
        )
    message = response.json()["choices"][0]["message"]
    return message.get("content") or str(message.get("tool_calls") or "")


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"


def _address(config: Config) -> str:
    host, port = config.gateway.host, config.gateway.port
    if not port:
        raise ConfigError("the gateway's port was chosen when it started; say --url http://...")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def _last(messages: Sequence[dict[str, Any]]) -> str:
    said = [one.get("content") for one in messages if one.get("role") == "user"]
    content = said[-1] if said else ""
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _short(text: str, size: int = 90) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= size else f"{flat[: size - 1]}…"
