"""What was collected, as plain Python values: `instar.inspect_sessions(...)`.

Example:
    for session, turns in instar.inspect_sessions("~/.instar").items():
        print(session, sum(turn["type"] == "main" for turn in turns))
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from instar.errors import StoreError

Interaction = dict[str, Any]


def inspect_sessions(path: str | Path, *, owner: str | None = None) -> dict[str, list[Interaction]]:
    """Every session and its turns, oldest first.

    `path` is a home folder, a database file or its URL, an export of
    `instar sessions export`, or a folder of such exports. Each turn has `type` (main or side),
    `role`, `content`, `reward` (its verdict's score; None is unknown), `no_train` (whether it is
    private), `extends` (whether its prompt begins with the parent's prompt and reply, token by
    token) and what else was recorded. None is also what an export of an older instar does not say.
    """
    sessions: dict[tuple[str, str], list[Interaction]] = {}
    for line in _lines(path, owner):
        if owner is None or line["owner"] == owner:
            key = (line["session"], line["owner"])
            sessions.setdefault(key, []).append(_interaction(line))
    names = [name for name, _ in sessions]
    return {
        # Two owners may have chosen the same id.
        (name if names.count(name) == 1 else f"{whose}/{name}"): turns
        for (name, whose), turns in sessions.items()
    }


def _interaction(line: dict[str, Any]) -> Interaction:
    *messages, reply = line["messages"]
    verdict = line["verdict"]
    return {
        "type": line["kind"],
        "role": reply.get("role", "assistant"),
        "content": reply.get("content"),
        "tool_calls": reply.get("tool_calls") or [],
        "messages": messages,
        "reward": verdict["score"] if verdict else None,
        "verdict": verdict,
        "hint": line["hint"],
        "next_state": line["next_state"],
        "turn": line["turn"],
        "parent": line["parent"],
        "owner": line["owner"],
        "version": line["version"],
        "finish": line["finish"],
        "settings": line["settings"],
        "prompt_ids": line["prompt_ids"],
        "sampled_ids": line["sampled_ids"],
        "logprobs": line["logprobs"],
        "kind_reason": line.get("kind_reason"),
        "run": line.get("run"),
        "no_train": line.get("no_train"),
        "extends": line.get("extends"),
    }


def _lines(path: str | Path, owner: str | None) -> Iterable[dict[str, Any]]:
    if isinstance(path, str) and "://" in path:
        return _from_store(path, owner)
    place = Path(path).expanduser()
    if place.is_dir() and (place / "instar.db").is_file():
        place = place / "instar.db"
    if place.is_dir():
        exports = sorted(place.glob("*.jsonl"))
        if not exports:
            raise StoreError(f"found neither instar.db nor *.jsonl in {place}; expected rollouts")
        return (line for file in exports for line in _from_export(file))
    if not place.is_file():
        raise StoreError(f"found no {place}; expected a home folder, a database or an export")
    with place.open("rb") as file:
        is_database = file.read(16) == b"SQLite format 3\0"
    if is_database:
        return _from_store(f"sqlite:///{place.resolve()}", owner)
    return _from_export(place)


def _from_export(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
                found["session"], found["turn"], found["messages"][-1]
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise StoreError(
                    f"{file.name} line {number} is no turn of an export: {error!r}"
                ) from None
            yield found


def _from_store(url: str, owner: str | None) -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        from instar.record.export import export_sessions
        from instar.record.store import open_store

        async with open_store(url) as store:
            return [json.loads(line) async for line in export_sessions(store, owner=owner)]

    # In a thread of its own: a notebook's has an event loop already.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, read()).result()
