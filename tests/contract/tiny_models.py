"""Small random models with one token a byte, which a test builds in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from instar.text import byte_tokenizer

PRINTABLE = 94
"""The byte tokenizer's first ids are the printable characters of ASCII."""


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


def _save(kind: Any, config: Any, folder: Path) -> Path:
    torch.manual_seed(7)
    model = kind(config)
    with torch.no_grad():
        # Replies are printable text, so that stop strings can be found in them.
        model.get_output_embeddings().weight[PRINTABLE:] = 0.0
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
