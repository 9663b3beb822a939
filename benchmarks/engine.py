"""What the local engine gains over transformers' own generation, in one run on one machine.

    python benchmarks/engine.py [--model FOLDER] [--tokens 64] [--rounds 3] [--json]

    one stream       tokens a second of one greedy reply, against `generate`
    many streams     tokens a second of 8 replies at once, against 8 calls of `generate` in turn,
                     and against transformers' continuous batching (`generate_batch`)
    next turn        the first token after a history of 2,000 tokens that was answered before,
                     against the same length never seen

Each figure is the best of the rounds; the rounds of both sides alternate, so that other load on
the machine meets both. Prompts and settings are the same, reading the prompt is counted in.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from instar.backends.embedded import embedded_model
from instar.backends.torch_local import open_engine
from instar.config import TorchLocalEngine
from instar.protocols import Engine
from instar.types import Request, Sampling

STREAMS = 8
HISTORY = 2000
QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers of Europe and say where they end.",
    "Write a short poem about tea.",
    "How do I boil an egg?",
    "What is the difference between a list and a tuple in Python?",
    "Give me a name for a grey cat.",
    "Explain how a bicycle stays upright.",
    "What should I pack for a week in the mountains?",
)
TARGETS = {"one_stream": 1.5, "many_streams": 5.0, "next_turn": 8.0}


def main() -> None:
    args = _arguments()
    folder = args.model or embedded_model(Path.home() / ".instar", say=print)
    found = asyncio.run(_measure(folder, args))
    print(json.dumps(found)) if args.json else _show(found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, help="a model folder; default: the embedded one")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="CPU threads of both sides; default: all")
    parser.add_argument("--tokens", type=int, default=64, help="tokens a reply")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


async def _measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    threads = args.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [_prompt(tokenizer, question) for question in QUESTIONS[:STREAMS]]
    reference = Reference(folder, args.device, args.tokens)
    config = TorchLocalEngine(device=args.device, threads=threads)
    async with open_engine(config, model=folder, name="model") as engine:
        ours = Ours(engine, args.tokens)
        best = Best()
        for round in range(args.rounds):
            print(f"round {round + 1} of {args.rounds}", file=sys.stderr)
            best.take("generate_one", reference.one(prompts[0]))
            best.take("engine_one", await ours.together(prompts[:1]))
            best.take("generate_turns", reference.in_turn(prompts))
            best.take("engine_many", await ours.together(prompts))
            best.take("generate_batch", reference.batch(prompts))
            cold, warm = await ours.next_turn(tokenizer, round)
            best.take("first_cold_s", cold, better=min)
            best.take("first_warm_s", warm, better=min)
        return _summary(best.values, engine, threads)


def _summary(best: dict[str, float], engine: Engine, threads: int) -> dict[str, Any]:
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": threads,
            "device": engine.info.device,
            "torch": torch.__version__,
            "load": os.getloadavg()[0],
        },
        "tokens_per_s": {key: value for key, value in best.items() if not key.endswith("_s")},
        "seconds": {key: value for key, value in best.items() if key.endswith("_s")},
        "ratios": {
            "one_stream": best["engine_one"] / best["generate_one"],
            "many_streams": best["engine_many"] / best["generate_turns"],
            "next_turn": best["first_cold_s"] / best["first_warm_s"],
            "over_generate_batch": best["engine_many"] / best["generate_batch"],
        },
        "targets": TARGETS,
    }


class Best:
    """The best value of each figure over the rounds."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def take(self, name: str, value: float, better: Callable[..., float] = max) -> None:
        self.values[name] = better(self.values.get(name, value), value)


class Reference:
    """transformers on the same model."""

    def __init__(self, folder: Path, device: str, tokens: int) -> None:
        from transformers import AutoModelForCausalLM

        cuda = device != "cpu" and torch.cuda.is_available()
        dtype = "auto" if cuda else torch.float32
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self._model = model.to("cuda" if cuda else "cpu").eval()
        self._model.generation_config.eos_token_id = None
        self._tokens = tokens

    def one(self, prompt: list[int]) -> float:
        return self.in_turn([prompt])

    def in_turn(self, prompts: list[list[int]]) -> float:
        start = time.perf_counter()
        for prompt in prompts:
            ids = torch.tensor([prompt], device=self._model.device)
            with torch.inference_mode():
                self._model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=self._tokens,
                    do_sample=False,
                    pad_token_id=0,
                )
        return len(prompts) * self._tokens / (time.perf_counter() - start)

    def batch(self, prompts: list[list[int]]) -> float:
        """Continuous batching; its blocks are sized for this load, as its defaults fill memory."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        settings = GenerationConfig(
            max_new_tokens=self._tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        batching = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=512)
        start = time.perf_counter()
        out = self._model.generate_batch(
            prompts, generation_config=settings, continuous_batching_config=batching
        )
        drawn = sum(len(one.generated_tokens) for one in out.values())
        return drawn / (time.perf_counter() - start)


class Ours:
    """The engine, asked through its protocol."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        self._engine = engine
        self._tokens = tokens
        self._asked = 0

    async def together(self, prompts: list[list[int]]) -> float:
        start = time.perf_counter()
        replies = await asyncio.gather(*(self._reply(prompt) for prompt in prompts))
        return sum(len(ids) for ids, _ in replies) / (time.perf_counter() - start)

    async def next_turn(self, tokenizer: Tokenizer, round: int) -> tuple[float, float]:
        """Seconds to the first token of a second turn: nothing cached, and all of it."""
        words = " ".join(f"{word} {round}" for word in QUESTIONS * 60)
        history = tokenizer.encode(f"{round}: {words}", add_special_tokens=False).ids[:HISTORY]
        after = _prompt(tokenizer, "And what follows from that?")
        _, cold = await self._reply([*history, *after], tokens=1)
        replied, _ = await self._reply(history, tokens=8)
        _, warm = await self._reply([*history, *replied, *after], tokens=1)
        return cold, warm

    async def _reply(self, prompt: list[int], tokens: int | None = None) -> tuple[list[int], float]:
        self._asked += 1
        sampling = Sampling(temperature=0.0, max_tokens=tokens or self._tokens)
        request = Request(id=str(self._asked), prompt_ids=prompt, sampling=sampling)
        start, first, ids = time.perf_counter(), 0.0, list[int]()
        async for piece in self._engine.generate(request):
            first = first or time.perf_counter() - start
            ids += piece.ids
        return ids, first


def _prompt(tokenizer: Tokenizer, question: str) -> list[int]:
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _show(found: dict[str, Any]) -> None:
    console = Console()
    console.print(" · ".join(f"{key} {value}" for key, value in found["machine"].items()))
    table = Table("measured", "value", "unit")
    for name, value in found["tokens_per_s"].items():
        table.add_row(name, f"{value:.1f}", "tokens/s")
    for name, value in found["seconds"].items():
        table.add_row(name, f"{value:.3f}", "s")
    for name, value in found["ratios"].items():
        target = TARGETS.get(name)
        table.add_row(name, f"{value:.2f}", f"x (target {target})" if target else "x")
    console.print(table)


if __name__ == "__main__":
    main()
