"""What the engine and the process around vLLM say to each other, in the frames of `wire`.

Everything is written as arrays without names: hundreds of replies have a part in every step.
"""

from __future__ import annotations

import msgspec

REFUSED = "refused"
"""The finish of a part whose error is the request's fault."""


class Ask(msgspec.Struct, array_like=True, tag=True, frozen=True, kw_only=True, gc=False):
    """Draw a reply."""

    id: int
    prompt_ids: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_ids: list[int] = []
    top: int = 0
    lora: int = 0
    """The number of a loaded adapter; 0 is the base."""
    whole: bool = False
    """Answer in one part."""
    images: list[bytes] = []
    """Image files, one for each place of the prompt."""
    session: str = ""
    """What it belongs to: its next one will have the same beginning."""


class Abort(msgspec.Struct, array_like=True, tag=True, frozen=True, gc=False):
    id: int


class Load(msgspec.Struct, array_like=True, tag=True, frozen=True, kw_only=True, gc=False):
    call: int
    lora: int
    name: str
    """vLLM keys its prefix cache by this name: it must never be used for two adapters."""
    folder: str


class Drop(msgspec.Struct, array_like=True, tag=True, frozen=True, kw_only=True, gc=False):
    call: int
    lora: int


class Ready(msgspec.Struct, array_like=True, tag=True, frozen=True, kw_only=True, gc=False):
    context: int
    device: str
    release: str
    sees: bool = False


class Part(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """New tokens of one reply."""

    id: int
    ids: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]] = []
    finish: str | None = None
    cached: int = 0
    error: str | None = None


class Step(msgspec.Struct, array_like=True, tag=True, frozen=True, gc=False):
    parts: list[Part]


class Done(msgspec.Struct, array_like=True, tag=True, frozen=True, gc=False):
    """The answer to Load and Drop."""

    call: int
    error: str | None
