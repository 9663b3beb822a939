"""The heart of the system: the next prompt extends the last one token by token.

Comes in: the history a client resent, and the recorded turns of its session. Goes out: prompt
ids in which every recorded reply stands as the very ids that were sampled, and the turn that
the new one continues. Where the history really differs, the session branches.

    history     system  user  ASSISTANT  tool  ASSISTANT  user
    found              ─────── turn 1 ──── turn 2
    prompt ids  [ turn 2's prompt + its sampled ids ][ only what is new ]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from instar.gateway.history import chain, message_key, own_talk, said, text_of
from instar.protocols import Renderer
from instar.synthetic import is_summary
from instar.types import Message, NextState, Tool, Turn

How = Literal["root", "extends", "trunk", "system", "retold", "template", "branch", "compacted"]
"""How a turn hangs on its parent.

    root      nothing of the history was recorded
    extends   the prompt begins with the parent's prompt and reply, token by token
    trunk     it would, had the parent's last message not vanished from the history
    system    it would, had the system text not been rewritten
    retold    it would, had the client not rewritten its own additions to what was said
    template  it would, but this model's template rewrites earlier turns, or the tools changed
    branch    the history was edited after the parent
    compacted the history before the parent's reply was replaced by a summary
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stitched:
    """A prompt, and where it hangs in the session's tree."""

    prompt_ids: tuple[int, ...]
    messages: tuple[Message, ...]
    """The history, each message as it was first sent: the prompt is made of these."""
    parent: Turn | None
    how: How
    replies: tuple[tuple[int, str], ...]
    thinking: bool = False
    next_state: NextState | None = None
    """What the history shows to have followed the parent."""

    @property
    def extends(self) -> bool:
        return self.how == "extends" or (self.how == "branch" and self.parent is not None)


