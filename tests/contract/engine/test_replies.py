"""What a reply is: its tokens, its log-probs, its end."""

from __future__ import annotations

import asyncio
import math

import pytest
import recomputed
from asking import TEXT, Subject, ask, draw, greedy
from engines import CONTEXT, MODELS, only

from instar.errors import ContextError, RequestError
from instar.types import BASE_VERSION, Request, Sampling

pytestmark = pytest.mark.asyncio(loop_scope="package")


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
    for top, token, logprob in zip(tops, reply.ids, reply.logprobs, strict=True):
        assert len({one for one, _ in top}) == 3
        assert top[0] == (token, pytest.approx(logprob))
        assert sorted((value for _, value in top), reverse=True) == [value for _, value in top]
        assert sum(math.exp(value) for _, value in top) <= 1.0001


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


@only(MODELS)
async def test_greedy_is_what_transformers_would_say(subject: Subject) -> None:
    model = recomputed.load_model(subject.folder)
    requests = [ask(subject.prompt(text)) for text in (TEXT, TEXT[:21], TEXT * 3)]
    replies = await asyncio.gather(*(draw(subject.engine, one) for one in requests))
    for request, reply in zip(requests, replies, strict=True):
        assert reply.ids == greedy(model, request.prompt_ids, len(reply.ids))


@only(MODELS)
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
