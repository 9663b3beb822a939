"""The process around vLLM's engine: frames of instar in, frames of sampled tokens out.

Started by `vllm_process` as `python -m instar.backends.vllm_server ARGS`, where ARGS are
engine arguments of `vllm serve`. It talks to the core of vLLM's engine below the level of
requests and texts: one engine step gives one frame with the new tokens of every reply, so that
hundreds of streams cost little Python. Nothing of instar but the frames is needed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from instar.backends import wire
from instar.backends.vllm_wire import REFUSED, Abort, Ask, Done, Drop, Load, Part, Ready, Step

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

HOLD_S_PER_REPLY = 0.0002
"""How long a token may wait for the next of its reply, times the replies under way.

A frame a step is what makes a few streams smooth; with 256 of them a reader gains nothing from
more than twenty pieces a second, and each piece costs the gateway a JSON document.
"""

HOLD_FROM = 16
"""Up to this many replies nothing waits."""


def main(argv: list[str]) -> None:
    wire.die_with_parent()
    sock = wire.inherited_socket()
    # Before the event loop runs, so that AsyncLLM does not start its own reader of outputs.
    llm = _engine(argv)
    try:
        _run(_serve(llm, sock))
    finally:
        llm.shutdown()


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)


def _engine(argv: list[str]) -> AsyncLLM:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="engine.args"))
    args = AsyncEngineArgs.from_cli_args(parser.parse_args(argv))
    if current_platform.is_cuda() and args.enable_lora and str(args.dtype) == "float32":
        raise SystemExit(
            "engine.dtype is float32, but vLLM's adapters for CUDA compute in 16 bits only; "
            "set it to bfloat16 or float16"
        )
    if current_platform.is_cpu():
        # vLLM's LoRA for CPUs takes the last slot for tokens of the base (index -1): with an
        # adapter in it, the base would speak as that one. instar never fills this slot.
        args.max_loras += 1
        args.max_cpu_loras = max(args.max_cpu_loras or 0, args.max_loras)
    # What a server reads of prompts in one step hangs on this: left out, vLLM takes 2,048 tokens
    # where its own server takes 8,192 on large GPUs.
    llm = AsyncLLM.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER)
    if llm.vllm_config.speculative_config is not None:
        raise SystemExit("engine.args asks for speculative decoding, whose log-probs are unscaled")
    if (mode := llm.model_config.logprobs_mode) != "raw_logprobs":
        raise SystemExit(f"engine.args sets --logprobs-mode {mode}; leave it out")
    return llm


async def _serve(llm: AsyncLLM, sock: Any) -> None:
    from vllm import __version__
    from vllm.platforms import current_platform

    channel = await wire.Channel.open(sock)
    server = Server(llm, channel, tasks=await llm.get_supported_tasks())
    config = llm.vllm_config.model_config
    device = str(current_platform.device_type)
    channel.send(
        Ready(
            context=config.max_model_len,
            device=device,
            release=__version__,
            sees=bool(config.is_multimodal_model),
        )
    )
    jobs = [asyncio.create_task(server.commands()), asyncio.create_task(server.outputs())]
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, jobs[0].cancel)
    await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    for job in jobs:
        job.cancel()
    for outcome in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


class _Reply:
    """A reply under way: what it asked for and what waits to be sent."""

    __slots__ = ("cached", "part", "top", "urgent", "whole")

    def __init__(self, ask: Ask) -> None:
        self.top = ask.top
        self.whole = ask.whole
        self.urgent = not ask.whole
        """Whether somebody waits for the first token."""
        self.cached: int | None = None
        self.part: Part | None = None


class _Drawn:
    """The log-probs of one step's new tokens, output after output (`vllm_plugin.TOGETHER`)."""

    __slots__ = ("_found", "_next", "_values")

    def __init__(self, outputs: Sequence[Any]) -> None:
        first = next((one for one in outputs if one.new_token_ids), None)
        self._found = None if first is None else first.new_logprobs
        # Column 0 is the sampled token, the others are the likeliest ones of the widest request.
        self._values = [] if self._found is None else self._found.logprobs[:, 0].tolist()
        self._next = 0

    def pass_over(self, count: int) -> int:
        """Where the next output's are, which has so many new tokens."""
        first = self._next
        self._next += count
        return first

    def extend(self, part: Part, ids: list[int], first: int, *, top: int) -> None:
        part.ids.extend(ids)
        values = self._values[first : first + len(ids)]
        if len(values) != len(ids):
            part.error = f"vLLM gave {len(values)} log-probs for {len(ids)} sampled tokens"
            return
        part.logprobs.extend(values)
        if top and self._found is not None:
            rows = slice(first, first + len(ids))
            likeliest = self._found.logprob_token_ids[rows, 1 : top + 1].tolist()
            their = self._found.logprobs[rows, 1 : top + 1].tolist()
            part.top.extend(
                list(zip(*row, strict=True)) for row in zip(likeliest, their, strict=True)
            )


