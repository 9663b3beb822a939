"""Messages to prompt ids, reusing what was sampled.

Comes in: a conversation, and for some of its assistant messages the turns that sampled them.
Goes out: token ids in which those messages are the very ids that were sampled; only the text
between them is tokenised, and each stretch of it only once.

How: the template is rendered once with a mark in place of each such message. The text falls
apart at the marks; sampled ids go back in between. So a prompt extends the one before it token
by token wherever the template only appends, and nothing has to be known about the template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from instar.batch.encode import TextEncoder
from instar.batch.marks import lost_marks, marked, spans
from instar.batch.replies import THINK_OPEN, ReplyReader, ReplyRules
from instar.batch.template import CHATML, Template, compile_template, read_eos_ids, read_template
from instar.batch.toolform import arguments_of, describe_tools, pick_form, write_calls
from instar.errors import ModelError, RequestError
from instar.text import byte_tokenizer, token_bytes
from instar.types import Message, Tool, Turn

_PROBE: list[Message] = [
    {"role": "system", "content": "Be  brief."},
    {"role": "user", "content": "  Two spaces,\n\na tab\tand 12  34."},
    {"role": "assistant", "content": "\n\nYes. "},
    {"role": "user", "content": "Again"},
]
_PROBE_TOOL: Tool = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "x", "parameters": {"type": "object"}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """Prompt ids, and what could not be kept of the replies in them."""

    ids: tuple[int, ...]
    dropped: tuple[int, ...] = ()
    thinking: bool = False


class ChatRenderer:
    """Renders for one model: its template, its tokenizer, its way of writing tool calls."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        *,
        eos_ids: Sequence[int],
        tool_parser: str = "auto",
        cache_chars: int = 32_000_000,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.form = pick_form(tool_parser, template.source)
        self._encoder = TextEncoder(tokenizer, cache_chars=cache_chars)
        self.eos_ids = tuple(eos_ids)
        self.native_tools = self._knows_tools()
        self._late_system = self._takes_late_system()
        # A template that never speaks of thinking cannot mean to drop it.
        self._thoughts = "</think>" in template.source or "reasoning" in template.source
        self._encoder.settle(self._probe_text())

    @classmethod
    def from_folder(
        cls, folder: Path, *, tokenizer: Path | None = None, tool_parser: str = "auto"
    ) -> ChatRenderer:
        """Load from a Hugging Face model folder (and a separate tokenizer folder, if given)."""
        source = tokenizer or folder
        file = source / "tokenizer.json"
        if not file.exists():
            raise ModelError(
                f"{source} has no tokenizer.json. instar needs a fast tokenizer: save one there "
                "with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        template = read_template(source)
        loaded = Tokenizer.from_file(str(file))
        eos = read_eos_ids(folder)
        named = template.special.get("eos_token")
        extra = loaded.token_to_id(named) if named else None
        ids = eos if extra is None or extra in eos else (*eos, extra)
        return cls(loaded, template, eos_ids=ids, tool_parser=tool_parser)

    @classmethod
    def for_bytes(cls, *, tool_parser: str = "auto") -> ChatRenderer:
        """One token a byte and plain ChatML: for the fake engine and for tests."""
        tokenizer = byte_tokenizer()
        special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        eos = (int(tokenizer.token_to_id("<|im_end|>") or 0),)
        return cls(
            tokenizer, compile_template(CHATML, special), eos_ids=eos, tool_parser=tool_parser
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        replies: Mapping[int, Turn] | None = None,
        options: dict[str, Any] | None = None,
    ) -> RenderedPrompt:
        replies = replies or {}
        try:
            text = self._text(messages, tools, replies, options)
        except RequestError:
            if not replies:
                raise
            # A template that refuses marks (some check tool calls) gets the plain messages.
            plain = self._text(messages, tools, {}, options)
            return RenderedPrompt(
                ids=self.encode(plain), dropped=tuple(replies), thinking=_ends_thinking(plain)
            )
        lost = lost_marks(text, replies, thoughts=self._thoughts)
        if lost:
            kept = {at: turn for at, turn in replies.items() if at not in lost}
            text = self._text(messages, tools, kept, options)
            replies = kept
        return RenderedPrompt(
            ids=self._splice(text, replies), dropped=tuple(lost), thinking=_ends_thinking(text)
        )

    def reader(
        self,
        *,
        tools: bool,
        thinking: bool = False,
        stop: Sequence[str] = (),
        one_call: bool = False,
        raw: bool = False,
    ) -> ReplyReader:
        rules = ReplyRules(
            form=self.form if tools else None,
            thinking=thinking,
            stop=tuple(stop),
            one_call=one_call,
            raw=raw,
        )
        return ReplyReader(self.tokenizer, self.eos_ids, rules)

    def raw(self, prompt: str | Sequence[int]) -> tuple[tuple[int, ...], str]:
        """Ids and text of a prompt without a template: whoever sends one writes the tokens."""
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode(prompt).ids), prompt
        for token in prompt:
            if not 0 <= token < 2**32 or self.tokenizer.id_to_token(token) is None:
                raise RequestError(
                    f"prompt has the token id {token}, which this model's tokenizer does not know",
                    param="prompt",
                    code="invalid_value",
                )
        text: str = self.tokenizer.decode(list(prompt), skip_special_tokens=False)
        return tuple(prompt), text

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for; part of a character has no text of its own."""
        return token_bytes(self.tokenizer, token)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of template text. What a person wrote never becomes a special token."""
        return self._encoder.encode(text)

    def _text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        replies: Mapping[int, Turn],
        options: dict[str, Any] | None,
    ) -> str:
        try:
            ready = [
                marked(at, replies[at], thoughts=self._thoughts)
                if at in replies
                else self._prepare(message, at)
                for at, message in enumerate(messages)
            ]
        except RecursionError as error:
            raise RequestError("a tool call is nested too deep", param="messages") from error
        if not tools or self.native_tools:
            told = self._encoder.guard_all(list(tools))
            return self.template.text(ready, tools=told, options=self._encoder.guard_all(options))
        ready = self._with_tools(ready, tools)
        return self.template.text(ready, options=self._encoder.guard_all(options))

    def _prepare(self, message: Message, at: int) -> Message:
        """The form templates expect: text content, arguments as objects, no developer role."""
        role = "system" if message["role"] == "developer" else message["role"]
        if role == "system" and at and not self._late_system:
            role = "user"
        rest = {name: value for name, value in message.items() if name != "content"}
        out: Message = self._encoder.guard_all(rest)
        out |= {"role": role, "content": self._content(message)}
        if role == "assistant" and message.get("tool_calls"):
            if not self.native_tools:
                written = write_calls({**message, "content": text_of(message)})
                out["content"] = self._encoder.guard(written)
                out.pop("tool_calls")
            else:
                calls = [_with_object_arguments(c) for c in message["tool_calls"]]
                out["tool_calls"] = self._encoder.guard_all(calls)
        elif role == "tool" and not self.native_tools:
            out["content"] = _tool_response(out["content"])
        return out

    def _content(self, message: Message) -> Any:
        """Text; where there are images, the parts that a template shows them in place of."""
        content = message.get("content")
        if not isinstance(content, list) or not any(map(_is_image, content)):
            return self._encoder.guard(text_of(message))
        return [
            {"type": "image"}
            if _is_image(part)
            else {"type": "text", "text": self._encoder.guard(part["text"])}
            for part in content
        ]

    def _with_tools(self, messages: list[Message], tools: Sequence[Tool]) -> list[Message]:
        told = self._encoder.guard(describe_tools(tools))
        if messages and messages[0]["role"] == "system":
            first = {**messages[0], "content": f"{messages[0]['content']}\n\n{told}"}
            return [first, *messages[1:]]
        return [{"role": "system", "content": told}, *messages]

    def _splice(self, text: str, replies: Mapping[int, Turn]) -> tuple[int, ...]:
        """Text between the marks becomes ids; each mark becomes the ids that were sampled."""
        if not replies:
            return self.encode(text)
        out: list[int] = []
        start = 0
        closing: int | None = None
        for at, begin, end in spans(text):
            turn = replies[at]
            before = text[start:begin]
            if _samples_think(self, turn):
                before = _without_think(before)
            out.extend(_after(self.encode(before), closing))
            out.extend(turn.sampled_ids)
            last = turn.sampled_ids[-1] if turn.sampled_ids else None
            closing = last if last in self.eos_ids else None
            start = end
        out.extend(_after(self.encode(text[start:]), closing))
        return tuple(out)

    def _knows_tools(self) -> bool:
        try:
            text = self.template.text(
                [{"role": "user", "content": "x"}], tools=[_PROBE_TOOL], generate=True
            )
        except RequestError:
            return False
        return "probe_tool" in text

    def _takes_late_system(self) -> bool:
        """Whether a system message may stand after others: agents send some, templates differ."""
        try:
            text = self.template.text([*_PROBE[:2], {"role": "system", "content": "probe_late"}])
        except RequestError:
            return False
        return "probe_late" in text

    def _probe_text(self) -> str:
        try:
            return self.template.text(_PROBE)
        except RequestError:
            return self.template.text(_PROBE[1:])


