"""Turns as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_turns import follow, make_turn, user

from instar.errors import StoreError
from instar.record import export
from instar.record.export import export_jsonl, export_sessions
from instar.record.store import open_store
from instar.types import Hint, NextState, Turn, Verdict

KEYS = [
    *("owner", "session", "turn", "parent", "kind"),
    *("prompt_ids", "sampled_ids", "logprobs", "version", "settings", "finish"),
    *("messages", "next_state", "verdict", "hint"),
    *("kind_reason", "run", "no_train", "extends"),
]


def test_a_line_holds_exactly_these_keys() -> None:
    turn = make_turn(
        "t1",
        next_state=NextState(messages=(user("Shorter."),), turn="t2"),
        verdict=Verdict(score=-1, votes=(-1, None, 0)),
        hint=Hint(text="Be brief."),
    )
    (line,) = export_jsonl([turn])
    assert line.endswith(b"}\n")
    found = json.loads(line)
    assert list(found) == KEYS
    assert found["messages"] == [user("Hello"), {"role": "assistant", "content": "Hi."}]
    assert found["next_state"] == [user("Shorter.")]
    assert found["verdict"] == {"score": -1, "votes": [-1, None, 0], "source": "judge"}
    assert found["hint"] == "Be brief."
    assert found["prompt_ids"] == [1, 2, 3]
    assert found["logprobs"] == [-0.5, -1.0, -1.5]
    assert found["settings"]["temperature"] == 1.0


def test_unknown_is_null() -> None:
    (line,) = export_jsonl([make_turn("t1")])
    found = json.loads(line)
    unknown = ("parent", "run", "next_state", "verdict", "hint")
    assert [found[key] for key in unknown] == [None] * 5


def test_a_line_says_what_is_private_and_what_extends_its_parent() -> None:
    first = make_turn("t1", no_train=True)
    branch = follow(first, "t3", extends=False)
    lines = [json.loads(line) for line in export_jsonl([first, follow(first, "t2"), branch])]
    assert [one["no_train"] for one in lines] == [True, False, False]
    assert [one["extends"] for one in lines] == [False, True, False]


def test_a_log_prob_is_never_made_up() -> None:
    turn = make_turn("t1", sampled_ids=(1,), logprobs=(float("-inf"),))
    with pytest.raises(StoreError, match="finite"):
        list(export_jsonl([turn]))


def test_lines_come_one_at_a_time() -> None:
    def endless() -> Iterator[Turn]:
        while True:
            yield make_turn("t1")

    assert next(export_jsonl(endless()))


async def test_all_sessions_or_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PAGE", 2)
    async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
        for owner, session in (("anna", "a"), ("anna", "b"), ("anna", "c"), ("ben", "a")):
            first = make_turn(f"{owner}.{session}", owner=owner, session=session)
            await store.record(first)
            await store.record(follow(first, f"{owner}.{session}.2"))

        async def names(**which: str) -> list[str]:
            return [json.loads(line)["turn"] async for line in export_sessions(store, **which)]

        assert len(await names()) == 8
        assert await names(owner="ben") == ["ben.a", "ben.a.2"]
        assert await names(owner="anna", session="b") == ["anna.b", "anna.b.2"]
        with pytest.raises(StoreError, match="without its owner"):
            await names(session="b")