class Server:
    """Carries requests to vLLM's engine core, and its outputs back."""

    def __init__(self, llm: AsyncLLM, channel: wire.Channel, *, tasks: Any) -> None:
        self._llm = llm
        self._channel = channel
        self._tasks = tasks
        self._replies: dict[str, _Reply] = {}
        self._loras: dict[int, Any] = {}
        self._sent = 0.0

    async def commands(self) -> None:
        """Obey until instar closes the channel."""
        decode = msgspec.msgpack.Decoder(Ask | Abort | Load | Drop).decode
        calls: set[asyncio.Task[None]] = set()
        async for body in self._channel:
            match decode(body):
                case Ask() as ask:
                    await self._ask(ask)
                case Abort(id=number):
                    if self._replies.pop(str(number), None) is not None:
                        await self._llm.engine_core.abort_requests_async([str(number)])
                case Load() | Drop() as call:
                    task = asyncio.create_task(self._adapter(call))
                    calls.add(task)
                    task.add_done_callback(calls.discard)

    async def _ask(self, ask: Ask) -> None:
        name = str(ask.id)
        try:
            request = self._llm.input_processor.process_inputs(
                name,
                await self._input(ask),
                _params(ask),
                self._tasks,
                lora_request=self._loras[ask.lora] if ask.lora else None,
            )
        except Exception as error:
            # By name: newer versions have VLLMClientError, older ones raise ValueError.
            names = {kind.__name__ for kind in type(error).__mro__}
            finish = REFUSED if names & {"ValueError", "VLLMClientError"} else "error"
            failed = Part(id=ask.id, ids=[], logprobs=[], finish=finish, error=repr(error))
            self._channel.send(Step([failed]))
            if ask.images:
                # Else this side would believe that the engine has them, and send none again.
                await self._llm.reset_mm_cache()
            return
        self._replies[name] = _Reply(ask)
        await self._llm.engine_core.add_request_async(request)

    async def _input(self, ask: Ask) -> Any:
        """What vLLM's engine reads: with images, its own renderer makes room for them."""
        if not ask.images:
            return {"type": "token", "prompt_token_ids": ask.prompt_ids}
        shown = [await asyncio.to_thread(_picture, one) for one in ask.images]
        prompt = {"prompt_token_ids": ask.prompt_ids, "multi_modal_data": {"image": shown}}
        try:
            (found,) = await self._llm.renderer.render_cmpl_async([prompt])
        except AssertionError as error:
            # So it says that the prompt has no place for an image.
            raise ValueError(f"the prompt and its images do not fit: {error}") from error
        return found

    async def _adapter(self, call: Load | Drop) -> None:
        """Load and drop adapters; in a task, since requests must not wait for a disk."""
        from vllm.lora.request import LoRARequest

        error = None
        try:
            if isinstance(call, Load):
                lora = LoRARequest(call.name, call.lora, call.folder)
                if not await self._llm.add_lora(lora):
                    error = "vLLM refused it"
                else:
                    self._loras[call.lora] = lora
            else:
                self._loras.pop(call.lora, None)
                await self._llm.remove_lora(call.lora)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        self._channel.send(Done(call.call, error))

    async def outputs(self) -> None:
        """Forward what each engine step gave, until the engine dies."""
        while True:
            outputs = await self._llm.engine_core.get_output_async()
            drawn = _Drawn(outputs.outputs)
            urgent = [part for output in outputs.outputs if (part := self._take(output, drawn))]
            now = time.monotonic()
            count = len(self._replies)
            hold = HOLD_S_PER_REPLY * count if count > HOLD_FROM else 0.0
            if now - self._sent >= hold:
                self._sent = now
                for reply in self._replies.values():
                    if reply.part is not None and not reply.whole:
                        urgent.append(reply.part)
                        reply.part = None
            if urgent:
                self._channel.send(Step(urgent))

    def _take(self, output: Any, drawn: _Drawn) -> Part | None:
        """Add an output of the engine to its reply; returns the part if it must go at once."""
        first = drawn.pass_over(len(output.new_token_ids))
        reply = self._replies.get(output.request_id)
        if reply is None:
            return None
        part = reply.part
        if part is None:
            part = reply.part = Part(id=int(output.request_id), ids=[], logprobs=[])
        if reply.cached is None:
            stats = output.prefill_stats
            part.cached = reply.cached = stats.num_cached_tokens if stats is not None else 0
        if output.new_token_ids:
            drawn.extend(part, output.new_token_ids, first, top=reply.top)
        if output.finish_reason is not None:
            part.finish = str(output.finish_reason)
            del self._replies[output.request_id]
        elif not reply.urgent:
            return None
        reply.urgent, reply.part = False, None
        return part


def _picture(data: bytes) -> Any:
    import PIL.Image

    try:
        return PIL.Image.open(io.BytesIO(data)).convert("RGB")
    except (OSError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise ValueError(f"an image cannot be read: {error}") from error


def _params(ask: Ask) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=ask.temperature,
        top_p=ask.top_p,
        top_k=ask.top_k,
        seed=ask.seed,
        max_tokens=ask.max_tokens,
        stop_token_ids=ask.stop_ids,
        ignore_eos=True,
        logprobs=ask.top,
        detokenize=False,
        skip_clone=True,
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
