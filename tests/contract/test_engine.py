"""What every engine promises, asked of each of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import recomputed
import torch
from engines import CONTEXT, ENGINES, MAX_VERSIONS, Case, open_torch
from tokenizers import Tokenizer

from instar.errors import ContextError, EngineError, ModelError, RequestError
from instar.protocols import Engine
from instar.types import BASE_VERSION, Piece, Request, Sampling

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "Tell me, please, in a few words, why the sky is blue and grass is green."


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An open engine and what it was made of."""

    name: str
    case: Case
    engine: Engine
    folder: Path
    tokenizer: Tokenizer

    def prompt(self, text: str = TEXT) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    pieces: tuple[Piece, ...]

    @property
    def finish(self) -> str | None:
        return self.pieces[-1].finish


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[pytest.param(name, marks=case.marks) for name, case in ENGINES.items()],
)
async def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Subject]:
    case = ENGINES[request.param]
    folder = case.build(tmp_path_factory.mktemp("model"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    async with case.open(folder) as engine:
        yield Subject(
            name=request.param, case=case, engine=engine, folder=folder, tokenizer=tokenizer
        )


@pytest.fixture(scope="module")
def adapter(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LoRA adapter, saved by PEFT."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(11)
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=list(subject.case.targets),
        init_lora_weights=False,
        fan_in_fan_out="c_attn" in subject.case.targets,
        task_type="CAUSAL_LM",
    )
    folder = tmp_path_factory.mktemp("adapter")
    get_peft_model(recomputed.load_model(subject.folder), config).save_pretrained(folder)
    return folder


def ask(prompt: tuple[int, ...], *, version: str | None = None, **settings: Any) -> Request:
    values = {"temperature": 0.0, "max_tokens": 12, **settings}
    return Request(id="x", prompt_ids=prompt, sampling=Sampling(**values), version=version)


async def draw(engine: Engine, request: Request) -> Reply:
    pieces = tuple([piece async for piece in engine.generate(request)])
    return Reply(
        ids=tuple(i for piece in pieces for i in piece.ids),
        logprobs=tuple(value for piece in pieces for value in piece.logprobs),
        pieces=pieces,
    )


async def forget(engine: Engine) -> None:
    """Back to the base alone, whatever a test left."""
    await engine.activate(BASE_VERSION)
    for version in engine.info.versions:
        if version != BASE_VERSION:
            await engine.drop(version)


async def test_a_reply_has_a_logprob_a_token_and_one_finish(subject: Subject) -> None:
    reply = await draw(subject.engine, ask(subject.prompt(), temperature=1.0, max_tokens=9))
    assert len(reply.ids) == len(reply.logprobs) == 9
    assert all(value <= 0 for value in reply.logprobs)
    assert [piece.finish for piece in reply.pieces[:-1]] == [None] * (len(reply.pieces) - 1)
    assert reply.finish == "length"
    assert {piece.version for piece in reply.pieces} == {BASE_VERSION}


async def test_a_reply_that_nobody_watches_is_the_same(subject: Subject) -> None:
    streamed = await draw(subject.engine, ask(subject.prompt()))
    asked = ask(subject.prompt())
    whole = await draw(
        subject.engine,
        Request(id="w", prompt_ids=asked.prompt_ids, sampling=asked.sampling, stream=False),
    )
    assert whole.ids == streamed.ids
    assert whole.finish == streamed.finish


async def test_a_stop_id_ends_the_reply_and_belongs_to_it(subject: Subject) -> None:
    free = await draw(subject.engine, ask(subject.prompt()))
    stop = free.ids[4]
    reply = await draw(subject.engine, ask(subject.prompt(), stop_ids=(stop,)))
    if subject.case.tolerance is None:
        assert reply.ids[-1] == stop
    else:
        assert reply.ids == free.ids[: free.ids.index(stop) + 1]
    assert reply.finish == "stop"


async def test_a_stop_string_ends_the_reply_with_the_token_that_completes_it(
    subject: Subject,
) -> None:
    free = await draw(subject.engine, ask(subject.prompt(), max_tokens=16))
    texts = [subject.tokenizer.decode(free.ids[: at + 1]) for at in range(16)]
    stop = texts[10][-3:]
    reply = await draw(subject.engine, ask(subject.prompt(), max_tokens=16, stop=("\0\0", stop)))
    expected = next(at for at, text in enumerate(texts) if stop in text)
    assert reply.ids == free.ids[: expected + 1]
    assert reply.finish == "stop"


async def test_top_logprobs_are_reported_where_asked(subject: Subject) -> None:
    reply = await draw(subject.engine, ask(subject.prompt(), top_logprobs=3))
    tops = [top for piece in reply.pieces for top in piece.top]
    assert len(tops) == len(reply.ids)
    if subject.case.tolerance is not None:
        for top, token, logprob in zip(tops, reply.ids, reply.logprobs, strict=True):
            assert len(top) == 3
            assert top[0] == (token, pytest.approx(logprob))


async def test_a_seed_gives_the_same_reply_in_any_company(subject: Subject) -> None:
    settings = {"temperature": 1.0, "top_p": 0.95, "seed": 5, "max_tokens": 16}
    request = ask(subject.prompt(), **settings)
    alone = await draw(subject.engine, request)
    others = [
        ask(subject.prompt(f"{at}: {TEXT}"), temperature=1.0, max_tokens=12 + 8 * at)
        for at in range(3)
    ]
    together = await asyncio.gather(*(draw(subject.engine, one) for one in (*others, request)))
    assert together[-1].ids == alone.ids


async def test_different_seeds_differ(subject: Subject) -> None:
    drawn = {
        (await draw(subject.engine, ask(subject.prompt(), temperature=1.5, seed=seed))).ids
        for seed in range(4)
    }
    assert len(drawn) > 1


async def test_greedy_is_what_transformers_would_say(subject: Subject) -> None:
    if subject.case.tolerance is None:
        pytest.skip("replies are made up")
    model = recomputed.load_model(subject.folder)
    requests = [ask(subject.prompt(text)) for text in (TEXT, TEXT[:21], TEXT * 3)]
    replies = await asyncio.gather(*(draw(subject.engine, one) for one in requests))
    for request, reply in zip(requests, replies, strict=True):
        assert reply.ids == greedy(model, request.prompt_ids, len(reply.ids))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "top_p": 0.9, "top_k": 20},
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 1.3},
        {"temperature": 0.0},
    ],
    ids=["top_p-top_k", "top_p", "free", "greedy"],
)
async def test_logprobs_are_those_of_the_full_distribution(
    subject: Subject, settings: dict[str, float]
) -> None:
    if subject.case.tolerance is None:
        pytest.skip("log-probs are made up")
    sampling = Sampling(**{"max_tokens": 24, **settings})  # type: ignore[arg-type]
    replies = await recomputed.sample(subject.engine, subject.tokenizer, sampling)
    model = recomputed.load_model(subject.folder)
    found = recomputed.difference(model, replies, temperature=sampling.temperature)
    assert found.tokens == 24 * len(replies)
    assert found.max < subject.case.tolerance


