"""The plugin on samplers shaped like those of vLLM's two model runners."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
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


class Rows(NamedTuple):
    """Shaped like vLLM's LogprobsLists."""

    logprob_token_ids: np.ndarray
    logprobs: np.ndarray
    sampled_token_ranks: np.ndarray
    cu_num_generated_tokens: list[int] | None = None

    def slice_request(self, at: int, count: int) -> Rows:
        raise AssertionError("log-probs of a reply are not cut out any more")


def scheduler(outputs: dict[int, list[tuple[str, list[int]]]]) -> Any:
    class Scheduler:
        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            logprobs = model_runner_output.logprobs
            made = {
                client: [
                    SimpleNamespace(
                        request_id=name,
                        new_token_ids=ids,
                        new_logprobs=logprobs.slice_request(0, 1) if logprobs else None,
                    )
                    for name, ids in told
                ]
                for client, told in outputs.items()
            }
            return {client: SimpleNamespace(outputs=found) for client, found in made.items()}

    return Scheduler


def test_a_steps_log_probs_leave_with_its_first_output() -> None:
    """Two clients; one output has no token; rows follow the outputs, not the batch."""
    cls = scheduler({0: [("b", []), ("c", [7]), ("a", [5])], 1: [("d", [9])]})
    vllm_plugin._patch_scheduler(cls)
    vllm_plugin._patch_scheduler(cls)
    values = np.array([[-0.1], [-0.2], [-0.3], [-0.4]])
    found = Rows(values, values, values[:, 0])
    step = SimpleNamespace(logprobs=found, req_id_to_index={"a": 0, "b": 1, "c": 2, "d": 3})
    clients = cls().update_from_output(None, step)
    none, first, second = clients[0].outputs
    assert none.new_logprobs is None and second.new_logprobs is None
    assert first.new_logprobs.logprobs[:, 0].tolist() == [-0.3, -0.1]
    assert clients[1].outputs[0].new_logprobs.logprobs[:, 0].tolist() == [-0.4]


def test_replies_of_several_tokens_keep_all_their_log_probs() -> None:
    cls = scheduler({0: [("b", [7, 8]), ("a", [5])]})
    vllm_plugin._patch_scheduler(cls)
    values = np.array([[-0.1], [-0.2], [-0.3]])
    found = Rows(values, values, values[:, 0], [0, 1])
    step = SimpleNamespace(logprobs=found, req_id_to_index={"a": 0, "b": 1})
    first, _ = cls().update_from_output(None, step)[0].outputs
    assert first.new_logprobs.logprobs[:, 0].tolist() == [-0.2, -0.3, -0.1]


def test_a_step_without_log_probs_is_left_alone() -> None:
    cls = scheduler({0: [("a", [5])]})
    vllm_plugin._patch_scheduler(cls)
    step = SimpleNamespace(logprobs=None, req_id_to_index={"a": 0})
    assert cls().update_from_output(None, step)[0].outputs[0].new_logprobs is None


def adapters() -> Any:
    class Manager:
        def __init__(self) -> None:
            self.told: list[Any] = []

        def set_adapter_mapping(self, mapping: Any) -> None:
            self.told.append(mapping)

    vllm_plugin._patch_adapters(Manager)
    vllm_plugin._patch_adapters(Manager)
    return Manager()


def mapped(*prompts: int, kind: str = "language") -> Any:
    return SimpleNamespace(prompt_mapping=tuple(np.array(prompts, dtype=np.int32)), type=kind)


def test_kernels_are_told_once_that_no_reply_has_an_adapter() -> None:
    manager = adapters()
    steps = [mapped(0, 0), mapped(0, 0, 0), mapped(0), mapped(0, 2), mapped(2), mapped(0), mapped()]
    for step in steps:
        manager.set_adapter_mapping(step)
    assert manager.told == [steps[0], steps[3], steps[4], steps[5]]


def test_each_part_of_a_model_is_told_by_itself() -> None:
    manager = adapters()
    steps = [mapped(0), mapped(0, kind="tower"), mapped(1), mapped(0, kind="tower"), mapped(0)]
    for step in steps:
        manager.set_adapter_mapping(step)
    assert manager.told == [steps[0], steps[1], steps[2], steps[4]]


def test_a_version_that_looks_different_is_left_as_it_is() -> None:
    class Manager: ...

    vllm_plugin._patch_adapters(Manager)
    assert not hasattr(Manager, "set_adapter_mapping")
    assert not vllm_plugin._kernels_go_by_a_flag()
