"""The engines that must keep the contract, and the small models they are given.

A new engine is one entry in ENGINES. Its `open` starts it over the folder that `build` made,
with a context of CONTEXT tokens and room for two adapter versions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_engine

from instar.config import FakeEngine, TorchLocalEngine
from instar.protocols import Engine
from instar.text import byte_tokenizer

CONTEXT = 512
MAX_VERSIONS = 2
PRINTABLE = 94
"""The byte tokenizer's first ids are the printable characters of ASCII."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One engine over one model."""

    build: Callable[[Path], Path]
    open: Callable[[Path], AbstractAsyncContextManager[Engine]]
    targets: tuple[str, ...]
    """Modules for the adapters of the tests."""
    tolerance: float | None
    """How far log-probs may be from a recomputation; None where they are made up."""
    cache_block: int | None = 1
    """Tokens that a prefix cache keeps or forgets together; None where hits are not reported."""
    marks: tuple[Any, ...] = ()


def tiny_llama(folder: Path) -> Path:
    """Two layers with grouped queries: the lean path."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,
        bos_token_id=256,
        eos_token_id=257,
    )
    return _save(LlamaForCausalLM, config, folder)


def tiny_qwen3(folder: Path) -> Path:
    """The lean path with norms on queries and keys, biases left out, a tied head."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return _save(Qwen3ForCausalLM, config, folder)


def tiny_gpt2(folder: Path) -> Path:
    """Learned positions and Conv1D weights: the generic path."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=258,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=2048,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=256,
        eos_token_id=257,
    )
    return _save(GPT2LMHeadModel, config, folder)


def embedded(folder: Path) -> Path:
    from instar.backends.embedded import embedded_model

    return embedded_model(Path.home() / ".instar")


def _save(kind: Any, config: Any, folder: Path) -> Path:
    torch.manual_seed(7)
    model = kind(config)
    with torch.no_grad():
        # Replies are printable text, so that stop strings can be found in them.
        model.get_output_embeddings().weight[PRINTABLE:] = 0.0
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def _torch(folder: Path, **changes: Any) -> AbstractAsyncContextManager[Engine]:
    from instar.backends.torch_local import open_engine

    # One thread: small models gain nothing from two, and lose much on a busy machine.
    settings = {
        "context": CONTEXT,
        "max_versions": MAX_VERSIONS,
        "prefill_chunk": 32,
        "threads": 1,
    }
    config = TorchLocalEngine(device="cpu", **{**settings, **changes})
    return open_engine(config, model=folder, name="tiny")


def _fake(folder: Path) -> AbstractAsyncContextManager[Engine]:
    from instar.backends.fake import open_engine

    return open_engine(FakeEngine(context=CONTEXT, delay_ms=1), model=folder, name="tiny")


open_torch = _torch

ENGINES: dict[str, Case] = {
    "fake": Case(build=tiny_llama, open=_fake, targets=("q_proj",), tolerance=None),
    "torch_local": Case(
        build=tiny_llama,
        open=_torch,
        targets=("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"),
        tolerance=1e-4,
    ),
    "torch_local-qwen3": Case(
        build=tiny_qwen3, open=_torch, targets=("k_proj", "gate_proj"), tolerance=1e-4
    ),
    "torch_local-generic": Case(
        build=tiny_gpt2, open=_torch, targets=("c_attn", "c_fc"), tolerance=1e-4
    ),
    "torch_local-embedded": Case(
        build=embedded,
        open=partial(_torch, prefill_chunk=64),
        targets=("q_proj", "v_proj", "down_proj"),
        tolerance=1e-4,
        marks=(pytest.mark.model,),
    ),
    "vllm": Case(
        build=embedded,
        open=vllm_engine.open_started,
        targets=("q_proj", "v_proj", "down_proj"),
        tolerance=vllm_engine.TOLERANCE,
        cache_block=vllm_engine.BLOCK,
        marks=(pytest.mark.model, vllm_engine.needed),
    ),
    "vllm-url": Case(
        build=embedded,
        open=vllm_engine.open_by_url,
        targets=("q_proj", "v_proj", "down_proj"),
        tolerance=vllm_engine.TOLERANCE,
        cache_block=None,
        marks=(pytest.mark.model, vllm_engine.needed),
    ),
}
