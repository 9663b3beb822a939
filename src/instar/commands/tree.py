"""A session drawn as a tree: what each prompt added, what was sampled, where it branches.

A conversation that simply goes on stays on one level; only a turn with several continuations
opens deeper ones, so a long session does not walk off the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from instar.types import Session, Turn

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from instar.config import Config

PROMPT = "cyan"
SAMPLED = "bold green"
SIDE = "magenta"
SHOWN_CHARS = 1200
"""Longest text of a prompt that is shown whole; of a longer one, its beginning and end."""
C1 = dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
VISIBLE = {i: 0x2400 + i for i in range(32) if i not in (0x09, 0x0A)} | {0x7F: 0x2421, **C1}
"""Control characters as pictures: recorded text must not be able to steer the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """How tokens are written."""

    tokenizer: Tokenizer | None
    tokens: bool = False
    """Show where each token ends."""
    full: bool = False
    """Show long prompts whole."""

    def write(self, ids: Sequence[int], *, style: str) -> Text:
        if self.tokenizer is None:
            return Text(" ".join(map(str, ids)), style=style)
        if not self.tokens:
            return Text(self._cut(self._decode(ids)), style=style)
        text = Text()
        for at, one in enumerate(ids):
            text.append("|" if at else "", style="dim")
            text.append(self._decode([one]), style=style)
        return text

    def _decode(self, ids: Sequence[int]) -> str:
        assert self.tokenizer is not None
        decoded: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return decoded.translate(VISIBLE)

    def _cut(self, text: str) -> str:
        if self.full or len(text) <= SHOWN_CHARS:
            return text
        head, tail = SHOWN_CHARS * 2 // 3, SHOWN_CHARS // 3
        left_out = len(text) - head - tail
        return f"{text[:head]}\n[... {left_out:,} characters, see --full ...]\n{text[-tail:]}"


def load_tokenizer(config: Config, home: Path) -> Tokenizer | None:
    """The tokenizer of the model that the config names; None where its file is not here."""
    from tokenizers import Tokenizer

    from instar.backends.embedded import NAME
    from instar.text import byte_tokenizer

    if config.engine.type == "fake":
        return byte_tokenizer()
    model = config.model
    folder = model.tokenizer_path or model.checkpoint_path or home / "models" / NAME
    file = folder / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.is_file() else None


def draw(session: Session, turns: Sequence[Turn], pen: Pen) -> Tree:
    """The whole session."""
    known = {turn.id: turn for turn in turns}
    children: dict[str | None, list[Turn]] = {}
    for turn in turns:
        children.setdefault(turn.parent if turn.parent in known else None, []).append(turn)
    top = Tree(_title(session), guide_style="dim")
    # A list and not recursion: a session may branch at every one of thousands of turns.
    open_branches: list[tuple[Tree, list[Turn]]] = [(top, children.get(None, []))]
    while open_branches:
        level, starts = open_branches.pop()
        several = len(starts) > 1
        for number, start in enumerate(starts, 1):
            branch = level.add(_branch(number, len(starts))) if several else level
            following = [start]
            while len(following) == 1:
                (one,) = following
                branch.add(_turn(one, known.get(one.parent or ""), pen))
                following = children.get(one.id, [])
            if following:
                open_branches.append((branch, following))
    return top


def shared(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids two sequences begin with in common."""
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return at
    return min(len(left), len(right))


def _title(session: Session) -> Text:
    text = Text(session.id, style="bold")
    text.append(f"  {session.title.translate(VISIBLE)}  ", style="italic")
    state = "closed" if session.closed else "open"
    text.append(f"{session.owner}, {session.turns} turns, {state}", style="dim")
    return text


def _branch(number: int, of: int) -> Text:
    return Text(f"branch {number} of {of}", style="yellow")


def _turn(turn: Turn, above: Turn | None, pen: Pen) -> Text:
    before = shared(turn.prompt_ids, above.ids) if above else 0
    text = _heading(turn, above, before)
    text.append("\n")
    if before:
        text.append(f"[{before:,} tokens as above] ", style="dim")
    text.append_text(pen.write(turn.prompt_ids[before:], style=PROMPT))
    text.append_text(pen.write(turn.sampled_ids, style=SAMPLED))
    if turn.verdict:
        colour = {1: "green", 0: "yellow", -1: "red"}[turn.verdict.score]
        votes = ", ".join("none" if vote is None else f"{vote:+d}" for vote in turn.verdict.votes)
        said = f"\nverdict {turn.verdict.score:+d} by {turn.verdict.source}"
        text.append(f"{said} (votes {votes})" if votes else said, style=f"bold {colour}")
    if turn.hint:
        text.append(f"\nhint: {turn.hint.told.translate(VISIBLE)}", style="bold yellow")
    return text


def _heading(turn: Turn, above: Turn | None, before: int) -> Text:
    text = Text(turn.id, style="bold")
    text.append(f"  {turn.kind}", style=SIDE if turn.kind == "side" else "bold blue")
    if turn.kind_reason not in ("", "default"):
        text.append(f" ({turn.kind_reason.translate(VISIBLE)})", style="dim")
    facts = [
        f"version {turn.version}",
        f"prompt {len(turn.prompt_ids):,} (+{len(turn.prompt_ids) - before:,})",
        f"sampled {len(turn.sampled_ids):,}",
        f"temperature {turn.settings.temperature:g}",
    ]
    text.append(f"  {turn.finish}", style="green" if turn.finish == "stop" else "yellow")
    text.append(f"  {', '.join(facts)}", style="dim")
    if above is not None:
        extends = ("  extends", "green") if turn.extends else ("  does not extend", "yellow")
        text.append(extends[0], style=extends[1])
    if turn.run:
        text.append(f"  run {turn.run.translate(VISIBLE)}", style="dim")
    if turn.no_train:
        text.append("  not trained", style="yellow")
    return text
