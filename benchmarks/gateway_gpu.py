"""Many chats at once on a GPU: raw vLLM, instar's engine and instar's gateway, in one run.

Each way gets the same chats (prompts of one length, no shared beginning, replies of one length
at temperature 1) and its own freshly started server; the figures are sampled tokens a second
from the first request's start to the last reply's end, best of the rounds.

    offline           vLLM's LLM.generate, without log-probs; offline_logprobs with them
    adapters          the same two in an engine that can take adapters, as instar's: ..._lora
    server            vLLM's own OpenAI server; server_stream with streaming
    engine            instar's vLLM engine alone, in one piece; engine_stream token by token
    gateway           instar serve: capture and durable recording; gateway_stream with streaming

    python benchmarks/gateway_gpu.py [--model FOLDER] [--chats 256 --prompt 512 --reply 256]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world")
WAYS = ("offline", "adapters", "server", "engine", "gateway")
MODEL_NAME = "bench"


# --- the load: raw sockets in several processes, so that it is never what is measured


class Exchange(asyncio.Protocol):
    """One request; the server closes the connection after its answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.answer = bytearray()
        self.first = self.last = 0.0
        self.done = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self) -> None:
        assert self.transport is not None
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if not self.first and (b"data:" in data or b'"usage"' in data):
            self.first = time.time()
        self.answer += data

    def connection_lost(self, error: Exception | None) -> None:
        self.last = time.time()
        if not self.done.done():
            self.done.set_result(None)

    def tokens(self) -> int:
        found = re.findall(rb'"completion_tokens": ?(\d+)', self.answer)
        if not self.answer.startswith(b"HTTP/1.1 200") or not found:
            raise RuntimeError(f"unexpected answer: {bytes(self.answer[:600])!r}")
        return int(found[-1])


async def talk(port: int, requests: list[bytes], barrier: Barrier) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    exchanges = [
        (await loop.create_connection(partial(Exchange, r), "127.0.0.1", port))[1] for r in requests
    ]
    await asyncio.to_thread(barrier.wait)
    start = time.time()
    for one in exchanges:
        one.send()
    await asyncio.gather(*(one.done for one in exchanges))
    return {
        "start": start,
        "end": time.time(),
        "tokens": sum(one.tokens() for one in exchanges),
        "first": [one.first - start for one in exchanges],
        "last": [one.last - start for one in exchanges],
    }


def work(port: int, requests: list[bytes], barrier: Barrier, queue: Any) -> None:
    try:
        queue.put(asyncio.run(talk(port, requests, barrier)))
    except BaseException as error:
        queue.put({"error": repr(error)})


def load(port: int, bodies: list[dict[str, Any]], processes: int) -> dict[str, Any]:
    requests = [http(body) for body in bodies]
    shares = [share for i in range(processes) if (share := requests[i::processes])]
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(len(shares)), context.Queue()
    workers = [context.Process(target=work, args=(port, s, barrier, queue)) for s in shares]
    for worker in workers:
        worker.start()
    found = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    if errors := [one["error"] for one in found if "error" in one]:
        raise RuntimeError(errors[0])
    seconds = max(one["end"] for one in found) - min(one["start"] for one in found)
    tokens = sum(one["tokens"] for one in found)
    return rate(tokens, seconds) | {
        f"{what}_byte_s": spread([value for one in found for value in one[what]])
        for what in ("first", "last")
    }


