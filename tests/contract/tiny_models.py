"""Small random models with one token a byte, which a test builds in a moment."""

from __future__ import annotations

import json
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


IMAGE = "<image>"
"""Stands in a prompt of the model below for an image of 28 by 28 pixels."""

SHOWN = ("<fake_token_around_image>", "<global-img>", *[IMAGE] * 4, "<fake_token_around_image>")
"""What its processor makes of that place."""


def tiny_idefics3(folder: Path) -> Path:
    """A model that sees: a small SigLIP, a small Llama, and the files of their processor."""
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    special = ("<|im_start|>", "<|im_end|>", *dict.fromkeys(SHOWN), "<end_of_utterance>")
    tokenizer = byte_tokenizer(special)
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    small |= {"initializer_range": 0.3}
    # Heads of 32, the smallest that vLLM's attention for CPUs has.
    text = {"model_type": "llama", "vocab_size": 262, "num_attention_heads": 2, "pad_token_id": 0}
    text |= {"num_key_value_heads": 1, "max_position_embeddings": 2048, "eos_token_id": 257}
    vision = {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    config = Idefics3Config(
        text_config={**small, **text},
        vision_config={**small, **vision},
        image_token_id=tokenizer.token_to_id(IMAGE),
        scale_factor=1,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    _save(Idefics3ForConditionalGeneration, config, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    size = {"longest_edge": 28}
    files: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "preprocessor_config.json": {
            "image_processor_type": "Idefics3ImageProcessor",
            "do_image_splitting": False,
            "size": size,
            "max_image_size": size,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
        "processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": 4},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def _save(kind: Any, config: Any, folder: Path) -> Path:
    torch.manual_seed(7)
    model = kind(config)
    with torch.no_grad():
        # Replies are printable text, so that stop strings can be found in them.
        model.get_output_embeddings().weight[PRINTABLE:] = 0.0
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
