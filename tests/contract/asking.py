"""How the contract asks an engine: a request, its reply, and what transformers would have said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from engines import Case
from tokenizers import Tokenizer

from instar.protocols import Engine
from instar.types import BASE_VERSION, Piece, Request, Sampling

TEXT = "Tell me, please, in a few words, why the sky is blue and grass is green."


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An open engine and what it was made of."""

    case: Case
    engine: Engine
    folder: Path
    tokenizer: Tokenizer

    def prompt(self, text: str = TEXT) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    pieces: tuple[Piece, ...]

    @property
    def finish(self) -> str | None:
        return self.pieces[-1].finish


def ask(prompt: tuple[int, ...], *, version: str | None = None, **settings: Any) -> Request:
    values = {"temperature": 0.0, "max_tokens": 12, **settings}
    return Request(id="x", prompt_ids=prompt, sampling=Sampling(**values), version=version)


async def draw(engine: Engine, request: Request) -> Reply:
    pieces = tuple([piece async for piece in engine.generate(request)])
    return Reply(
        ids=tuple(i for piece in pieces for i in piece.ids),
        logprobs=tuple(value for piece in pieces for value in piece.logprobs),
        pieces=pieces,
    )


async def forget(engine: Engine) -> None:
    """Back to the base alone, whatever a test left."""
    await engine.activate(BASE_VERSION)
    for version in engine.info.versions:
        if version != BASE_VERSION:
            await engine.drop(version)


def greedy(model: Any, prompt: Any, count: int) -> tuple[int, ...]:
    """The likeliest tokens, by transformers or PEFT's own generate."""
    ids = torch.tensor([list(prompt)])
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    return tuple(out[0, len(prompt) :].tolist())
