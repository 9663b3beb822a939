"""The engines that must keep the contract, and the small models they are given.

A new engine is one entry in ENGINES. Its `open` starts it over the folder that `build` made,
with a context of CONTEXT tokens and room for two adapter versions. vLLM is among them only where
there is one (`make test-vllm`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import vllm_engine
from tiny_models import tiny_gpt2, tiny_llama, tiny_qwen3

from instar.config import FakeEngine, TorchLocalEngine
from instar.protocols import Engine

CONTEXT = 512
MAX_VERSIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One engine over one model."""

    build: Callable[[Path], Path]
    open: Callable[[Path], AbstractAsyncContextManager[Engine]]
    targets: tuple[str, ...]
    """Modules for the adapters of the tests."""
    tolerance: float | None
    """How far log-probs may be from a recomputation; None where they are made up."""
    cache_block: int | None = 1
    """Tokens that a prefix cache keeps or forgets together; None where hits are not reported."""
    marks: tuple[Any, ...] = ()


def embedded(folder: Path) -> Path:
    from instar.backends.embedded import embedded_model

    return embedded_model(Path.home() / ".instar")


def open_torch(folder: Path, **changes: Any) -> AbstractAsyncContextManager[Engine]:
    from instar.backends.torch_local import open_engine

    # One thread: small models gain nothing from two, and lose much on a busy machine.
    settings = {
        "context": CONTEXT,
        "max_versions": MAX_VERSIONS,
        "prefill_chunk": 32,
        "threads": 1,
    }
    config = TorchLocalEngine(device="cpu", **{**settings, **changes})
    return open_engine(config, model=folder, name="tiny")


def _fake(folder: Path) -> AbstractAsyncContextManager[Engine]:
    from instar.backends.fake import open_engine

    return open_engine(FakeEngine(context=CONTEXT, delay_ms=1), model=folder, name="tiny")


ENGINES: dict[str, Case] = {
    "fake": Case(build=tiny_llama, open=_fake, targets=("q_proj",), tolerance=None),
    "torch_local": Case(
        build=tiny_llama,
        open=open_torch,
        targets=("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"),
        tolerance=1e-4,
    ),
    "torch_local-qwen3": Case(
        build=tiny_qwen3, open=open_torch, targets=("k_proj", "gate_proj"), tolerance=1e-4
    ),
    "torch_local-generic": Case(
        build=tiny_gpt2, open=open_torch, targets=("c_attn", "c_fc"), tolerance=1e-4
    ),
    "torch_local-embedded": Case(
        build=embedded,
        open=partial(open_torch, prefill_chunk=64),
        targets=("q_proj", "v_proj", "down_proj"),
        tolerance=1e-4,
        marks=(pytest.mark.model,),
    ),
}
if vllm_engine.PYTHON is not None:
    ENGINES |= {
        "vllm": Case(
            build=embedded,
            open=vllm_engine.open_started,
            targets=("q_proj", "v_proj", "down_proj"),
            tolerance=vllm_engine.TOLERANCE,
            cache_block=vllm_engine.BLOCK,
            marks=(pytest.mark.model,),
        ),
        "vllm-url": Case(
            build=embedded,
            open=vllm_engine.open_by_url,
            targets=("q_proj", "v_proj", "down_proj"),
            tolerance=vllm_engine.TOLERANCE,
            cache_block=None,
            marks=(pytest.mark.model,),
        ),
    }

MODELS = [name for name, case in ENGINES.items() if case.tolerance is not None]
"""Engines whose replies a model draws."""
LOCAL = [name for name in ENGINES if name.startswith("torch_local")]
STARTED = [name for name in ENGINES if name in (*LOCAL, "vllm")]
"""Engines in a process of ours, which is started again when it dies."""


def engine_params(names: Iterable[str]) -> list[Any]:
    """These engines as parameters of the fixture `subject`."""
    return [pytest.param(name, marks=ENGINES[name].marks) for name in names]


def only(names: Iterable[str]) -> pytest.MarkDecorator:
    """Asks a test of these engines alone."""
    return pytest.mark.parametrize("subject", engine_params(names), indirect=True)
