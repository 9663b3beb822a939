"""vLLM for the tests: which Python has it, and how it is started on this machine.

INSTAR_TEST_VLLM_PYTHON      a Python that has vLLM; without it these tests are left out
INSTAR_TEST_VLLM_DTYPE       default float32
INSTAR_TEST_VLLM_ARGS        more engine arguments, default --enforce-eager
INSTAR_TEST_VLLM_TOLERANCE   how far log-probs may be from transformers, default 0.001
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from instar.backends.vllm import VersionedEngine, open_engine
from instar.backends.vllm_plugin import SWITCH
from instar.backends.vllm_process import write_site
from instar.config import VllmEngine

PYTHON = os.environ.get("INSTAR_TEST_VLLM_PYTHON")
TOLERANCE = float(os.environ.get("INSTAR_TEST_VLLM_TOLERANCE", "0.001"))
BLOCK = 128
"""vLLM's blocks hold 16 tokens on GPUs and 128 on CPUs."""


def vllm_config(**changes: Any) -> VllmEngine:
    """Small enough for a CPU; what only CPUs read does no harm elsewhere."""
    values: dict[str, Any] = {
        "python": PYTHON,
        "dtype": os.environ.get("INSTAR_TEST_VLLM_DTYPE", "float32"),
        "context": 512,
        "max_running": 32,
        "max_versions": 2,
        "max_lora_rank": 16,
        "gpu_memory": 0.2,
        "args": shlex.split(os.environ.get("INSTAR_TEST_VLLM_ARGS", "--enforce-eager")),
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    }
    return VllmEngine(**{**values, **changes})


@asynccontextmanager
async def open_started(folder: Path) -> AsyncIterator[VersionedEngine]:
    async with open_engine(vllm_config(), model=folder, name="test") as engine:
        yield engine


@asynccontextmanager
async def open_by_url(folder: Path) -> AsyncIterator[VersionedEngine]:
    """An engine on a server that somebody else started, with instar's plugin."""
    async with (
        served(folder, plugin="1") as config,
        open_engine(config, model=folder, name="test") as engine,
    ):
        yield engine


@asynccontextmanager
async def served(folder: Path, *, plugin: str) -> AsyncIterator[VllmEngine]:
    """vLLM's own server as a person would start it, and the config that finds it."""
    config, key, port = vllm_config(), secrets.token_hex(8), free_port()
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--port", str(port), "--api-key", key, "--dtype", config.dtype, *config.args]
    command += ["--max-model-len", "512", "--gpu-memory-utilization", "0.2"]
    # Many slots: this server forgets no adapter, and on CPUs a full table spoils the base.
    command += ["--enable-lora", "--max-lora-rank", "16", "--max-loras", "12"]
    with tempfile.TemporaryDirectory() as work:
        process = start(command, Path(work), {**config.env, SWITCH: plugin})
        try:
            await wait_for(f"http://127.0.0.1:{port}/health", process, Path(work, "log"))
            yield VllmEngine(url=f"http://:{key}@127.0.0.1:{port}", max_versions=2)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.wait)


def start(command: list[str], work: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    write_site(work / "site")
    env = {**os.environ, **more, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    env["PYTHONPATH"] = f"{work / 'site'}:{env.get('PYTHONPATH', '')}".rstrip(":")
    with (work / "log").open("wb") as out:
        return subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)


async def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    async with httpx.AsyncClient() as client:
        while process.poll() is None:
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx.HTTPError:
                await asyncio.sleep(0.5)
    raise AssertionError(await asyncio.to_thread(lambda: log.read_text()[-3000:]))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
