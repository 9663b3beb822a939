"""All linear layers trained as they are, and published as an adapter that says what changed.

Engines take versions as LoRA adapters. A change of full rank is one, too: the change itself beside
an identity, the same up to rounding and somewhat larger than the weights. Embeddings, head and
norms stay as they were, since no adapter could tell of them.

What is trained is kept in float32 and read in the precision of the rest: a step is mostly smaller
than what bfloat16 can tell apart, and would be rounded away.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from instar.train import adapters

_KEY = "base_model.model.{name}.lora_{half}.weight"


def linears(model: Any) -> dict[str, nn.Linear]:
    """What is trained, by name."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }


def choose(model: Any) -> None:
    """Leave nothing but linear layers to be trained."""
    model.requires_grad_(False)
    for module in linears(model).values():
        module.weight = nn.Parameter(module.weight.detach().float())


@torch.no_grad()
def save(model: Any, base: Any, folder: Path, file: str) -> None:
    """The change from the base, in PEFT's folder form."""
    from peft import LoraConfig

    before = linears(base)
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    for name, module in linears(model).items():
        change = (module.weight.float() - before[name].weight.float()).cpu()
        down, up = _factors(change)
        ranks[name] = len(down)
        tensors[_KEY.format(name=name, half="A")] = down
        tensors[_KEY.format(name=name, half="B")] = up
    largest = max(ranks.values())
    config = LoraConfig(
        r=largest,
        lora_alpha=largest,
        rank_pattern={name: rank for name, rank in ranks.items() if rank != largest},
        target_modules=sorted(ranks),
        task_type="CAUSAL_LM",
        inference_mode=True,
        base_model_name_or_path=str(base.config.name_or_path),
    )
    for name, rank in ranks.items():
        # An adapter is applied as alpha / rank of its product.
        tensors[_KEY.format(name=name, half="B")] *= rank / largest
    config.save_pretrained(str(folder))
    adapters.write(tensors, folder / file)


def _factors(change: Tensor) -> tuple[Tensor, Tensor]:
    """(down, up) with the change as their product; one of the two is an identity."""
    outputs, inputs = change.shape
    if inputs <= outputs:
        return torch.eye(inputs), change.contiguous()
    return change.contiguous(), torch.eye(outputs)