async def test_the_next_turn_starts_where_the_last_ended(subject: Subject) -> None:
    first = ask(subject.prompt(), temperature=1.0, seed=3)
    reply = await draw(subject.engine, first)
    prompt = (*first.prompt_ids, *reply.ids, *subject.prompt(" And then?"))
    sampling = Sampling(temperature=0.8, max_tokens=16)
    second = await draw(subject.engine, Request(id="y", prompt_ids=prompt, sampling=sampling))
    assert all(piece.cached == 0 for piece in second.pieces[1:])
    if subject.case.tolerance is None:
        return
    if (block := subject.case.cache_block) is not None:
        known = len(first.prompt_ids) + len(reply.ids) - 1
        assert len(prompt) > second.pieces[0].cached >= known // block * block
    exact = recomputed.Reply(prompt_ids=prompt, sampled_ids=second.ids, logprobs=second.logprobs)
    model = recomputed.load_model(subject.folder)
    gap = recomputed.difference(model, [exact], temperature=0.8)
    assert gap.max < subject.case.tolerance


async def test_a_short_request_joins_and_ends_while_a_long_one_runs(subject: Subject) -> None:
    order: list[str] = []
    started = asyncio.Event()

    async def long() -> None:
        request = ask(subject.prompt(), max_tokens=100)
        async for _ in subject.engine.generate(request):
            started.set()
        order.append("long")

    async def short() -> None:
        await started.wait()
        await draw(subject.engine, ask(subject.prompt(TEXT[:30]), max_tokens=4))
        order.append("short")

    await asyncio.gather(long(), short())
    assert order == ["short", "long"]


