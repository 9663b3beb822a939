"""A client and a model for stitching tests: each rewrites what the other said, as real ones do."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from instar.batch.render import ChatRenderer
from instar.batch.template import CHATML, compile_template
from instar.gateway.history import anchors
from instar.gateway.stitch import SessionTree, Stitched
from instar.types import Message, Sampling, Tool, Turn

TOOLS: list[Tool] = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "move", "parameters": {"type": "object"}}},
]

THINKING = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Keeps a turn's thinking until the person speaks again, as Qwen3 does: not append-only."""


def merging_tokenizer() -> Tokenizer:
    """Bytes and a few merges, so that a text can be sampled in more than one way."""
    alphabet = sorted(ByteLevel.alphabet())
    vocab = {char: at for at, char in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w"), ("o", "k"), ("Ċ", "Ċ")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")]
    )
    return tokenizer


def make_renderer(template: str = CHATML) -> ChatRenderer:
    tokenizer = merging_tokenizer()
    end = tokenizer.token_to_id("<|im_end|>")
    special = {"eos_token": "<|im_end|>"}
    return ChatRenderer(tokenizer, compile_template(template, special), eos_ids=[end])


def sampled_ids(renderer: ChatRenderer, text: str, rng: random.Random, *, end: bool) -> list[int]:
    """Ids for a text, cut at random places, so that they are rarely how it would be tokenised."""
    ids: list[int] = []
    at = 0
    while at < len(text):
        step = rng.randint(1, 6)
        ids += renderer.tokenizer.encode(text[at : at + step], add_special_tokens=False).ids
        at += step
    return ids + list(renderer.eos_ids[:1]) * end


@dataclass
class Talk:
    """A session as its client sees it, and the tree the gateway keeps of it."""

    rng: random.Random
    renderer: ChatRenderer = field(default_factory=make_renderer)
    tools: list[Tool] = field(default_factory=list)
    history: list[Message] = field(default_factory=list)
    origin: list[str | None] = field(default_factory=list)
    """For each message the turn that sampled it."""
    tree: SessionTree = field(default_factory=SessionTree)
    turns: dict[str, Turn] = field(default_factory=dict)
    faithful: bool = False
    """The client alters nothing, and the model samples each text as it would be tokenised."""

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})
        self.origin.append(None)

    def add(self, message: Message) -> None:
        self.history.append(message)
        self.origin.append(None)

    def ask(self, extra: list[Message] | None = None) -> Stitched:
        """Stitch the history as the client resends it, with `extra` messages at its end."""
        history = self.history if self.faithful else [rewritten(m, self.rng) for m in self.history]
        sent = [*history, *(extra or ())]
        self.sent = sent
        return self.tree.stitch(sent, renderer=self.renderer, tools=self.tools)

    def answer(self, stitched: Stitched, text: str, *, end: bool = True) -> Turn:
        """Record a reply, and let the client keep it."""
        whole = [*self.renderer.encode(text), *self.renderer.eos_ids[:1]]
        ids = whole if self.faithful else sampled_ids(self.renderer, text, self.rng, end=end)
        reader = self.renderer.reader(tools=bool(self.tools), thinking=stitched.thinking)
        reader.push(ids)
        _, reply = reader.close()
        name = f"t{len(self.turns)}"
        turn = Turn(
            id=name,
            owner="me",
            session="s",
            parent=stitched.parent.id if stitched.parent else None,
            extends=stitched.extends,
            kind="main",
            prompt_ids=stitched.prompt_ids,
            sampled_ids=tuple(ids),
            logprobs=(-1.0,) * len(ids),
            settings=Sampling(),
            version="base",
            finish="stop" if end else "length",
            messages=stitched.messages,
            reply=reply,
            replies=stitched.replies,
            anchors=anchors(stitched.messages, reply),
            created=0.0,
        )
        self.tree.add(turn)
        self.turns[name] = turn
        self.history.append(reply)
        self.origin.append(name)
        return turn

    def cut(self, at: int) -> None:
        del self.history[at:], self.origin[at:]

    @property
    def edited(self) -> bool:
        """Whether replies are kept that answer something else than the history now says."""
        kept = [at for at, one in enumerate(self.history) if one["role"] == "assistant"]
        return bool(kept) and self.origin[kept[-1]] is None

    def last_turn(self) -> str | None:
        """The turn that the client's history ends with, below the new messages."""
        return next((name for name in reversed(self.origin) if name), None)


def rewritten(message: Message, rng: random.Random) -> Message:
    """The same message, as some client would resend it."""
    out: dict[str, Any] = dict(message)
    content = out.get("content")
    if isinstance(content, str) and content:
        content = rng.choice([content, content.strip(), content.lstrip()])
        if rng.random() < 0.3:
            content = [{"type": "text", "text": content}]
        out["content"] = content
    elif not content:
        out["content"] = rng.choice([None, ""])
    if rng.random() < 0.7:
        out.pop("reasoning_content", None)
    if out.get("tool_calls"):
        out["tool_calls"] = [_renamed(call, rng) for call in out["tool_calls"]]
    if out["role"] == "system" and rng.random() < 0.3:
        out["role"] = "developer"
    return out


def _renamed(call: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    arguments = _as_javascript(json.loads(call["function"]["arguments"]))
    items = list(arguments.items())
    rng.shuffle(items)
    written = json.dumps(dict(items), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
    name = call["function"]["name"]
    return {
        "id": call["id"].replace("_", ""),
        "type": "function",
        "function": {"name": name, "arguments": written},
    }


def _as_javascript(value: Any) -> Any:
    """What JSON.stringify(JSON.parse(..)) makes of numbers: all are doubles, 2.0 is written 2."""
    if isinstance(value, dict):
        return {name: _as_javascript(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_as_javascript(one) for one in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(float(value)) if float(value).is_integer() else float(value)
