"""Turns to rows and back.

A row leans on an earlier turn of its session for the ids and messages that both begin with;
`Content` is what a turn offers to those that lean on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import sqlalchemy as sa

from instar.errors import StoreError
from instar.record import codec
from instar.types import Hint, Message, NextState, Tool, Turn, Verdict

Row = sa.RowMapping


class Content(NamedTuple):
    """A turn's ids and messages, each with the reply at its end."""

    ids: tuple[int, ...]
    messages: tuple[Message, ...]


class Texts(NamedTuple):
    """A turn's messages and reply as JSON, with a digest of each to compare them by."""

    messages: tuple[codec.Json, ...]
    reply: codec.Json
    digests: tuple[bytes, ...]
    """Of the messages, then of the reply. Equal JSON, not equal dicts: 1 == True in Python."""


class Prefix(NamedTuple):
    """What a row leaves out, since an earlier turn holds it."""

    seq: int | None
    ids: int
    messages: int
    depth: int


NO_PREFIX = Prefix(None, 0, 0, 0)


def texts(messages: Iterable[Message], reply: Message) -> Texts:
    encoded = tuple(codec.to_json(message) for message in messages)
    last = codec.to_json(reply)
    digests = tuple(digest(text.raw) for text in (*encoded, last))
    return Texts(encoded, last, digests)


def digest(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=16).digest()


def encode(
    turn: Turn, *, seq: int, prefix: Prefix, texts: Texts, tools: bytes | None
) -> dict[str, Any]:
    """The row of `turns`. `tools` is the digest under which its tools are kept."""
    replies = codec.to_json(turn.replies)
    new_messages = codec.json_array(texts.messages[prefix.messages :])
    return {
        "seq": seq,
        "id": turn.id,
        "owner": turn.owner,
        "session": turn.session,
        "parent": turn.parent,
        "extends": int(turn.extends),
        "kind": turn.kind,
        "kind_reason": turn.kind_reason,
        "version": turn.version,
        "finish": turn.finish,
        "no_train": int(turn.no_train),
        "logprobs_scaled": int(turn.logprobs_scaled),
        "created": turn.created,
        "settings": codec.pack_settings(turn.settings),
        "anchors": codec.pack_ints(turn.anchors),
        "prefix_seq": prefix.seq,
        "prefix_len": prefix.ids,
        "prefix_messages": prefix.messages,
        "depth": prefix.depth,
        "prompt": codec.pack_ints(turn.prompt_ids[prefix.ids :]),
        "sampled": codec.pack_ints(turn.sampled_ids),
        "logprobs": codec.pack_floats(turn.logprobs),
        "body": codec.seal(*codec.json_array([new_messages, texts.reply, replies])),
        "tools": tools,
        **state_columns(turn.next_state),
        **verdict_columns(turn.verdict),
        **hint_columns(turn.hint),
        "ready": int(is_ready(turn)),
        "group_id": turn.group,
        "run": turn.run,
    }


def is_ready(turn: Turn) -> bool:
    """Whether a judge should look at this turn."""
    trained = turn.kind == "main" and not turn.no_train
    return trained and turn.next_state is not None and turn.verdict is None


def state_columns(state: NextState | None) -> dict[str, Any]:
    packed = None if state is None else codec.pack_json([list(state.messages), state.turn])
    return {"next_state": packed}


def verdict_columns(verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"score": None, "votes": None, "verdict_source": None}
    votes = codec.pack_json(list(verdict.votes))
    return {"score": verdict.score, "votes": votes, "verdict_source": verdict.source}


def hint_columns(hint: Hint | None) -> dict[str, Any]:
    if hint is None:
        return {"hint": None}
    ways = [list(hint.ways)] if hint.ways else []
    return {"hint": codec.pack_json([hint.text, hint.source, *ways])}


def contents(rows: Iterable[Row]) -> Iterator[tuple[Row, Content, tuple[Any, ...]]]:
    """Each row with its content and its replies, given all rows they lean on, oldest first.

    A content is let go after the last row that leans on it, so a long chain never holds
    more than a few.
    """
    rows = list(rows)
    last_use = {row["prefix_seq"]: row["seq"] for row in rows}
    held: dict[int, Content] = {}
    for row in rows:
        base = _base(row, held)
        messages, reply, replies = codec.unpack_json(row["body"])
        content = Content(
            base.ids[: row["prefix_len"]]
            + codec.unpack(row["prompt"])
            + codec.unpack(row["sampled"]),
            (*base.messages[: row["prefix_messages"]], *messages, reply),
        )
        if row["seq"] in last_use:
            held[row["seq"]] = content
        if last_use.get(row["prefix_seq"]) == row["seq"]:
            held.pop(row["prefix_seq"], None)
        yield row, content, replies


def _base(row: Row, held: Mapping[int, Content]) -> Content:
    if row["prefix_seq"] is None:
        return Content((), ())
    try:
        return held[row["prefix_seq"]]
    except KeyError:
        raise StoreError(
            f"Turn {row['id']} leans on turn number {row['prefix_seq']}, which is missing. "
            "The store is damaged: restore a backup, or delete this session."
        ) from None


def decode(row: Row, content: Content, replies: Iterable[Any], tools: tuple[Tool, ...]) -> Turn:
    """The turn, exactly as it was recorded."""
    sampled = codec.unpack(row["sampled"])
    return Turn(
        id=row["id"],
        owner=row["owner"],
        session=row["session"],
        parent=row["parent"],
        extends=bool(row["extends"]),
        kind=row["kind"],
        kind_reason=row["kind_reason"],
        prompt_ids=content.ids[: len(content.ids) - len(sampled)],
        sampled_ids=sampled,
        logprobs=codec.unpack(row["logprobs"]),
        settings=codec.unpack_settings(row["settings"]),
        version=row["version"],
        finish=row["finish"],
        messages=content.messages[:-1],
        reply=content.messages[-1],
        tools=tools,
        replies=tuple((position, turn) for position, turn in replies),
        anchors=codec.unpack(row["anchors"]),
        no_train=bool(row["no_train"]),
        group=row["group_id"],
        run=row["run"],
        logprobs_scaled=bool(row["logprobs_scaled"]),
        created=row["created"],
        next_state=_next_state(row),
        verdict=_verdict(row),
        hint=hint_of(row["hint"]),
    )


def _next_state(row: Row) -> NextState | None:
    if row["next_state"] is None:
        return None
    messages, turn = codec.unpack_json(row["next_state"])
    return NextState(messages=tuple(messages), turn=turn)


def _verdict(row: Row) -> Verdict | None:
    if row["score"] is None:
        return None
    votes = tuple(codec.unpack_json(row["votes"]))
    return Verdict(score=row["score"], votes=votes, source=row["verdict_source"])


def hint_of(packed: bytes | None) -> Hint | None:
    if packed is None:
        return None
    text, source, *ways = codec.unpack_json(packed)
    return Hint(text=text, source=source, ways=tuple(ways[0]) if ways else ())
