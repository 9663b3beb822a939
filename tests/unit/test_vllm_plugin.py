"""The plugin on samplers shaped like those of vLLM's two model runners."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from instar.backends import vllm_plugin

LOGITS_BV = torch.tensor([[2.0, 1.0, 0.0], [0.5, 3.0, -1.0]])


def v1_sampler() -> Any:
    class Sampler(torch.nn.Module):
        def forward(self, logits: Any, sampling_metadata: Any, predict: bool = False) -> Any:
            return self.compute_logprobs(logits)

        @staticmethod
        def compute_logprobs(logits: Any) -> Any:
            return logits.log_softmax(-1)

    return Sampler


def v2_module(name: str) -> Any:
    module = ModuleType("sampler")

    class Sampler:
        def __init__(self, temperatures: list[float]) -> None:
            values = torch.tensor(temperatures)
            states = SimpleNamespace(np=values.numpy(), gpu=values)
            self.sampling_states = SimpleNamespace(temperature=states)

        def __call__(self, logits: Any, input_batch: Any) -> Any:
            return getattr(module, name)(logits, 0, expanded=True)

        def sample(self) -> None: ...

    def compute(logits: Any, num_logprobs: int, *, expanded: bool) -> Any:
        return logits.log_softmax(-1)

    vars(module).update({"Sampler": Sampler, name: compute})
    return module


def wanted(*temperatures: float) -> torch.Tensor:
    rows = [
        (row / (t or 1.0)).log_softmax(-1) for row, t in zip(LOGITS_BV, temperatures, strict=True)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("temperatures", [(0.5, 2.0), (0.0, 0.7), (1.0, 1.0), (0.0, 0.0)])
def test_runner_v1_reports_at_the_sampling_temperature(temperatures: tuple[float, float]) -> None:
    cls = v1_sampler()
    vllm_plugin._patch_v1(cls)
    vllm_plugin._patch_v1(cls)  # vLLM may load a plugin twice.
    sampler = cls()
    all_greedy = not any(temperatures)
    values_B = None if all_greedy else torch.tensor(temperatures)
    found = sampler(LOGITS_BV.clone(), SimpleNamespace(temperature=values_B))
    torch.testing.assert_close(found, wanted(*temperatures))
    # Log-probs of prompts, which vLLM takes with the same function, stay as they are.
    torch.testing.assert_close(sampler.compute_logprobs(LOGITS_BV), wanted(1.0, 1.0))


@pytest.mark.parametrize("name", ["compute_topk_logprobs", "compute_topk_scores"])
@pytest.mark.parametrize("temperatures", [(0.5, 2.0), (0.0, 0.7), (1.0, 1.0), (0.0, 1.0)])
def test_runner_v2_reports_at_the_sampling_temperature(
    name: str, temperatures: tuple[float, float]
) -> None:
    module = v2_module(name)
    vllm_plugin._patch_v2(module)
    vllm_plugin._patch_v2(module)
    # The batch holds the second request first, as after others have left.
    order = torch.tensor([1, 0])
    batch = SimpleNamespace(idx_mapping_np=order.numpy(), expanded_idx_mapping=order)
    logits = LOGITS_BV.clone()
    found = module.Sampler([temperatures[1], temperatures[0]])(logits, batch)
    torch.testing.assert_close(found, wanted(*temperatures))
    torch.testing.assert_close(logits, LOGITS_BV)


def test_half_precision_logits_are_scaled_in_float32() -> None:
    scaled = vllm_plugin.scaled(LOGITS_BV.bfloat16(), torch.tensor([0.3, 0.0]))
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled[1], LOGITS_BV[1])


def test_without_its_switch_the_plugin_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm_plugin.SWITCH, raising=False)
    vllm_plugin.register()  # vLLM is not even imported.


def test_an_unknown_sampler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("vllm")
    fake.__version__ = "9.9"  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "vllm", fake)
    with pytest.raises(RuntimeError, match=r"no compute_logprobs .* vLLM 9\.9"):
        vllm_plugin._patch_v1(type("Sampler", (), {"forward": lambda self: None}))
    module = v2_module("compute_something_new")
    with pytest.raises(RuntimeError, match="compute_topk_logprobs or compute_topk_scores"):
        vllm_plugin._patch_v2(module)
