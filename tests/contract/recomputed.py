"""An engine's log-probs against a recomputation of the same tokens in transformers, in float32."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from instar.protocols import Engine
from instar.types import Request, Sampling

TEXTS = (
    "<|im_start|>user\nName three rivers of Europe.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a short poem about tea.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\n2 + 2 = ?<|im_end|>\n<|im_start|>assistant\n",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of |recorded - recomputed| over all tokens."""

    tokens: int
    mean: float
    max: float


async def reply(engine: Engine, request: Request) -> Reply:
    pieces = [piece async for piece in engine.generate(request)]
    return Reply(
        prompt_ids=tuple(request.prompt_ids),
        sampled_ids=tuple(i for piece in pieces for i in piece.ids),
        logprobs=tuple(value for piece in pieces for value in piece.logprobs),
    )


async def sample(
    engine: Engine, tokenizer: Any, sampling: Sampling, *, version: str | None = None
) -> list[Reply]:
    """One reply a text, all at once, so that the batch is as mixed as in service."""
    requests = [
        Request(
            id=f"recomputed-{at}",
            prompt_ids=tokenizer.encode(text, add_special_tokens=False).ids,
            sampling=sampling,
            version=version,
        )
        for at, text in enumerate(TEXTS)
    ]
    return await asyncio.gather(*(reply(engine, request) for request in requests))


def load_model(folder: Path, *, device: str = "cpu", adapter: Path | None = None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter)
    return model.eval()


def difference(model: Any, replies: Sequence[Reply], *, temperature: float) -> Difference:
    """How far the recorded log-probs are from log_softmax(logits / temperature)."""
    import torch

    gaps: list[float] = []
    for one in replies:
        ids_T = torch.tensor([*one.prompt_ids, *one.sampled_ids], device=model.device)
        with torch.inference_mode():
            logits_SV = model(ids_T[None]).logits[0, len(one.prompt_ids) - 1 : -1].float()
        logprobs_SV = (logits_SV / (temperature or 1.0)).log_softmax(-1)
        found_S = logprobs_SV.gather(1, ids_T[len(one.prompt_ids) :, None])[:, 0].cpu()
        gaps += (found_S - torch.tensor(one.logprobs)).abs().tolist()
    return Difference(tokens=len(gaps), mean=sum(gaps) / len(gaps), max=max(gaps))
