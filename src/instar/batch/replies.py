"""Sampled ids to a reply, as it grows: content, reasoning and tool calls.

Comes in: the ids of each piece. Goes out: deltas a client can be shown at once, and in the end
the whole message. Text that may be the beginning of a marker is held back until it is clear.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import Tokenizer

from instar.batch.toolform import Call, ToolForm
from instar.ids import new_id
from instar.text import StopScanner, TextDecoder
from instar.types import Delta, Message

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

_State = Literal["start", "reasoning", "content", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRules:
    """What a reply may contain."""

    form: ToolForm | None = None
    """None: no tools were offered, so nothing is read as a call."""
    thinking: bool = False
    """The prompt already opened a <think> block."""
    stop: tuple[str, ...] = ()
    one_call: bool = False
    """The client wants at most one tool call a turn."""
    raw: bool = False
    """All of the reply is text, whatever it looks like."""


class ReplyReader:
    """Reads one reply. `done` turns true when nothing that follows can matter."""

    def __init__(self, tokenizer: Tokenizer, skip: Sequence[int], rules: ReplyRules) -> None:
        self._decoder = TextDecoder(tokenizer)
        self._skip = frozenset(skip)
        self._scanner = StopScanner(rules.stop)
        self._rules = rules
        self._state: _State = "reasoning" if rules.thinking else "start"
        if rules.raw:
            self._state = "content"
        self._held = ""
        self._gap = ""
        """Blank space before what may be a call."""
        self._open = rules.form.open if rules.form else ""
        """What opened it."""
        self._inside = 0
        """Up to here its closing text was only a part of an argument."""
        self._ended = False
        """No more is coming: what is not whole now never will be."""
        self._thought = rules.thinking
        """The reply has, or had, a <think> block, though it may be an empty one."""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self.done = False

    def push(self, ids: Sequence[int]) -> list[Delta]:
        kept = [i for i in ids if i not in self._skip] if self._skip else ids
        return self._read(self._scanner.push(self._decoder.push(kept)))

    def close(self) -> tuple[list[Delta], Message]:
        """What was still held back, and the whole message."""
        tail = self._scanner.push(self._decoder.flush()) + self._scanner.flush()
        deltas = self._read(tail) + self._end()
        return deltas, self._message()

    def _read(self, text: str) -> list[Delta]:
        self._held += text
        out: list[Delta] = []
        while self._held and not self.done:
            before = (self._state, len(self._held))
            out += _STEPS[self._state](self)
            if (self._state, len(self._held)) == before:
                break
        return out

    def _start(self) -> list[Delta]:
        """A reply may open with <think>, after blank space."""
        bare = self._held.lstrip()
        if bare.startswith(THINK_OPEN):
            self._held, self._state = bare[len(THINK_OPEN) :], "reasoning"
            self._thought = True
        elif bare and not THINK_OPEN.startswith(bare):
            self._state = "content"
            if self._rules.form and self._rules.form.bare and bare[0] == self._rules.form.bare:
                self._state, self._open = "tool", ""
        return []

    def _in_reasoning(self) -> list[Delta]:
        cut, found = _find(self._held, THINK_CLOSE)
        text, rest = self._held[:cut], self._held[cut:]
        if not self._reasoning:
            text = text.lstrip("\n")
        # The line ends before </think> belong to the tag, so they wait for what follows.
        bare = text.rstrip("\n")
        if found:
            self._held, self._state = rest[len(THINK_CLOSE) :], "content"
        else:
            self._held = text[len(bare) :] + rest
        return self._think(bare)

    def _in_content(self) -> list[Delta]:
        if self._rules.one_call and self._calls:
            # The end of the reply is still wanted, so that it is sampled and learned.
            self.done = bool(self._held.strip())
            return []
        if self._thought and not self._content:
            self._held = self._held.lstrip("\n")
        form = self._rules.form
        if form is None:
            text, self._held = self._held, ""
            return self._say(text)
        cut, found = _find(self._held, form.open)
        text, self._held = self._held[:cut], self._held[cut:]
        if found:
            self._held, self._state = self._held[len(form.open) :], "tool"
            self._open = form.open
            self._gap = text[len(text.rstrip()) :]
            return self._say(text.rstrip())
        # Blank space before a call belongs to neither, so it waits for what follows.
        bare = text.rstrip()
        self._held = text[len(bare) :] + self._held
        return self._say(bare)

    def _in_tool(self) -> list[Delta]:
        assert self._rules.form is not None
        close = self._rules.form.close
        at = self._closing() if close else -1
        if at < 0:
            return []
        body, self._held = self._held[:at], self._held[at + len(close) :]
        self._state, self._inside = "content", 0
        return self._call(body, close)

    def _closing(self) -> int:
        """Where the closing text of this call stands, or -1 while that is not clear."""
        form = self._rules.form
        assert form is not None
        while (at := self._held.find(form.close, self._inside)) >= 0:
            body = self._held[:at]
            if self._ended or not form.goes_on(body):
                first = self._held.find(form.close)
                # Where no call comes of it, the first one was meant: other calls may follow.
                return at if at == first or _calls(form, body) else first
            self._inside = at + len(form.close)
        return -1

    def _end(self) -> list[Delta]:
        self._ended, self._inside = True, 0
        return self._read("") + self._rest()

    def _rest(self) -> list[Delta]:
        body, self._held = self._held, ""
        if self.done or (not body and self._state != "tool"):
            return []
        if self._state == "tool":
            return self._call(body, "")
        if self._state == "reasoning":
            return self._think(body.rstrip("\n"))
        # Blank space after the last call is the form's, not the reply's.
        over = not body.strip() or self._rules.one_call
        return [] if self._calls and over else self._say(body)

    def _call(self, body: str, close: str) -> list[Delta]:
        form = self._rules.form
        assert form is not None
        calls = _calls(form, body)
        if not calls:
            # Not a call after all: the client gets it as the text it is.
            return self._say(self._gap + self._open + body + close)
        if self._rules.one_call:
            calls = calls[:1]
        return [self._add_call(name, arguments) for name, arguments in calls]

    def _add_call(self, name: str, arguments: str) -> Delta:
        call = {
            "id": new_id("call_"),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self._calls.append(call)
        return Delta(kind="tool_call", index=len(self._calls) - 1, call=call)

    def _think(self, text: str) -> list[Delta]:
        if not text:
            return []
        self._reasoning.append(text)
        return [Delta(kind="reasoning", text=text)]

    def _say(self, text: str) -> list[Delta]:
        if not text:
            return []
        self._content.append(text)
        return [Delta(kind="content", text=text)]

    def _message(self) -> Message:
        content = "".join(self._content)
        message: Message = {
            "role": "assistant",
            "content": content or (None if self._calls else ""),
        }
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        return message


_STEPS: dict[_State, Callable[[ReplyReader], list[Delta]]] = {
    "start": ReplyReader._start,
    "reasoning": ReplyReader._in_reasoning,
    "content": ReplyReader._in_content,
    "tool": ReplyReader._in_tool,
}


def _calls(form: ToolForm, body: str) -> list[tuple[str, str]]:
    """The calls in a body, as clients get them; none where it is no call."""
    try:
        return [_written(call) for call in form.read(body)]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []


def _written(call: Call) -> tuple[str, str]:
    """Name and arguments as JSON; ValueError for what no client can be sent."""
    name, arguments = call
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A model may write the escape of half a character, which has no UTF-8 form.
    (name + text).encode()
    return name, text


def _find(text: str, marker: str) -> tuple[int, bool]:
    """Where the marker stands, or from where on it may still begin."""
    at = text.find(marker)
    if at >= 0:
        return at, True
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return len(text) - size, False
    return len(text), False
