"""Fused kernels stay with the model they were given to."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from instar.train.fused import confine


class Norm:
    pass


class FusedNorm:
    pass


def rotate(q: torch.Tensor, by: int) -> str:
    return f"plain {by}"


def fused_rotate(q: torch.Tensor, by: int) -> str:
    return f"fused {by}"


def test_other_models_keep_what_they_were_made_of() -> None:
    module = SimpleNamespace(Norm=Norm, rotate=rotate, other=1)
    plain = dict(vars(module))
    module.Norm, module.rotate = FusedNorm, fused_rotate
    confine(module, plain)
    on_gpu = SimpleNamespace(is_cuda=True)
    assert module.Norm is Norm
    assert module.rotate(torch.ones(1), by=2) == "plain 2"
    assert module.rotate(on_gpu, by=2) == "fused 2"
    assert module.other == 1


def test_two_models_in_one_process_change_nothing_more() -> None:
    module = SimpleNamespace(rotate=rotate)
    for _ in range(2):
        plain = dict(vars(module))
        module.rotate = fused_rotate
        confine(module, plain)
    assert module.rotate(torch.ones(1), by=3) == "plain 3"
    assert module.rotate(SimpleNamespace(is_cuda=True), by=3) == "fused 3"