def _tool_response(content: Any) -> Any:
    head, tail = "<tool_response>\n", "\n</tool_response>"
    if isinstance(content, str):
        return f"{head}{content}{tail}"
    return [{"type": "text", "text": head}, *content, {"type": "text", "text": tail}]


def _is_image(part: dict[str, Any]) -> bool:
    return part.get("type") == "image_url"


def text_of(message: Message) -> str:
    """A message's text, whether it came as a string, a list of parts or nothing."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if not _is_image(part))


def _samples_think(renderer: ChatRenderer, turn: Turn) -> bool:
    """Whether the model itself wrote the opening tag (else the prompt did)."""
    if not turn.reply.get("reasoning_content"):
        return False
    head: str = renderer.tokenizer.decode(list(turn.sampled_ids[:8]), skip_special_tokens=False)
    return head.lstrip().startswith(THINK_OPEN)


def _without_think(text: str) -> str:
    bare = text.rstrip()
    return bare.removesuffix(THINK_OPEN) if bare.endswith(THINK_OPEN) else text


def _after(ids: tuple[int, ...], closing: int | None) -> tuple[int, ...]:
    """Leave out the end-of-turn token that the model has already sampled."""
    return ids[1:] if closing is not None and ids[:1] == (closing,) else ids


def _ends_thinking(text: str) -> bool:
    return text.rstrip().endswith(THINK_OPEN)


def _with_object_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": arguments_of(function)}}
