"""What must hold of everything that was recorded, whichever program talked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gate import Served

from instar.batch.credit import Judged, credit
from instar.batch.render import ChatRenderer
from instar.batch.template import CHATML, compile_template
from instar.config import TrainingConfig
from instar.gateway.history import message_key
from instar.learn.batches import prepare, settings_of
from instar.record.store import open_store
from instar.text import byte_tokenizer
from instar.types import Turn, Verdict

Line = dict[str, Any]


def of_kind(lines: Iterable[Line], kind: str) -> list[Line]:
    return [one for one in lines if one["kind"] == kind]


def one_tree_each(lines: Iterable[Line], *, roots: int = 1) -> None:
    """The main turns of each session hang together; `roots` is how often it was begun anew."""
    by_session: dict[str, list[Line]] = {}
    for one in of_kind(lines, "main"):
        by_session.setdefault(one["session"], []).append(one)
    for name, turns in by_session.items():
        known = {one["turn"] for one in turns}
        begun = [one["turn"] for one in turns if one["parent"] not in known]
        assert len(begun) <= roots, f"session {name} is in {len(begun)} pieces"


def extends_where_it_continues(lines: list[Line]) -> int:
    """Prompts begin with their parent's tokens wherever the history went on from it."""
    known = {one["turn"]: one for one in lines}
    count = 0
    for one in lines:
        parent = known.get(one["parent"] or "")
        if parent is None:
            continue
        before = [message_key(message) for message in parent["messages"]]
        now = [message_key(message) for message in one["messages"][:-1]]
        tokens = parent["prompt_ids"] + parent["sampled_ids"]
        if now[: len(before)] == before:
            assert one["prompt_ids"][: len(tokens)] == tokens, one["turn"]
            count += 1
        assert contains(one["prompt_ids"], parent["sampled_ids"]), "a reply is as it was sampled"
    return count


def contains(ids: list[int], part: list[int]) -> bool:
    text = " ".join(map(str, ids))
    return re.search(rf"(?:^| ){' '.join(map(str, part))}(?: |$)", text) is not None


def next_states(lines: Iterable[Line]) -> dict[str, list[str]]:
    """Per turn that something followed: who spoke, and what was said."""
    out = {}
    for one in lines:
        if one["next_state"]:
            said = [f"{m['role']}: {m['content']}" for m in one["next_state"]]
            out[one["turn"]] = said
    return out


def last_text(line: Line) -> str:
    """The reply as text."""
    return str(line["messages"][-1].get("content") or "")


async def trained(served: Served, sessions: Iterable[str]) -> set[str]:
    """The turns that a batch takes when a judge found every single one good."""
    async with open_store(f"sqlite:///{served.home / 'instar.db'}") as store:
        found: list[Turn] = []
        for session in set(sessions):
            found += await store.turns("local", session)
    good = [Judged(turn=replace(one, verdict=Verdict(score=1)), age=0) for one in found]
    tokenizer = byte_tokenizer()
    end = tokenizer.token_to_id("<|im_end|>")
    renderer = ChatRenderer(
        tokenizer, compile_template(CHATML, {}), eos_ids=[] if end is None else [end]
    )
    training = TrainingConfig(method="binary", batch_size=len(good))
    batch = prepare(
        credit(good, training.method, settings_of(training)),
        training=training,
        renderer=renderer,
        version="base",
        max_tokens=10**7,
    )
    assert batch is not None
    return set(batch.batch.turns)