async def test_closing_the_iterator_ends_the_reply(subject: Subject, adapter: Path) -> None:
    engine = subject.engine
    await engine.load("v1", adapter)
    request = ask(subject.prompt(), version="v1", max_tokens=400)
    async with aclosing(engine.generate(request)) as pieces:
        assert (await anext(pieces)).version == "v1"
    # A version is dropped only once no reply uses it.
    await engine.drop("v1")
    assert engine.info.versions == (BASE_VERSION,)


async def test_a_cancelled_task_ends_the_reply(subject: Subject, adapter: Path) -> None:
    engine, started = subject.engine, asyncio.Event()
    await engine.load("v1", adapter)

    async def watch() -> None:
        async for _ in engine.generate(ask(subject.prompt(), version="v1", max_tokens=400)):
            started.set()

    task = asyncio.create_task(watch())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.drop("v1")


async def test_an_adapter_speaks_as_peft_would(subject: Subject, adapter: Path) -> None:
    engine = subject.engine
    await engine.load("v1", adapter)
    await engine.load("v1", adapter)
    assert engine.info.versions == (BASE_VERSION, "v1")
    assert engine.info.live == BASE_VERSION
    base = await draw(engine, ask(subject.prompt()))
    named, again = await asyncio.gather(
        draw(engine, ask(subject.prompt(), version="v1")),
        draw(engine, ask(subject.prompt(), version=BASE_VERSION)),
    )
    assert again.ids == base.ids
    await engine.activate("v1")
    live = await draw(engine, ask(subject.prompt()))
    assert {piece.version for piece in live.pieces} == {"v1"}
    assert live.ids == named.ids
    if subject.case.tolerance is not None:
        model = recomputed.load_model(subject.folder, adapter=adapter)
        assert live.ids == greedy(model, subject.prompt(), len(live.ids))
        assert live.ids != base.ids
    await forget(engine)


async def test_a_reply_keeps_its_version_when_another_goes_live(
    subject: Subject, adapter: Path
) -> None:
    engine = subject.engine
    request = ask(subject.prompt(), max_tokens=40)
    alone = await draw(engine, request)
    async with aclosing(engine.generate(request)) as pieces:
        seen = [await anext(pieces)]
        await engine.load("v1", adapter)
        await engine.activate("v1")
        other = await draw(engine, ask(subject.prompt()))
        seen += [piece async for piece in pieces]
    assert {piece.version for piece in seen} == {BASE_VERSION}
    assert tuple(i for piece in seen for i in piece.ids) == alone.ids
    assert {piece.version for piece in other.pieces} == {"v1"}
    await forget(engine)


async def test_dropping_waits_for_replies_and_refuses_the_live_version(
    subject: Subject, adapter: Path
) -> None:
    engine = subject.engine
    await engine.load("v1", adapter)
    await engine.activate("v1")
    with pytest.raises(RequestError, match="v1"):
        await engine.drop("v1")
    async with aclosing(engine.generate(ask(subject.prompt(), max_tokens=40))) as pieces:
        seen = [await anext(pieces)]
        await engine.activate(BASE_VERSION)
        dropping = asyncio.create_task(engine.drop("v1"))
        seen += [piece async for piece in pieces]
    assert seen[-1].finish == "length"
    await dropping
    assert engine.info.versions == (BASE_VERSION,)


