"""The judge behind an endpoint, against one that lives in the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from instar.config import LlmJudge
from instar.errors import ConfigError, JudgeError
from instar.judge.hints import WordHinter
from instar.judge.llm import (
    Endpoint,
    LlmHinter,
    LlmVoter,
    describe,
    open_endpoint,
    read_hint,
    read_score,
)
from instar.judge.next_state import Case
from instar.judge.panel import PanelJudge

CASE = Case(
    request="Name a river.",
    response="Rome.",
    next="x" * 20_000 + " That is a city, name a river.",
    history="user: Hi",
)


def endpoint(answer: Callable[[httpx.Request], httpx.Response]) -> Endpoint:
    client = httpx.AsyncClient(
        base_url="http://judge/v1/", transport=httpx.MockTransport(answer), headers={"x": "1"}
    )
    return Endpoint(client=client, model="m")


def replies(texts: Iterator[str | int]) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        found = next(texts)
        if isinstance(found, int):
            return httpx.Response(found, text="no")
        return httpx.Response(200, json={"choices": [{"message": {"content": found}}]})

    return answer


async def test_each_sample_is_a_vote_and_an_invalid_one_is_none() -> None:
    texts = iter(['{"score": -1}', "I like it!", r"so \boxed{-1}", '{"score": 5}', 500])
    voter = LlmVoter(endpoint=endpoint(replies(texts)))
    assert await voter.votes(CASE, 5) == [-1, None, -1, None, None]


async def test_an_endpoint_that_is_down_is_no_vote_at_all() -> None:
    voter = LlmVoter(endpoint=endpoint(replies(iter([503, 503]))))
    with pytest.raises(JudgeError, match="gave no answer"):
        await voter.votes(CASE, 2)
    judge = PanelJudge(
        voter=LlmVoter(endpoint=endpoint(replies(iter([503])))), hinter=WordHinter(), count=1
    )
    assert (await judge.consider(CASE)).failed


@pytest.mark.parametrize("body", ["{}", "[]", '{"choices": []}', "no json"])
async def test_an_answer_of_another_form_is_an_error(body: str) -> None:
    one = endpoint(lambda _: httpx.Response(200, text=body))
    with pytest.raises(JudgeError):
        await one.complete("a", "b")


async def test_the_request_the_history_and_the_whole_next_state_are_shown() -> None:
    asked: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        assert request.headers["x-no-train"] == "1"
        assert str(request.url) == "http://judge/v1/chat/completions"
        return httpx.Response(200, json={"choices": [{"message": {"content": '{"score": 0}'}}]})

    await LlmVoter(endpoint=endpoint(answer)).votes(CASE, 1)
    shown = json.dumps(asked[0])
    for part in (CASE.request, CASE.response, CASE.next, CASE.history):
        assert part in shown


def test_the_case_is_described_in_order() -> None:
    text = describe(Case(request="q", response="a", next="n", role="tool"))
    assert text == "[request]\nq\n\n[answer]\na\n\n[what happened next (tool result)]\nn"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"score": 1}', 1),
        ('thinking {"score": 1} no {"score": -1}', -1),
        (r"\boxed{0} then \boxed{+1}", 1),
        ('{"score": "1"}', None),
        ('{"score": true}', None),
        (r"\boxed{3}", None),
        ("1", None),
        ("", None),
        ('{"score": 1', None),
    ],
)
def test_only_a_clear_score_counts(text: str, score: int | None) -> None:
    assert read_score(text) == score


async def test_hints_have_at_most_three_sentences() -> None:
    text = json.dumps({"hint": "One. Two! Three? Four."})
    hinter = LlmHinter(endpoint=endpoint(replies(iter([text]))))
    assert await hinter.hint(CASE) == "One. Two! Three?"
    assert read_hint('{"hint": null}') is None
    assert read_hint('{"hint": "  "}') is None
    assert read_hint("nothing") is None


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "abc")
    made = open_endpoint(LlmJudge(base_url="https://x/v1"), model="gpt-4")
    assert made.client.headers["authorization"] == "Bearer abc"
    assert (made.model, str(made.client.base_url)) == ("gpt-4", "https://x/v1/")
    with pytest.raises(ConfigError, match="no model is named"):
        open_endpoint(LlmJudge(), model=None)
