"""Turns, databases and sessions to test the store with."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from hypothesis import strategies as st

from instar.types import Hint, Message, NextState, Sampling, Turn, Verdict

POSTGRES = os.environ.get("INSTAR_TEST_POSTGRES")
"""The URL of a server; `make test-postgres` starts one."""
DATABASES = ("sqlite", "postgres") if POSTGRES else ("sqlite",)


@contextmanager
def database_url(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database of this kind."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/instar.db"
        return
    assert POSTGRES is not None
    name = f"instar_{uuid.uuid4().hex}"
    server = sa.create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    try:
        with server.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        url = sa.make_url(POSTGRES).set(database=name)
        yield url.render_as_string(hide_password=False)
        with server.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        server.dispose()


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def make_turn(turn: str = "t1", **changes: Any) -> Turn:
    """A small turn; `changes` replace its fields."""
    sampled = changes.pop("sampled_ids", (7, 8, 9))
    values: dict[str, Any] = {
        "id": turn,
        "owner": "anna",
        "session": "s1",
        "parent": None,
        "extends": False,
        "kind": "main",
        "prompt_ids": (1, 2, 3),
        "sampled_ids": sampled,
        "logprobs": tuple(-0.5 * (i + 1) for i in range(len(sampled))),
        "settings": Sampling(),
        "version": "base",
        "finish": "stop",
        "messages": (user("Hello"),),
        "reply": {"role": "assistant", "content": "Hi."},
        "created": 1000.0,
    }
    return Turn(**values | changes)


def follow(parent: Turn, turn: str, *, say: str = "And then?", **changes: Any) -> Turn:
    """A turn that extends its parent token by token."""
    values: dict[str, Any] = {
        "owner": parent.owner,
        "session": parent.session,
        "parent": parent.id,
        "extends": True,
        "prompt_ids": (*parent.ids, 20, 21),
        "messages": (*parent.messages, parent.reply, user(say)),
        "created": parent.created + 1,
    }
    return make_turn(turn, **values | changes)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread brings about."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (what we wait for is no event of this loop)
            await asyncio.sleep(0.01)


numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.booleans()
strings = st.text(st.characters(exclude_categories=[]), max_size=12)
"""With NUL and halves of surrogate pairs: clients send them."""
json_values = st.recursive(
    st.none() | numbers | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)
contents = strings | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": strings}))
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": contents},
    optional={"tool_calls": st.lists(json_values, max_size=2)},
)
token_ids = st.lists(st.integers(0, 5) | st.integers(0, 2**40), max_size=12).map(tuple)
logprobs = st.floats(-50, 0, width=32) | st.floats(max_value=0, allow_nan=False)
settings = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 100),
    seed=st.none() | st.integers(-(2**63), 2**64),
    stop=st.lists(strings, max_size=2).map(tuple),
    stop_ids=st.lists(st.integers(0, 2**17), max_size=3).map(tuple),
)
next_states = st.builds(
    NextState, messages=st.lists(messages, max_size=2).map(tuple), turn=st.none() | st.just("x")
)
verdicts = st.builds(
    Verdict,
    score=st.sampled_from([-1, 0, 1]),
    votes=st.lists(st.none() | st.integers(-1, 1), max_size=3).map(tuple),
    source=st.sampled_from(["judge", "person"]),
)
hints = st.builds(Hint, text=strings, source=st.sampled_from(["judge", "person"]))


@dataclass
class Grower:
    """Grows a session as clients do: chains, combs, retries, edits, side turns."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    grown: list[Turn] = field(default_factory=list)

    def grow(self) -> Turn:
        """One more turn."""
        base = self.draw(st.sampled_from(self.grown)) if self.grown else None
        shape = self.draw(st.sampled_from(["chain", "comb", "retry", "edit", "root"]))
        ids, said = self._history(base, shape)
        sampled = self.draw(token_ids)
        turn = Turn(
            id=f"turn-{len(self.grown)}",
            owner="anna",
            session="s1",
            parent=base.id if base and self.draw(st.booleans()) else None,
            extends=self.draw(st.booleans()),
            kind=self.draw(st.sampled_from(["main", "side"])),
            kind_reason=self.draw(st.sampled_from(["", "title"])),
            prompt_ids=ids,
            sampled_ids=sampled,
            logprobs=tuple(self.draw(logprobs) for _ in sampled),
            settings=self.draw(settings),
            version="base",
            finish=self.draw(st.sampled_from(["stop", "length", "tool_calls", "cancelled"])),
            messages=said,
            reply=self.draw(messages),
            tools=tuple(self.draw(st.lists(st.just({"a": 1}) | messages, max_size=2))),
            replies=tuple(self.draw(st.lists(st.tuples(st.integers(0, 9), strings), max_size=2))),
            anchors=tuple(self.draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3))),
            no_train=self.draw(st.booleans()),
            run=self.draw(st.sampled_from([None, "run-1"])),
            logprobs_scaled=self.draw(st.booleans()),
            created=self.draw(st.floats(0, 2e9)),
            next_state=self.draw(st.none() | next_states),
            verdict=self.draw(st.none() | verdicts),
            hint=self.draw(st.none() | hints),
        )
        self.grown.append(turn)
        return turn

    def _history(self, base: Turn | None, shape: str) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        new_ids = self.draw(token_ids)
        new = tuple(self.draw(st.lists(messages, max_size=2)))
        if base is None or shape == "root":
            return new_ids, new
        if shape == "retry":
            return base.prompt_ids, base.messages
        if shape == "chain":
            return base.ids + new_ids, (*base.messages, base.reply, *new)
        cut = len(base.ids) // 2 if shape == "edit" else max(0, len(base.prompt_ids) - 2)
        return base.ids[:cut] + new_ids, (*base.messages[:-1], *new)