async def test_a_broken_adapter_is_refused_by_name(
    subject: Subject, adapter: Path, tmp_path: Path
) -> None:
    engine = subject.engine
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        await engine.load("bad", tmp_path)
    (tmp_path / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors"):
        await engine.load("bad", tmp_path)
    assert engine.info.versions == (BASE_VERSION,)
    if subject.case.tolerance is not None:
        whole = (adapter / "adapter_model.safetensors").read_bytes()
        (tmp_path / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ModelError, match=r"adapter_model\.safetensors"):
            await engine.load("bad", tmp_path)
    assert engine.info.versions == (BASE_VERSION,)
    assert len((await draw(engine, ask(subject.prompt()))).ids) == 12


async def test_a_version_that_is_not_there_is_a_404(subject: Subject) -> None:
    for attempt in (
        draw(subject.engine, ask(subject.prompt(), version="nobody")),
        subject.engine.activate("nobody"),
        subject.engine.drop("nobody"),
    ):
        with pytest.raises(RequestError, match="nobody") as caught:
            await attempt
        assert caught.value.status == 404


async def test_the_context_bounds_prompt_and_reply(subject: Subject) -> None:
    assert subject.engine.info.context == CONTEXT
    filler = subject.prompt(TEXT)[:1]
    with pytest.raises(ContextError, match=str(CONTEXT)):
        await draw(subject.engine, ask(filler * CONTEXT))
    reply = await draw(subject.engine, ask(filler * (CONTEXT - 5), max_tokens=50))
    assert len(reply.ids) == 5
    assert reply.finish == "length"


async def test_an_empty_prompt_is_refused(subject: Subject) -> None:
    with pytest.raises(RequestError, match="token"):
        await draw(subject.engine, ask(()))


async def test_a_killed_worker_comes_back_with_its_versions(
    subject: Subject, adapter: Path
) -> None:
    engine: Any = subject.engine
    if not hasattr(engine, "pid"):
        pytest.skip("no process of its own")
    await engine.load("v1", adapter)
    await engine.activate("v1")
    before = await draw(engine, ask(subject.prompt()))
    killed = engine.pid
    replies = [
        asyncio.create_task(draw(engine, ask(subject.prompt(), max_tokens=400))) for _ in range(3)
    ]
    async with aclosing(engine.generate(ask(subject.prompt(), max_tokens=400))) as pieces:
        await anext(pieces)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(EngineError):
            async for _ in pieces:
                pass
    ended = await asyncio.gather(*replies, return_exceptions=True)
    assert [type(one) for one in ended] == [EngineError] * 3
    after = await draw(engine, ask(subject.prompt()))
    assert after.ids == before.ids
    assert {piece.version for piece in after.pieces} == {"v1"}
    assert engine.pid != killed
    await forget(engine)


async def test_a_version_damaged_meanwhile_does_not_keep_a_killed_worker_down(
    subject: Subject, adapter: Path, tmp_path: Path
) -> None:
    engine: Any = subject.engine
    if not hasattr(engine, "pid") or not hasattr(engine, "path"):
        pytest.skip("no worker of ours")
    folder = tmp_path / "owner%20x" / "v1"
    shutil.copytree(adapter, folder)
    await engine.load("good/v1", adapter)
    await engine.load("owner%20x/v1", folder)
    (folder / "adapter_model.safetensors").write_bytes(b"damaged")
    killed = engine.pid
    os.kill(killed, signal.SIGKILL)
    async with asyncio.timeout(60):
        while engine.pid == killed:  # noqa: ASYNC110 (another process brings it about)
            await asyncio.sleep(0.05)
    after = await draw(engine, ask(subject.prompt(), version="good/v1"))
    assert {piece.version for piece in after.pieces} == {"good/v1"}
    assert engine.info.versions == (BASE_VERSION, "good/v1")
    await forget(engine)


async def test_versions_are_bounded_and_the_error_says_which_to_drop(
    subject: Subject, adapter: Path
) -> None:
    if not subject.name.startswith("torch_local"):
        pytest.skip("bounded elsewhere")
    engine = subject.engine
    names = [f"v{at}" for at in range(MAX_VERSIONS)]
    for name in names:
        await engine.load(name, adapter)
    await engine.activate("v0")
    with pytest.raises(RequestError, match="drop one of v1") as caught:
        await engine.load("one-more", adapter)
    assert "v0" not in str(caught.value)
    await forget(engine)


async def test_an_adapter_of_another_model_is_refused(subject: Subject, tmp_path: Path) -> None:
    if not subject.name.startswith("torch_local"):
        pytest.skip("checked elsewhere")
    from safetensors.torch import save_file

    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 8}')
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    pair = {name.format("A"): torch.ones(2, 24), name.format("B"): torch.ones(8, 2)}
    save_file(pair, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"model\.layers\.0\.self_attn\.q_proj"):
        await subject.engine.load("foreign", tmp_path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """A local engine that draws one reply at a time and keeps nothing of it."""
    folder = ENGINES["torch_local"].build(tmp_path_factory.mktemp("narrow"))
    async with open_torch(folder, max_running=1, cache_gb=0, context=2048) as engine:
        yield engine


async def test_requests_wait_in_order(narrow: Engine) -> None:
    order: list[int] = []

    async def one(at: int) -> None:
        await draw(narrow, ask((1, 2, 3), max_tokens=20 - 4 * at))
        order.append(at)

    await asyncio.gather(*(one(at) for at in range(4)))
    assert order == [0, 1, 2, 3]


async def test_a_cancelled_reply_frees_its_slot(narrow: Engine) -> None:
    async with aclosing(narrow.generate(ask((1, 2, 3), max_tokens=2000))) as pieces:
        await anext(pieces)
        waiting = asyncio.create_task(draw(narrow, ask((4, 5, 6), max_tokens=3)))
        await asyncio.sleep(0)
    assert len((await waiting).ids) == 3


async def test_a_request_cancelled_while_it_waits_is_forgotten(narrow: Engine) -> None:
    async with aclosing(narrow.generate(ask((1, 2, 3), max_tokens=2000))) as pieces:
        await anext(pieces)
        waiting = asyncio.create_task(draw(narrow, ask((4, 5, 6), max_tokens=3)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert len((await draw(narrow, ask((4, 5, 6), max_tokens=3))).ids) == 3


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_impossible_settings_are_refused(
    narrow: Engine, settings: dict[str, Any], name: str
) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        await draw(narrow, ask((1, 2, 3), **settings))
    assert caught.value.param == name


async def test_a_foreign_token_is_refused(narrow: Engine) -> None:
    with pytest.raises(RequestError, match="vocabulary"):
        await draw(narrow, ask((1, 99999)))


async def test_an_unusable_model_is_an_error_and_no_hang(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        async with open_torch(tmp_path):
            pass
    (tmp_path / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 64}')
    with pytest.raises(ModelError, match="could not load"):
        async with open_torch(tmp_path):
            pass


async def test_a_model_that_sees_is_sent_to_an_engine_that_lets_it(tmp_path: Path) -> None:
    text = '{"model_type": "idefics3", "max_position_embeddings": 64, "vision_config": {}}'
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"reads text only.*engine\.type=vllm") as caught:
        async with open_torch(tmp_path):
            pass
    assert len(str(caught.value).splitlines()) == 1


def greedy(model: Any, prompt: Any, count: int) -> tuple[int, ...]:
    """The likeliest tokens, by transformers or PEFT's own generate."""
    ids = torch.tensor([list(prompt)])
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    return tuple(out[0, len(prompt) :].tolist())
