"""vLLM with CUDA: the engine's contract and its log-probs against transformers, as JSON.

A plain script for a GPU machine without a network (see pack.sh and unpack.sh):

    export PYTHONPATH=$PWD/src:$HOME/site
    python3 tests/gpu/vllm_h200.py --out results.json

It unpacks the embedded model, compares log-probs for each dtype, then runs tests/contract for
vLLM in the first of them (vLLM's adapters for CUDA are for 16 bits only). A part that fails
is reported, and the rest still runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "contract"))

SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "seed": 3},
    {"temperature": 0.0},
)


TOLERANCES = {"float16": 0.1, "bfloat16": 0.5}
"""Of single log-probs; a GPU adds in another order than the CPU that recomputes them."""


def contract(dtype: str, more: list[str]) -> dict[str, Any]:
    """The contract tests; the last lines tell what failed."""
    env = {**os.environ, "INSTAR_TEST_VLLM_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
    env["INSTAR_TEST_VLLM_DTYPE"] = dtype
    env["INSTAR_TEST_VLLM_TOLERANCE"] = str(TOLERANCES[dtype])
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / "contract"), "-k", "vllm"]
    lines: list[str] = []
    with subprocess.Popen(
        [*command, "--tb=short", "-rfEs", "-v", "-p", "no:cacheprovider", *more],
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        # Shown as they come: a lease may end before the tests do.
        for line in running.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            lines.append(line.rstrip())
    return {"rc": running.returncode, "tail": lines[-60:]}


def logprobs(model: Path, dtype: str) -> dict[str, Any]:
    """Mean and max of |recorded - recomputed| for each setting, all in one batch as well."""
    return asyncio.run(_logprobs(model, dtype))


async def _logprobs(model: Path, dtype: str) -> dict[str, Any]:
    import recomputed
    from tokenizers import Tokenizer
    from vllm_engine import vllm_config

    from instar.backends.vllm import open_engine
    from instar.types import Sampling

    # With CUDA graphs, as in service.
    config = vllm_config(dtype=dtype, python=sys.executable, args=[], context=2048, gpu_memory=0.5)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    samplings = [Sampling(max_tokens=256, **setting) for setting in SETTINGS]
    async with open_engine(config, model=model, name="gpu") as engine:
        info = engine.info
        alone = [await recomputed.sample(engine, tokenizer, one) for one in samplings]
        together = await asyncio.gather(
            *(recomputed.sample(engine, tokenizer, one) for one in samplings)
        )
    reference = recomputed.load_model(model, device="cuda")
    found = {}
    for how, groups in (("alone", alone), ("together", together)):
        for setting, replies in zip(SETTINGS, groups, strict=True):
            gap = recomputed.difference(reference, replies, temperature=setting["temperature"])
            found[f"{how} {setting}"] = asdict(gap)
    return {"device": info.device, "scaled": info.logprobs_scaled, "differences": found}


def versions() -> dict[str, str]:
    import torch
    import transformers
    from vllm import __version__

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    found = {"vllm": __version__, "torch": torch.__version__, "gpu": gpu}
    return {**found, "transformers": transformers.__version__}


def attempt(what: Callable[[], Any]) -> Any:
    try:
        return what()
    except Exception:
        return {"error": traceback.format_exc()[-4000:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dtypes", default="float16,bfloat16")
    parser.add_argument("--parts", default="logprobs,contract")
    parser.add_argument("--out", type=Path, help="also write the JSON here, after each part")
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest, after --")
    options = parser.parse_args()

    from instar.backends.embedded import embedded_model

    model = embedded_model(Path.home() / ".instar")
    results: dict[str, Any] = {"versions": attempt(versions)}

    def note(name: str, found: Any) -> None:
        results[name] = found
        print(json.dumps({name: found}), file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps(results, indent=1))

    dtypes = options.dtypes.split(",")
    if "logprobs" in options.parts:
        for dtype in dtypes:
            note(f"logprobs {dtype}", attempt(partial(logprobs, model, dtype)))
    if "contract" in options.parts:
        first = dtypes[0]
        note(f"contract {first}", attempt(lambda: contract(first, options.pytest)))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
