"""Adapters from PEFT's folder form: what is read, what is refused and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from instar.backends.torch_lora import Change, read_adapter
from instar.errors import ModelError

MODULE = "model.layers.0.self_attn.q_proj"


def write(folder: Path, tensors: dict[str, Tensor] | None = None, **config: Any) -> Path:
    values = {"peft_type": "LORA", "lora_alpha": 8, "r": 2, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(values))
    save_file(tensors if tensors is not None else pair(), folder / "adapter_model.safetensors")
    return folder


def pair(*, down: Tensor | None = None) -> dict[str, Tensor]:
    return {
        f"base_model.model.{MODULE}.lora_A.weight": torch.ones(2, 3) if down is None else down,
        f"base_model.model.{MODULE}.lora_B.weight": torch.ones(4, 2),
    }


def test_alpha_over_rank_scales_the_product(tmp_path: Path) -> None:
    change = read_adapter(write(tmp_path))[MODULE]
    weight = torch.full((4, 3), 0.5)
    change.add_to(weight)
    # 8 / 2 times the product, which is 2 everywhere.
    assert weight.tolist() == [[8.5] * 3] * 4


def test_rank_stabilised_adapters_divide_by_the_root(tmp_path: Path) -> None:
    change = read_adapter(write(tmp_path, use_rslora=True))[MODULE]
    assert change.scale == pytest.approx(8 / 2**0.5)


def test_a_small_change_to_a_bfloat16_weight_is_rounded_once() -> None:
    down, up = torch.full((1, 1), 0.03), torch.full((1, 1), 0.1)
    weight = torch.ones(1, 1, dtype=torch.bfloat16)
    Change(down=down, up=up, scale=1.0).add_to(weight)
    assert weight.item() == torch.tensor(1.003).bfloat16().item()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
        ({"bias": "all"}, "bias"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        read_adapter(write(tmp_path, **config))


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({}, "no tensors"),
        ({"base_model.model.lm_head.weight": torch.ones(2, 2)}, "lm_head"),
        (dict(list(pair().items())[:1]), "lora_B"),
        (pair(down=torch.full((2, 3), float("nan"))), "finite"),
        (pair(down=torch.ones(2)), "shape"),
    ],
)
def test_odd_tensors_are_refused(tmp_path: Path, tensors: dict[str, Tensor], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        read_adapter(write(tmp_path, tensors))


def test_a_broken_config_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        read_adapter(tmp_path)
