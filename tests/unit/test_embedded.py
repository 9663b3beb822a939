"""The embedded model: found without importing its package, unpacked once, whole or not at all."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from instar.backends import embedded
from instar.backends.embedded import NAME, embedded_model
from instar.errors import ModelError


def test_a_folder_that_is_there_is_used_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "models" / NAME
    folder.mkdir(parents=True)
    assert embedded_model(tmp_path) == folder
    assert list(folder.iterdir()) == []


def test_a_missing_package_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match="pip install"):
        embedded_model(tmp_path)
    assert not (tmp_path / "models").exists()


def test_an_unreadable_file_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model at all" * 9)
    monkeypatch.setattr(embedded, "_gguf_file", lambda: broken)
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        embedded_model(tmp_path)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [f".{NAME}.lock"]


def test_names_of_tensors() -> None:
    found = [embedded._tensor_name(f"{name}.weight") for name in ("blk.3.attn_q", "token_embd")]
    assert found == ["model.layers.3.self_attn.q_proj.weight", "model.embed_tokens.weight"]


@pytest.mark.model
def test_two_at_once_unpack_it_once(tmp_path: Path) -> None:
    said: list[str] = []
    left = tmp_path / "models" / f".{NAME}-killed"
    left.mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(embedded_model, tmp_path, say=said.append) for _ in range(2)]
        folders = {call.result() for call in calls}
    assert len(folders) == len(said) == 1
    assert not left.exists()
    folder = folders.pop()
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 30
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # Each digit is a token of its own, and a run of spaces stays apart from it.
    assert tokenizer.encode("x  123").tokens == ["x", "ĠĠ", "1", "2", "3"]
    assert tokenizer.encode("<|im_start|>").ids == [1]
