"""What a plain product makes cheaper is the same as what holds all logits.

M trained tokens, D features, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from instar.train import losses
from instar.train.linear import LinearHead, Summary
from instar.train.model import View

M, D, V = 7, 5, 11


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    seed=st.integers(0, 2**31),
    chunk=st.integers(1, 9),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
)
def test_a_linear_head_gives_the_same_values_and_gradients(
    seed: int, chunk: int, temperature: float
) -> None:
    weight_VD, hidden_MD = drawn(seed, V, D), drawn(seed + 1, M, D).requires_grad_()
    targets_M = torch.randint(V, (M,), generator=torch.Generator().manual_seed(seed))
    temperatures_M = drawn(seed + 2, M).exp()
    asked = {"targets_M": targets_M, "temperatures_M": temperatures_M, "chunk": chunk}

    def found(head: losses.Head, *, summed: bool) -> list[Tensor]:
        teacher = losses.Teacher(
            head=head,
            hinted_MD=drawn(seed + 3, M, D),
            temperature=temperature,
        )
        told = teacher.summary(**asked) if summed else None  # type: ignore[arg-type]
        assert (told is not None) == summed
        seen = losses.taught(
            head,
            hidden_MD,
            teacher=told or teacher,
            kind="forward",
            **asked,  # type: ignore[arg-type]
        )
        alone_M = losses.logprobs(head, hidden_MD, **asked)  # type: ignore[arg-type]
        mix_M = torch.linspace(-1, 1, M)
        loss = (mix_M * (seen.logprobs_M + 2 * alone_M) + (1 + mix_M) * seen.divergence_M).sum()
        (grad_MD,) = torch.autograd.grad(loss, [hidden_MD])
        return [seen.logprobs_M, seen.theirs_M, seen.divergence_M, alone_M, grad_MD]

    plain = found(lambda h: h @ weight_VD.T, summed=False)
    summed = found(LinearHead(weight_VD), summed=True)
    for one, other in zip(summed, plain, strict=True):
        # Plain logits are read in float32.
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)
    assert bool((summed[2] > -1e-9).all()), "a KL is never below zero"


def test_a_summary_by_hand() -> None:
    """Logits 0 and ln 3: the second token has 3/4, the mean of 1 and 5 is 4."""
    head = LinearHead(torch.tensor([[1.0, 0.0], [5.0, 1.0]]))
    hidden_MD = torch.tensor([[0.0, 1.0]]) * torch.log(torch.tensor(3.0))
    ones_M, first_M = torch.ones(1), torch.zeros(1, dtype=torch.long)
    found = losses.Teacher(head=head, hinted_MD=hidden_MD).summary(
        targets_M=first_M, temperatures_M=ones_M, chunk=8
    )
    assert isinstance(found, Summary)
    torch.testing.assert_close(found.mean_MD, torch.tensor([[4.0, 0.75]]))
    torch.testing.assert_close(found.logprobs_M, torch.tensor([0.25]).log())
    torch.testing.assert_close(found.entropy_M, torch.tensor([0.5623]), rtol=0, atol=1e-4)


def test_large_logits_do_not_overflow() -> None:
    head = LinearHead(torch.tensor([[1000.0], [-1000.0]]))
    found_M = losses.logprobs(
        head,
        torch.ones(1, 1),
        targets_M=torch.tensor([1]),
        temperatures_M=torch.ones(1),
        chunk=1,
    )
    torch.testing.assert_close(found_M, torch.tensor([-2000.0]))


class _Config:
    final_logit_softcapping: float | None = None


@pytest.mark.parametrize("why", ["capped", "trained", "bias", "half"])
def test_a_head_that_is_more_than_a_product_is_left_alone(why: str) -> None:
    head, config = nn.Linear(D, V, bias=why == "bias"), _Config()
    head.requires_grad_(why == "trained")
    if why == "half":
        head.bfloat16()
    if why == "capped":
        config.final_logit_softcapping = 30.0
    assert View(body=None, lm_head=head, config=config).product is None


def test_a_plain_frozen_head_is_a_product() -> None:
    head = nn.Linear(D, V, bias=False).requires_grad_(False)
    assert View(body=None, lm_head=head, config=_Config()).product is head.weight
