"""A request as the local engine's worker takes it: checked, and put into its words."""

from __future__ import annotations

from instar.backends.torch_wire import Generate
from instar.errors import ContextError, RequestError
from instar.types import Request, Sampling


def check(request: Request, *, context: int, vocab: int) -> None:
    """Refuse what the worker could not compute."""
    count = len(request.prompt_ids)
    if not count:
        raise RequestError("The prompt has no tokens; expected at least one.", param="messages")
    if count > context - 1:
        raise ContextError(count, context)
    if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocab:
        raise RequestError(
            f"The prompt holds a token id outside this model's vocabulary of {vocab}.",
            param="messages",
        )
    _check_sampling(request.sampling)


def to_message(number: int, request: Request, version: str) -> Generate:
    sampling = request.sampling
    return Generate(
        id=number,
        version=version,
        prompt=list(request.prompt_ids),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        stop=sampling.stop,
        stop_ids=sampling.stop_ids,
        top_logprobs=sampling.top_logprobs,
    )


def _check_sampling(sampling: Sampling) -> None:
    bounds = (
        ("temperature", 0 <= sampling.temperature < float("inf"), "a number from 0 up"),
        ("top_p", 0 < sampling.top_p <= 1, "a number above 0 and at most 1"),
        ("top_k", sampling.top_k >= 0, "0 for no limit, or a count"),
        ("max_tokens", sampling.max_tokens >= 1, "at least 1"),
        ("top_logprobs", 0 <= sampling.top_logprobs <= 100, "a count from 0 to 100"),
    )
    for name, fine, expected in bounds:
        if not fine:
            found = getattr(sampling, name)
            raise RequestError(f"{name} is {found}; expected {expected}.", param=name)
