"""vLLM for the tests: which Python has it, and how it is started on this machine.

INSTAR_TEST_VLLM_PYTHON   a Python that has vLLM; without it these tests are skipped
INSTAR_TEST_VLLM_DTYPE    default float32
INSTAR_TEST_VLLM_ARGS     more engine arguments, default --enforce-eager
"""

from __future__ import annotations

import os
import shlex
from typing import Any

from instar.config import VllmEngine

PYTHON = os.environ.get("INSTAR_TEST_VLLM_PYTHON")
SKIP = "INSTAR_TEST_VLLM_PYTHON names no Python that has vLLM (make test-vllm)"


def vllm_config(**changes: Any) -> VllmEngine:
    """Small enough for a CPU; what only CPUs read does no harm elsewhere."""
    values: dict[str, Any] = {
        "python": PYTHON,
        "dtype": os.environ.get("INSTAR_TEST_VLLM_DTYPE", "float32"),
        "context": 512,
        "max_running": 32,
        "max_versions": 3,
        "max_lora_rank": 16,
        "gpu_memory": 0.2,
        "start_timeout_s": 400,
        "args": shlex.split(os.environ.get("INSTAR_TEST_VLLM_ARGS", "--enforce-eager")),
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    }
    return VllmEngine(**{**values, **changes})
