"""Turns as JSON lines, for people and programs that do not read the store.

Example:
    async for line in export_sessions(store, owner="anna"):
        file.write(line)
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from instar.errors import StoreError
from instar.record import codec
from instar.record.store import TurnStore
from instar.types import Turn

PAGE = 100
"""Sessions listed at once."""


def export_jsonl(turns: Iterable[Turn]) -> Iterator[bytes]:
    """One line a turn. Takes and gives one at a time."""
    for turn in turns:
        yield codec.to_json(_fields(turn)).raw + b"\n"


async def export_sessions(
    store: TurnStore, *, owner: str | None = None, session: str | None = None
) -> AsyncIterator[bytes]:
    """The lines of one session, or of all that there are; one session at a time in memory."""
    if session is not None:
        if owner is None:
            raise StoreError(f"Found session {session!r} without its owner, expected both.")
        for line in export_jsonl(await store.turns(owner, session)):
            yield line
        return
    page = await store.session_keys(owner, PAGE)
    while page:
        for key in page:
            for line in export_jsonl(await store.turns(*key)):
                yield line
        page = await store.session_keys(owner, PAGE, page[-1])


def _fields(turn: Turn) -> dict[str, Any]:
    settings = {name: getattr(turn.settings, name) for name in codec.SETTINGS}
    state, verdict, hint = turn.next_state, turn.verdict, turn.hint
    return {
        "owner": turn.owner,
        "session": turn.session,
        "turn": turn.id,
        "parent": turn.parent,
        "kind": turn.kind,
        "prompt_ids": turn.prompt_ids,
        "sampled_ids": turn.sampled_ids,
        "logprobs": [_finite(turn, value) for value in turn.logprobs],
        "version": turn.version,
        "settings": settings,
        "finish": turn.finish,
        "messages": [*turn.messages, turn.reply],
        "next_state": None if state is None else list(state.messages),
        "verdict": verdict
        and {"score": verdict.score, "votes": verdict.votes, "source": verdict.source},
        "hint": None if hint is None else hint.told,
        "kind_reason": turn.kind_reason,
        "run": turn.run,
        "no_train": turn.no_train,
        "extends": turn.extends,
    }


def _finite(turn: Turn, value: float) -> float:
    """JSON has no infinity, and a null in its place would be a made-up log-prob."""
    if not math.isfinite(value):
        raise StoreError(
            f"Turn {turn.id} carries the log-prob {value}, expected a finite number: JSON "
            "cannot hold it. Delete its session, or export the others one by one."
        )
    return value