def spread(values: list[float]) -> list[float]:
    """The least, the median and the most."""
    return [round(sorted(values)[at], 3) for at in (0, len(values) // 2, -1)]


def http(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def rate(tokens: int, seconds: float) -> dict[str, Any]:
    return {"tokens": tokens, "seconds": round(seconds, 3), "tok_s": round(tokens / seconds, 1)}


# --- the chats


def chats(options: argparse.Namespace, count: int, seed: int) -> list[list[dict[str, str]]]:
    """Conversations whose rendered prompts have the wished number of tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    random_words = random.Random(seed)

    def messages(words: int) -> list[dict[str, str]]:
        text = " ".join(random_words.choices(WORDS, k=words))
        return [{"role": "user", "content": text}]

    def size(conversation: list[dict[str, str]]) -> int:
        text = tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    words = max(1, options.prompt - size(messages(1)) + 1)
    made = [messages(words) for _ in range(count)]
    print(f"prompts of {size(made[0])} tokens", file=sys.stderr)
    return made


def bodies(options: argparse.Namespace, seed: int, *, stream: bool) -> list[dict[str, Any]]:
    common: dict[str, Any] = {
        "model": MODEL_NAME,
        "max_tokens": options.reply,
        "temperature": 1.0,
        "ignore_eos": True,
        "stream": stream,
    }
    if stream:
        common["stream_options"] = {"include_usage": True}
    return [{**common, "messages": one} for one in chats(options, options.chats, seed)]


def over_http(options: argparse.Namespace, port: int, way: str) -> dict[str, Any]:
    """Rounds without and with streaming in turn, so that neither gains by being warmer."""
    rounds: dict[str, list[dict[str, Any]]] = {way: [], f"{way}_stream": []}
    for number in range(options.rounds + 1):
        for name, found in rounds.items():
            stream = name.endswith("_stream")
            # No prompt comes twice: vLLM would not read it again.
            asked = bodies(options, 2 * number + stream, stream=stream)
            found.append(load(port, asked, options.processes))
    # The first round of each warms the server up.
    return {name: best(found[1:]) for name, found in rounds.items()}


def best(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    top = max(rounds, key=lambda one: one["tok_s"])
    return {**top, "rounds": [one["tok_s"] for one in rounds]}


# --- the ways


def environment(options: argparse.Namespace) -> dict[str, str]:
    env = {"VLLM_USE_FLASHINFER_SAMPLER": "0", **os.environ}
    env |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return env | dict(pair.split("=", 1) for pair in options.env)


def engine_arguments(options: argparse.Namespace) -> list[str]:
    return ["--dtype", options.dtype, "--max-num-seqs", str(options.chats), *options.engine_args]


@contextmanager
def serving(
    command: list[str], *, port: int, path: str, options: argparse.Namespace
) -> Iterator[None]:
    """A server that is up, ended with all below it."""
    fd, log = tempfile.mkstemp(prefix="bench-", suffix=".log")
    process = subprocess.Popen(
        command, env=environment(options), stdout=fd, stderr=fd, start_new_session=True
    )
    os.close(fd)
    try:
        while True:
            with suppress(OSError):
                if urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").status == 200:
                    break
            if process.poll() is not None:
                raise RuntimeError(f"{command[:3]} ended:\n{Path(log).read_text()[-4000:]}")
            time.sleep(0.5)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def run_server(options: argparse.Namespace) -> dict[str, Any]:
    port = free_port()
    command = [options.vllm_python, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", options.model, "--served-model-name", MODEL_NAME, "--port", str(port)]
    command += ["--disable-log-stats", *engine_arguments(options)]
    with serving(command, port=port, path="/health", options=options):
        return over_http(options, port, "server")


def run_gateway(options: argparse.Namespace) -> dict[str, Any]:
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        sets = {
            "model.checkpoint_path": options.model,
            "model.name": MODEL_NAME,
            "engine.type": "vllm",
            "engine.python": options.vllm_python,
            "engine.dtype": options.dtype,
            "engine.max_running": options.chats,
            "engine.replicas": options.replicas,
            "engine.args": json.dumps(options.engine_args),
            "gateway.max_queue": 2 * options.chats,
        }
        command = [sys.executable, "-c", "from instar.cli import main; main()", "serve"]
        command += ["--home", home, "--port", str(port)]
        for key, value in sets.items():
            command += ["--set", f"{key}={value}"]
        with serving(command, port=port, path="/readyz", options=options):
            results = over_http(options, port, "gateway")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
        kept = [line for line in lines if re.match(r"instar_\w*(turns|lost|late)", line)]
        return {**results, "gateway_metrics": kept}


def run_offline(options: argparse.Namespace) -> dict[str, Any]:
    return child(options, "offline", options.vllm_python)


def run_adapters(options: argparse.Namespace) -> dict[str, Any]:
    """What it costs an engine that adapters may come, though none has."""
    from instar.config import VllmEngine

    ours = VllmEngine()
    places, rank = str(ours.max_versions), str(ours.max_lora_rank)
    more = ["--enable-lora", "--max-loras", places, "--max-lora-rank", rank]
    asked = argparse.Namespace(**{**vars(options), "engine_args": [*options.engine_args, *more]})
    found = child(asked, "offline", options.vllm_python)
    return {f"{name}_lora": one for name, one in found.items()}


def run_engine(options: argparse.Namespace) -> dict[str, Any]:
    return child(options, "engine", sys.executable)


def child(options: argparse.Namespace, way: str, python: str) -> dict[str, Any]:
    """This script in a process of its own, so that the GPU is free afterwards."""
    with tempfile.TemporaryDirectory() as work:
        asked, result = Path(work, "options.json"), Path(work, "result.json")
        asked.write_text(json.dumps({**vars(options), "child": way, "result": str(result)}))
        command = [python, __file__, "--options", str(asked)]
        # What vLLM prints is no part of our output.
        subprocess.run(command, env=environment(options), stdout=sys.stderr, check=True)
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def prompts(options: argparse.Namespace, seed: int) -> list[list[int]]:
    source = random.Random(seed)
    ids = range(1000, 20000)
    return [source.choices(ids, k=options.prompt) for _ in range(options.chats)]


def child_offline(options: argparse.Namespace) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.llm import LLM
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = parser.parse_args(["--model", options.model, *engine_arguments(options)])
    llm = LLM.from_engine_args(EngineArgs.from_cli_args(parsed))
    results = {}
    for name, logprobs in (("offline", None), ("offline_logprobs", 0)):
        params = SamplingParams(
            max_tokens=options.reply, ignore_eos=True, logprobs=logprobs, detokenize=False
        )
        rounds = []
        for number in range(options.rounds + 1):
            inputs = [{"prompt_token_ids": one} for one in prompts(options, number)]
            start = time.time()
            outputs = llm.generate(inputs, params, use_tqdm=False)
            tokens = sum(len(one.outputs[0].token_ids) for one in outputs)
            rounds.append(rate(tokens, time.time() - start))
        results[name] = best(rounds[1:])
    return results


def child_engine(options: argparse.Namespace) -> dict[str, Any]:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(drive_engine(options))


async def drive_engine(options: argparse.Namespace) -> dict[str, Any]:
    from instar.backends.vllm import open_engine
    from instar.config import VllmEngine
    from instar.types import Request, Sampling

    config = VllmEngine(
        python=options.vllm_python,
        dtype=options.dtype,
        max_running=options.chats,
        replicas=options.replicas,
        args=options.engine_args,
    )
    sampling = Sampling(max_tokens=options.reply)
    async with open_engine(config, model=Path(options.model), name=MODEL_NAME) as engine:

        async def one(ids: list[int], stream: bool) -> int:
            request = Request(id="bench", prompt_ids=ids, sampling=sampling, stream=stream)
            return sum([len(piece.ids) async for piece in engine.generate(request)])

        results = {}
        for name, stream in (("engine", False), ("engine_stream", True)):
            rounds = []
            for number in range(options.rounds + 1):
                start = time.time()
                inputs = prompts(options, number + 100 * stream)
                tokens = sum(await asyncio.gather(*(one(ids, stream) for ids in inputs)))
                rounds.append(rate(tokens, time.time() - start))
            results[name] = best(rounds[1:])
    return results


CHILDREN = {"offline": child_offline, "engine": child_engine}
RUNS = {
    "offline": run_offline,
    "adapters": run_adapters,
    "server": run_server,
    "engine": run_engine,
    "gateway": run_gateway,
}


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """The gateway and the engine against what vLLM does without instar."""
    found = {}
    for ours in ("engine", "engine_stream", "gateway", "gateway_stream"):
        suffix = "_stream" if ours.endswith("_stream") else ""
        for raw in ("offline", f"server{suffix}"):
            if "tok_s" in results.get(ours, {}) and "tok_s" in results.get(raw, {}):
                found[f"{ours}/{raw}"] = round(results[ours]["tok_s"] / results[raw]["tok_s"], 3)
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="a folder; by default the embedded model's", default="")
    parser.add_argument("--chats", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens a chat")
    parser.add_argument("--reply", type=int, default=256, help="reply tokens a chat")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=8, help="that make the load")
    parser.add_argument("--replicas", type=int, default=1, help="servers that instar starts")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", default=",".join(WAYS), help="comma-separated ways")
    parser.add_argument("--vllm-python", default=sys.executable)
    parser.add_argument("--engine-args", nargs=argparse.REMAINDER, default=[], help="for vLLM")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", action="store_true", help="accepted; the output always is")
    parser.add_argument("--options", help=argparse.SUPPRESS)
    return parser.parse_args()


def _embedded() -> str:
    from instar.backends.embedded import embedded_model

    return str(embedded_model(Path.home() / ".instar"))


def main() -> None:
    options = parse()
    if options.options:
        options = argparse.Namespace(**json.loads(Path(options.options).read_text()))
        Path(options.result).write_text(json.dumps(CHILDREN[options.child](options)))
        return
    options.model = options.model or _embedded()
    results: dict[str, Any] = {}
    for way in options.only.split(","):
        try:
            results |= RUNS[way](options)
        except Exception as error:
            # What was measured so far is worth minutes of a GPU.
            results[way] = {"error": f"{error}"[-3000:]}
        print(json.dumps({way: results.get(way)}), file=sys.stderr, flush=True)
    told = ("chats", "prompt", "reply", "dtype", "replicas")
    shape = {key: getattr(options, key) for key in told}
    print(json.dumps({"shape": shape, **results, "ratios": ratios(results)}, indent=1))


if __name__ == "__main__":
    main()
