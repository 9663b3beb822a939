"""The whole config tree: one YAML file, dotted overrides, and where each value came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the tree: unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class TorchLocalEngine(Section):
    """PyTorch in a process of its own: any Hugging Face causal LM folder, on CPU or one GPU."""

    type: Literal["torch_local"] = "torch_local"
    device: str = "auto"
    """`auto` takes CUDA where there is some, else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: float32 on CPUs, the model's own on GPUs."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; by default one a core."""
    context: int | None = Field(None, ge=16)
    """Longest prompt plus reply; by default what the model was trained for."""
    max_running: int = Field(32, ge=1)
    """Replies drawn at once in one batch; more wait their turn."""
    prefill_chunk: int = Field(128, ge=1)
    """Prompt tokens read between two steps of the running batch."""
    cache_gb: float = Field(2.0, ge=0)
    """Memory for the key/value caches of finished turns, kept for the session's next one."""
    max_versions: int = Field(3, ge=1)
    """Adapter versions resident beside the base."""


class VllmEngine(Section):
    """A vLLM server: started and watched by instar, or one that runs already (`url`)."""

    type: Literal["vllm"] = "vllm"
    url: str | None = None
    """Address of a running server, such as http://127.0.0.1:8000; by default one is started."""
    python: str | None = None
    """The Python that has vLLM installed; by default the one that runs instar."""
    port: int | None = None
    """Port of the started server; by default a free one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    context: int | None = Field(None, ge=16)
    gpu_memory: float = Field(0.85, gt=0, le=1)
    """Share of the GPU's memory that vLLM may take."""
    max_running: int = Field(256, ge=1)
    max_versions: int = Field(4, ge=1)
    """Adapter versions resident at once."""
    max_lora_rank: int = Field(64, ge=1)
    start_timeout_s: float = Field(600, gt=0)
    args: list[str] = Field(default_factory=list)
    """More arguments for `vllm serve`, as they stand."""
    env: dict[str, str] = Field(default_factory=dict)
    """More environment variables for the started server."""


class FakeEngine(Section):
    """A scripted engine for tests and for trying the API without a model."""

    type: Literal["fake"] = "fake"
    script: Path | None = None
    """Replies in order, one JSON object a line: text, tool_calls, reasoning."""
    context: int = Field(65536, ge=16)
    delay_ms: float = Field(0.0, ge=0)
    """Pause before each piece."""
    piece_tokens: int = Field(4, ge=1)
    """Tokens a piece."""


EngineConfig = Annotated[TorchLocalEngine | VllmEngine | FakeEngine, Field(discriminator="type")]
