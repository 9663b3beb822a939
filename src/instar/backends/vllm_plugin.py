"""A vLLM plugin: report each token's log-prob as it was sampled, over the full vocabulary.

vLLM offers log-probs of the raw logits (temperature ignored) or of the truncated distribution
(after top_k and top_p). Training needs neither: it needs log_softmax(logits / temperature),
and the unscaled distribution at temperature 0. This plugin changes what the samplers of vLLM
hand to the computation of the log-probs, and nothing else.

vLLM loads it in each of its processes through the entry point `vllm.general_plugins`; it acts
only where INSTAR_VLLM_LOGPROBS is set, so that other uses of vLLM in the same environment
stay as they are. A vLLM whose samplers look different is an error, never a silent fallback.

Where it is set to `together`, as for the server that instar starts itself, the log-probs of a
step also leave the engine in one piece, with the step's first output. By default each reply's
are cut out and packed by themselves, which with hundreds of replies takes as long as the model.
There, on a GPU, vLLM also no longer tells its kernels at each step that no reply has an adapter.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

SWITCH = "INSTAR_VLLM_LOGPROBS"
"""Set to 1 in the environment of a vLLM server that instar is to record from."""
TOGETHER = "together"
"""The switch's value for a server that reads a step's log-probs off its first output."""

_GREEDY = 1e-5
"""vLLM takes temperatures below this for greedy sampling."""

_V2_SAMPLER = "vllm.v1.worker.gpu.sample.sampler"
_V2_COMPUTE = ("compute_topk_logprobs", "compute_topk_scores")
"""What the sampler of model runner V2 calls with the logits; the name depends on the version."""


_ADAPTERS = "vllm.lora.model_manager"
_ADAPTER_KERNELS = "vllm.lora.ops.triton_ops.lora_kernel_metadata"


def register() -> None:
    """Entry point for vLLM; may be called more than once in a process."""
    switch = os.environ.get(SWITCH)
    if switch not in ("1", TOGETHER):
        return
    from vllm.triton_utils import HAS_TRITON
    from vllm.v1.sample import sampler

    _patch_v1(sampler.Sampler)
    # Model runner V2 is written in Triton: it is never used, nor importable, without.
    if HAS_TRITON and _exists(_V2_SAMPLER):
        _patch_v2(importlib.import_module(_V2_SAMPLER))
    if switch == TOGETHER:
        from vllm.platforms import current_platform
        from vllm.v1.core.sched.scheduler import Scheduler

        _patch_scheduler(Scheduler)
        if current_platform.is_cuda() and _kernels_go_by_a_flag():
            _patch_adapters(importlib.import_module(_ADAPTERS).LoRAModelManager)


def scaled(logits_BV: Any, temperature_B: Any) -> Any:
    """Logits / temperature in float32; rows of greedy requests stay unscaled."""
    divisor_B = temperature_B.masked_fill(temperature_B < _GREEDY, 1.0)
    return logits_BV.float() / divisor_B.unsqueeze(-1)


def _patch_v1(cls: Any) -> None:
    """Model runner V1: `forward` takes the log-probs of the raw logits with compute_logprobs."""
    if "_instar" in vars(cls):
        return
    _demand(cls, "forward", "compute_logprobs")
    forward: Callable[..., Any] = cls.forward
    compute: Callable[[Any], Any] = cls.compute_logprobs

    @functools.wraps(forward)
    def wrapper(self: Any, logits: Any, sampling_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        temperature_B = sampling_metadata.temperature
        if temperature_B is None:  # Every request of this batch is greedy.
            return forward(self, logits, sampling_metadata, *args, **kwargs)
        self.compute_logprobs = lambda logits_BV: compute(scaled(logits_BV, temperature_B))
        try:
            return forward(self, logits, sampling_metadata, *args, **kwargs)
        finally:
            del self.compute_logprobs

    cls.forward, cls._instar = wrapper, True


def _patch_v2(module: Any) -> None:
    """Model runner V2: `__call__` hands the raw logits to a function of its module."""
    cls = module.Sampler
    if "_instar" in vars(cls):
        return
    _demand(cls, "__call__", "sample")
    name = next((name for name in _V2_COMPUTE if hasattr(module, name)), "")
    if not name:
        raise _unknown(module.__name__, " or ".join(_V2_COMPUTE))
    call: Callable[..., Any] = cls.__call__
    compute: Callable[..., Any] = getattr(module, name)
    temperatures: list[Any] = []

    @functools.wraps(call)
    def wrapper(self: Any, logits: Any, input_batch: Any) -> Any:
        states = self.sampling_states
        values = states.temperature.np[input_batch.idx_mapping_np]
        plain = bool(((values < _GREEDY) | (values == 1.0)).all())
        temperature_B = None if plain else states.temperature.gpu[input_batch.expanded_idx_mapping]
        temperatures.append(temperature_B)
        try:
            return call(self, logits, input_batch)
        finally:
            temperatures.pop()

    @functools.wraps(compute)
    def compute_scaled(logits: Any, *args: Any, **kwargs: Any) -> Any:
        if temperatures and temperatures[-1] is not None:
            logits = scaled(logits, temperatures[-1])
        return compute(logits, *args, **kwargs)

    setattr(module, name, compute_scaled)
    cls.__call__, cls._instar = wrapper, True


class _Uncut:
    """Stands in for the log-probs of a step while outputs are made: none gets its own."""

    def slice_request(self, *at: int) -> None:
        return None


def _patch_scheduler(cls: Any) -> None:
    """Its `update_from_output` makes the outputs of a step, which may go to several clients."""
    if "_instar" in vars(cls):
        return
    _demand(cls, "update_from_output")
    update: Callable[..., dict[int, Any]] = cls.update_from_output

    @functools.wraps(update)
    def wrapper(self: Any, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        found = model_runner_output.logprobs
        if found is None:
            return update(self, scheduler_output, model_runner_output)
        model_runner_output.logprobs = _Uncut()
        clients = update(self, scheduler_output, model_runner_output)
        for client in clients.values():
            sampled = [one for one in client.outputs if one.new_token_ids]
            if sampled:
                rows = _rows(found, model_runner_output.req_id_to_index, sampled)
                sampled[0].new_logprobs = type(found)(*(part[rows] for part in found[:3]), None)
        return clients

    cls.update_from_output, cls._instar = wrapper, True


def _patch_adapters(cls: Any) -> None:
    """Its `set_adapter_mapping` is told at each step which token belongs to which adapter.

    Whenever the batch has changed it goes through thousands of tokens one by one and waits for the
    GPU, also where none has an adapter and none had one before. On a GPU nothing changes then: the
    kernels go by one flag for all. On a CPU they read the whole mapping, so there it must be told.
    """
    # Only speed hangs on this: a version that looks different is left as it is.
    if "_instar" in vars(cls) or not hasattr(cls, "set_adapter_mapping"):
        return
    tell: Callable[..., None] = cls.set_adapter_mapping

    @functools.wraps(tell)
    def wrapper(self: Any, mapping: Any) -> None:
        # A model with an eye has a mapping of its own for that.
        bare, kind = not any(mapping.prompt_mapping), getattr(mapping, "type", None)
        told = self.__dict__.setdefault("_instar_bare", set())
        if bare and kind in told:
            return
        tell(self, mapping)
        (told.add if bare else told.discard)(kind)

    cls.set_adapter_mapping, cls._instar = wrapper, True


def _rows(found: Any, index: dict[str, int], outputs: list[Any]) -> list[int]:
    """Where the log-probs of each new token are, output after output."""
    starts = found.cu_num_generated_tokens
    rows: list[int] = []
    for one in outputs:
        at = index[one.request_id]
        first = at if starts is None else starts[at]
        rows.extend(range(first, first + len(one.new_token_ids)))
    return rows


def _kernels_go_by_a_flag() -> bool:
    """Whether "no reply has an adapter" is one flag for them, whatever else they were told."""
    if not _exists(_ADAPTERS) or not _exists(_ADAPTER_KERNELS):
        return False
    meta = getattr(importlib.import_module(_ADAPTER_KERNELS), "LoRAKernelMeta", None)
    return "no_lora_flag_cpu" in getattr(meta, "__annotations__", {})


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _demand(cls: Any, *names: str) -> None:
    for name in names:
        if not callable(getattr(cls, name, None)):
            raise _unknown(f"{cls.__module__}.{cls.__name__}", name)


def _unknown(where: str, what: str) -> RuntimeError:
    import vllm

    return RuntimeError(
        f"instar's plugin found no {what} in {where} of vLLM {vllm.__version__}, so it cannot "
        "make this version report log-probs at the sampling temperature. Versions 0.24 and "
        "0.32 are known to work: install one of them."
    )
