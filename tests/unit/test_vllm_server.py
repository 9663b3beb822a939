"""How the process around vLLM's engine reads a step's log-probs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from instar.backends.vllm_server import _Drawn
from instar.backends.vllm_wire import Part


def output(ids: list[int], logprobs: Any = None) -> Any:
    return SimpleNamespace(new_token_ids=ids, new_logprobs=logprobs)


def read(outputs: list[Any], tops: list[int]) -> list[Part]:
    drawn, parts = _Drawn(outputs), []
    for one, top in zip(outputs, tops, strict=True):
        first = drawn.pass_over(len(one.new_token_ids))
        part = Part(id=1, ids=[], logprobs=[])
        if one.new_token_ids:
            drawn.extend(part, one.new_token_ids, first, top=top)
        parts.append(part)
    return parts


def test_each_reply_gets_its_own_rows_and_as_many_likeliest_as_it_asked_for() -> None:
    found = SimpleNamespace(
        logprob_token_ids=np.array([[5, 1, 2], [6, 3, 4], [7, 5, 6]]),
        logprobs=np.array([[-1.0, -0.5, -0.75], [-2.0, -0.25, -0.5], [-3.0, -1.0, -1.5]]),
    )
    parts = read([output([]), output([5], found), output([6, 7])], [0, 0, 1])
    assert [(part.ids, part.logprobs) for part in parts] == [
        ([], []),
        ([5], [-1.0]),
        ([6, 7], [-2.0, -3.0]),
    ]
    assert parts[1].top == [] and parts[2].top == [[(3, -0.25)], [(5, -1.0)]]
    assert all(part.error is None for part in parts)


def test_missing_log_probs_are_an_error_of_the_reply() -> None:
    (part,) = read([output([5])], [0])
    assert part.error == "vLLM gave 0 log-probs for 1 sampled tokens"
    few = SimpleNamespace(logprob_token_ids=np.array([[5]]), logprobs=np.array([[-1.0]]))
    fine, short = read([output([5], few), output([6])], [0, 0])
    assert fine.error is None
    assert short.error == "vLLM gave 0 log-probs for 1 sampled tokens"
