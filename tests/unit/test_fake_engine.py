"""What the scripted engine makes up: log-probs, and what else might have been said."""

from __future__ import annotations

import math

import pytest

from instar.backends.fake import open_engine
from instar.config import FakeEngine
from instar.text import byte_tokenizer
from instar.types import Piece, Request, Sampling


async def drawn(count: int) -> list[Piece]:
    async with open_engine(FakeEngine(), model=None, name="m") as engine:
        sampling = Sampling(max_tokens=40, top_logprobs=count)
        request = Request(id="r", prompt_ids=(1, 2), sampling=sampling, session="s", version="base")
        return [piece async for piece in engine.generate(request)]


@pytest.mark.parametrize("count", [1, 2, 3, 20])
async def test_as_many_tokens_are_named_as_were_asked_for(count: int) -> None:
    pieces = await drawn(count)
    ids = [one for piece in pieces for one in piece.ids]
    values = [one for piece in pieces for one in piece.logprobs]
    tops = [one for piece in pieces for one in piece.top]
    tokenizer = byte_tokenizer()
    for token, value, top in zip(ids, values, tops, strict=True):
        assert top[0] == (token, value)
        assert [one for _, one in top] == sorted({one for _, one in top}, reverse=True)
        assert len({one for one, _ in top}) == count
        assert all(tokenizer.decode([one]).isprintable() for one, _ in top)
        assert sum(math.exp(one) for _, one in top) <= 1
    # A draw's own probability and what it leaves: 0.9048 of 1, a quarter and an eighth of the rest.
    sure = next((top for top in tops if top[0][1] == -0.1), ())
    rest = [math.log(0.0951626 / share) for share in (4, 8)][: count - 1]
    assert [one for _, one in sure[1:3]] == pytest.approx(rest, abs=1e-5)
    assert await drawn(count) == pieces


async def test_none_are_named_where_none_were_asked_for() -> None:
    assert all(piece.top == () for piece in await drawn(0))
