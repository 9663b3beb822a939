"""The lean path against transformers' own modules, over batches that change all the time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from instar.backends.torch_llama import fits
from instar.backends.torch_model import Model, Work, open_model
from instar.threads import at_most

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL)),
    "llama-tied": (LlamaForCausalLM, LlamaConfig(**SMALL, tie_word_embeddings=True)),
    "llama-biased": (LlamaForCausalLM, LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True)),
    "llama3-rope": (LlamaForCausalLM, LlamaConfig(**SMALL, rope_parameters=LLAMA3)),
    "mistral": (MistralForCausalLM, MistralConfig(**SMALL, sliding_window=None)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SMALL)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SMALL, head_dim=16)),
}


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fresh memory holds no numbers, so that whatever reads it shows."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small products gain nothing from more, and wait for each other on a busy machine."""
    with at_most(1):
        yield


@pytest.fixture(params=MODELS, scope="module")
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, Any]:
    kind, config = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(3)
    reference = kind(config)
    with torch.no_grad():
        for name, value in reference.named_parameters():
            if name.endswith("bias") or "norm" in name:
                value.add_(torch.randn_like(value) * 0.2)
    reference.save_pretrained(folder)
    with torch.inference_mode():
        model = open_model(folder, device="cpu", dtype="auto", context=None)
    assert model.path == "lean"
    return model, reference.eval()


@torch.inference_mode()
def test_a_changing_batch_gives_the_logits_of_each_sequence_alone(pair: tuple[Model, Any]) -> None:
    model, reference = pair
    random = torch.Generator().manual_seed(5)

    def tokens(count: int) -> list[int]:
        return torch.randint(0, 97, (count,), generator=random).tolist()

    running: dict[Any, list[int]] = {}
    waiting = [tokens(count) for count in (3, 140, 1, 60, 127, 20)]
    with poisoned_memory():
        for step in range(40):
            work = []
            for memory, ids in running.items():
                ids += (new := tokens(1))
                work.append(Work(memory=memory, ids=new, decoding=True))
            if step % 4 == 0 and waiting:
                prompt = waiting.pop()
                memory = model.begin(None, shared=0, length=len(prompt))
                if len(prompt) > 50:
                    first = Work(memory=memory, ids=prompt[:50], decoding=False, wanted=False)
                    model.forward("base", model.base, [first])
                rest = prompt[memory.length :]
                work.append(Work(memory=memory, ids=rest, decoding=False))
                running[memory] = prompt
            logits = model.forward("base", model.base, work)
            for item, row in zip(work, logits, strict=True):
                expected = reference(torch.tensor([running[item.memory]])).logits[0, -1]
                assert torch.allclose(row, expected, atol=2e-4), step
            if step % 9 == 8:
                leaving = list(running)[step % len(running)]
                del running[leaving]
                model.release(leaving)


@torch.inference_mode()
def test_a_copied_beginning_goes_on_like_its_source(pair: tuple[Model, Any]) -> None:
    model, reference = pair
    ids = list(range(40))
    with poisoned_memory():
        memory = model.begin(None, shared=0, length=40)
        model.forward("base", model.base, [Work(memory=memory, ids=ids, decoding=False)])
        kept = model.keep(memory)
        assert kept.nbytes == model.kept_bytes(memory)
        model.release(memory)
        other = model.begin(kept, shared=25, length=31)
        turned = [*ids[:25], 90, 91, 92, 93, 94, 95]
        logits = model.forward(
            "base", model.base, [Work(memory=other, ids=turned[25:], decoding=False)]
        )
    expected = reference(torch.tensor([turned])).logits[0, -1]
    assert torch.allclose(logits[0], expected, atol=2e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gpt_neox"},
        {"hidden_act": "gelu"},
        {"model_type": "mistral", "sliding_window": 64},
        {"model_type": "qwen2", "use_sliding_window": True},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        {"quantization_config": {"bits": 4}},
    ],
)
def test_what_the_lean_path_would_get_wrong_is_left_to_transformers(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    plain = json.loads(LlamaConfig(**SMALL).to_json_string())
    assert fits(plain, tmp_path)
    assert not fits({**plain, **changes}, tmp_path)
