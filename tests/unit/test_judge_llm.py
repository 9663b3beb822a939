"""The judge behind an endpoint, against one that lives in the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from instar.config import LlmJudge
from instar.config_load import load_config
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
from instar.judge.next_state import Case, ToolResult
from instar.judge.panel import PanelJudge, make_judge

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
        assert request.headers["x-no-record"] == request.headers["x-no-train"] == "1"
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
        ('{"score": ' + "[" * 5000, None),
        ('{"a":' * 5000 + '{"score": 1}', 1),
    ],
)
def test_only_a_clear_score_counts(text: str, score: int | None) -> None:
    assert read_score(text) == score


async def test_hints_have_at_most_three_sentences() -> None:
    text = json.dumps({"hint": "One. Two! Three? Four."})
    hinter = LlmHinter(endpoint=endpoint(replies(iter([text]))))
    assert await hinter.hints(CASE, 1) == ["One. Two! Three?"]
    assert read_hint('{"hint": null}') is None
    assert read_hint('{"hint": "  "}') is None
    assert read_hint("nothing") is None


def hinted(*hints: str | int | None) -> LlmHinter:
    texts = (one if isinstance(one, int) else json.dumps({"hint": one}) for one in hints)
    return LlmHinter(endpoint=endpoint(replies(iter(list(texts)))))


async def test_as_many_hints_are_asked_for_as_votes_and_the_most_frequent_comes_first() -> None:
    assert await hinted("Be brief.", "No lists.", "No lists.").hints(CASE, 3) == [
        "No lists.",
        "Be brief.",
    ]
    assert await hinted(500, "Be brief.", None).hints(CASE, 3) == ["Be brief."]
    assert await hinted(None, "Be brief.", None).hints(CASE, 3) == []
    with pytest.raises(JudgeError):
        await hinted(500, 500).hints(CASE, 2)


async def test_all_hints_stay_with_the_opinion() -> None:
    voter = LlmVoter(endpoint=endpoint(replies(iter(['{"score": -1}'] * 2))))
    judge = PanelJudge(voter=voter, hinter=hinted("Be brief.", "No lists."), count=2)
    opinion = await judge.consider(CASE)
    assert opinion.hints == ("Be brief.", "No lists.")
    assert opinion.hint == "Be brief."


def slow(late: int) -> Endpoint:
    """Every answer after `late` ones never comes."""
    asked = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if asked > late:
            await asyncio.sleep(60)
        content = '{"score": -1, "hint": "Be brief."}'
        return httpx.Response(200, json={"choices": [{"message": {"content": content}}]})

    return Endpoint(
        client=httpx.AsyncClient(
            base_url="http://judge/v1/", transport=httpx.MockTransport(answer), timeout=60
        ),
        model="m",
    )


async def test_a_vote_that_never_comes_takes_no_other_with_it() -> None:
    judge = PanelJudge(
        voter=LlmVoter(endpoint=slow(2), timeout_s=0.1),
        hinter=LlmHinter(endpoint=slow(1), timeout_s=0.1),
        count=3,
        timeout_s=0.1,
    )
    opinion = await judge.consider(CASE)
    assert (opinion.label, opinion.votes) == (-1, (-1, -1, None))
    assert opinion.hints == ("Be brief.",)


async def test_votes_of_which_none_comes_are_a_failure() -> None:
    voter = LlmVoter(endpoint=slow(0), timeout_s=0.05)
    with pytest.raises(JudgeError, match=r"gave no answer within 0\.05 s"):
        await voter.votes(CASE, 2)


async def test_the_config_tells_the_llm_how_long_it_may_take() -> None:
    config = load_config(
        None,
        ["evaluation.judge.type=llm", "evaluation.judge_model=m", "evaluation.judge.timeout_s=7"],
    ).config
    judge = make_judge(config, folder=lambda: Path("nowhere"))
    assert isinstance(judge.voter, LlmVoter)
    assert (judge.voter.timeout_s, judge.timeout_s) == (7, 7)


@pytest.mark.parametrize(
    ("sets", "asked", "for_hints"),
    [
        (["evaluation.judge_model=a"], "a", "a"),
        (["evaluation.judge_model=a", "evaluation.judge.model=b"], "b", "b"),
        (["evaluation.judge.model=b", "training.hint_extraction_model=c"], "b", "c"),
    ],
)
def test_the_model_for_hints_may_be_another_one(
    sets: list[str], asked: str, for_hints: str
) -> None:
    config = load_config(None, ["evaluation.judge.type=llm", *sets]).config
    judge = make_judge(config, folder=lambda: Path("nowhere"))
    assert isinstance(judge.voter, LlmVoter)
    assert isinstance(judge.hinter, LlmHinter)
    assert (judge.voter.endpoint.model, judge.hinter.endpoint.model) == (asked, for_hints)


def test_tool_results_before_a_persons_words_are_shown_as_what_happened_next() -> None:
    results = (ToolResult(text="exit code: 0"), ToolResult(text="x" * 9000))
    case = Case(request="q", response="a", next="what happened?", results=results, history="h")
    assert describe(case) == (
        "[earlier]\nh\n\n[request]\nq\n\n[answer]\na\n\n"
        "[what happened next (tool result 1 of 2)]\nexit code: 0\n\n"
        f"[what happened next (tool result 2 of 2)]\n{'x' * 9000}\n\n"
        "[what happened next (the person's reply)]\nwhat happened?"
    )


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "abc")
    made = open_endpoint(LlmJudge(base_url="https://x/v1"), model="gpt-4")
    assert made.client.headers["authorization"] == "Bearer abc"
    assert (made.model, str(made.client.base_url)) == ("gpt-4", "https://x/v1/")
    with pytest.raises(ConfigError, match="no model is named"):
        open_endpoint(LlmJudge(), model=None)