class SessionTree:
    """The recorded turns of one session, in memory."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns: dict[str, Turn] = {}
        self._by_anchor: dict[int, str] = {}
        self._by_reply: dict[bytes, str] = {}
        self._times_said: Counter[bytes] = Counter()
        self._newest: Turn | None = None
        for turn in turns:
            self.add(turn)

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def has_tools(self) -> bool:
        """Whether the conversation's newest turn could call tools."""
        return self._newest is not None and bool(self._newest.tools)

    def add(self, turn: Turn) -> None:
        key = message_key(turn.reply)
        self._times_said[key] += turn.id not in self._turns
        self._turns[turn.id] = turn
        for anchor in turn.anchors:
            self._by_anchor[anchor] = turn.id
        self._by_reply[key] = turn.id
        if turn.kind == "main" and (self._newest is None or turn.created >= self._newest.created):
            self._newest = turn

    def stitch(
        self,
        messages: Sequence[Message],
        *,
        renderer: Renderer,
        tools: Sequence[Tool] = (),
        options: dict[str, Any] | None = None,
    ) -> Stitched:
        match = self._match(messages)
        replies = self._replies(messages, match)
        messages = _as_first_sent(messages, match, replies)
        prompt = renderer.render(messages, tools=tools, replies=replies, options=options)
        used = tuple((at, t.id) for at, t in sorted(replies.items()) if at not in prompt.dropped)
        parent, how = self._hang(prompt.ids, match)
        return Stitched(
            prompt_ids=prompt.ids,
            messages=tuple(messages),
            parent=parent,
            how=how,
            replies=used,
            thinking=prompt.thinking,
            next_state=_next_state(messages, parent, match),
        )

    def stitch_raw(self, ids: tuple[int, ...], text: str) -> Stitched:
        """A raw prompt hangs on the longest recorded turn that it goes on from, if on any."""
        # A copy: long prompts are stitched in threads, while turns go on being added.
        before = [turn for turn in list(self._turns.values()) if _starts_with(ids, turn)]
        parent = max(before, key=lambda turn: len(turn.ids), default=None)
        return Stitched(
            prompt_ids=ids,
            messages=({"role": "user", "content": text},),
            parent=parent,
            how="extends" if parent else "root",
            replies=(),
        )

    def _match(self, messages: Sequence[Message]) -> _Match | None:
        """The deepest recorded reply in the history, by the history that led to it."""
        spots = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        if not spots:
            return None
        strict = chain(messages)
        if newest := self._deepest(spots[-1:], strict):
            return newest
        found = self._deepest(spots, strict, chain(messages, system=False))
        if found is None or not found.last:
            # Told differently, perhaps: dearer to look for, and seldom needed.
            own = own_talk(messages)
            spots = [at for at in spots if at not in own] or spots
            told = self._deepest(spots, chain(messages, told=True))
            found = told if found is None or (told and told.at > found.at) else found
        return found or self._compacted(messages, spots[-1])

    def _deepest(self, spots: Sequence[int], *chains: Sequence[int]) -> _Match | None:
        for at in reversed(spots):
            for numbers in chains:
                turn = self._turns.get(self._by_anchor.get(numbers[at], ""))
                if turn is not None:
                    return _Match(turn=turn, at=at, last=at == spots[-1], number=numbers[at])
        return None

    def _compacted(self, messages: Sequence[Message], at: int) -> _Match | None:
        """The session's newest reply, where a summary stands for all that led to it.

        Only the newest: the same words may have been said before, to another question. And only
        where the history says that it is a summary, or got shorter: else it was edited.
        """
        turn = self._newest
        if turn is None or (key := message_key(messages[at])) != message_key(turn.reply):
            return None
        before = messages[:at]
        # By more than the one message that some clients never send again.
        shorter = len(before) < len(turn.messages) - 1 and self._times_said[key] == 1
        if not shorter and not any(is_summary(text_of(one)) for one in before):
            return None
        return _Match(turn=turn, at=at, last=True, number=None)

    def _replies(self, messages: Sequence[Message], match: _Match | None) -> dict[int, Turn]:
        """For each assistant message the turn that sampled it, if one did.

        Replies before the match are those that its own prompt used: the same words may have
        been sampled twice, with other tokens.
        """
        inherited = dict(match.turn.replies) if match and match.same_positions else {}
        if match:
            inherited[match.at] = match.turn.id
        found: dict[int, Turn] = {}
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            key = message_key(message)
            turn = self._turns.get(inherited.get(at, ""))
            if turn is None or message_key(turn.reply) != key:
                turn = self._turns.get(self._by_reply.get(key, ""))
            if turn is not None:
                found[at] = turn
        return found

    def _hang(self, ids: tuple[int, ...], match: _Match | None) -> tuple[Turn | None, How]:
        if match is None:
            return None, "root"
        turn = match.turn
        if _starts_with(ids, turn):
            return turn, "extends" if match.last else "branch"
        if match.last:
            return turn, match.why_not
        return self._ancestor(ids, turn), "branch"

    def _ancestor(self, ids: tuple[int, ...], turn: Turn) -> Turn | None:
        """The nearest turn above this one that the prompt does extend."""
        seen = turn.parent
        while seen is not None and seen in self._turns:
            above = self._turns[seen]
            if _starts_with(ids, above):
                return above
            seen = above.parent
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    turn: Turn
    at: int
    """Position of its reply in the history."""
    last: bool
    """Whether no other reply follows it."""
    number: int | None
    """The number by which it was found; None where only its reply is left of the history."""

    @property
    def same_positions(self) -> bool:
        return self.number is not None and len(self.turn.messages) in (self.at, self.at + 1)

    @property
    def why_not(self) -> How:
        if self.number is None:
            return "compacted"
        kinds: tuple[How, ...] = ("template", "trunk", "system", "retold")
        return kinds[self.turn.anchors.index(self.number)]


def _as_first_sent(
    messages: Sequence[Message], match: _Match | None, replies: Mapping[int, Turn]
) -> list[Message]:
    """A client that trims a message must not change the tokens that stand for it."""
    out = list(messages)
    if match is not None and match.same_positions:
        for at, known in enumerate(match.turn.messages[: match.at]):
            if message_key(known) == message_key(out[at]):
                out[at] = known
    for at, turn in replies.items():
        out[at] = turn.reply
    return out


def _starts_with(ids: tuple[int, ...], turn: Turn) -> bool:
    cut = len(turn.prompt_ids)
    end = cut + len(turn.sampled_ids)
    return ids[:cut] == turn.prompt_ids and ids[cut:end] == turn.sampled_ids


def _next_state(
    messages: Sequence[Message], parent: Turn | None, match: _Match | None
) -> NextState | None:
    if parent is None or match is None or not match.last or parent is not match.turn:
        return None
    after = said(messages[match.at + 1 :])
    return NextState(messages=after) if after else None
