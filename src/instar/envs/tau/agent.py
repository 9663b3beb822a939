"""A trainable tool-calling agent: one call plays a task and gives back what a trainer wants.

The tokens are those that the engine read and drew, as the gateway gives them: nothing is rendered
or tokenised again, so a mask is 1 exactly where a token was sampled.

Example:
    agent = TrainableAgent("http://127.0.0.1:30000/v1")
    result = await agent.asolve(environment, task_index=3, max_num_steps=30)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from instar.envs.client import Draw, GatewayClient, Reply, Talk, model_name, plain_name
from instar.envs.play import Limits, Played, play
from instar.envs.tau.sierra import SierraEnvironment
from instar.errors import ConfigError
from instar.ids import new_id
from instar.protocols import Environment
from instar.types import AttemptStatus, Message


class Status(Enum):
    """How an interaction ended."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    FAILED = "failed"
    """The model's reply could not be acted on."""
    ABORTED = "aborted"
    """The environment, the customer or the engine failed: there is no reward, and no blame."""


_STATUS: dict[AttemptStatus, Status] = {
    "completed": Status.COMPLETED,
    "truncated": Status.TRUNCATED,
    "model_error": Status.FAILED,
    "environment_error": Status.ABORTED,
}


@dataclass(kw_only=True)
class InteractionResult:
    """One interaction, as a trainer reads it."""

    prompt: str
    """The first prompt as text, where the agent can decode ids; else its messages."""
    reward: float | None
    """None after ABORTED: unknown is not zero."""
    messages: list[Message]
    info: dict[str, Any]
    response: str = ""
    loss_mask: list[int] = field(default_factory=list)
    """One a token after the prompt: 1 where the model sampled it."""
    tokens: list[int] = field(default_factory=list)
    """The prompt and all that came after it."""
    status: Status = Status.COMPLETED
    session: str = ""
    """Where the turns are recorded, with their log-probs and versions."""

    @property
    def response_length(self) -> int:
        return len(self.loss_mask)


class TrainableAgent:
    """Plays tasks of tau through one gateway; many at once if you like."""

    def __init__(
        self,
        address: str = "http://127.0.0.1:30000/v1",
        *,
        model: str | None = None,
        key: str | None = None,
        group: str | None = None,
        step_timeout_s: float = 120.0,
        decode: Callable[[Sequence[int]], str] | None = None,
        client: GatewayClient | None = None,
    ) -> None:
        """`decode` turns token ids into text, for `prompt`; a `client` is used as it is."""
        self._address, self._model, self._key = address, model, key
        self._group = group
        self._step_timeout_s = step_timeout_s
        self._decode = decode
        self._client = client

    async def asolve(
        self,
        env: Any,
        rollout_args: Mapping[str, Any] | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        task_index: int | None = None,
        max_num_steps: int = 30,
    ) -> InteractionResult:
        """Play one task: of tau's environment here, or of an object of Sierra's tau-bench.

        `rollout_args` may name the gateway (`url`), the `split` and a `seed`; `sampling_params`
        takes temperature, top_p, top_k, max_new_tokens and stop. Without an index it is task 0.
        """
        given = dict(rollout_args or {})
        environment: Environment = env if hasattr(env, "score") else SierraEnvironment(env)
        client = self._client or await self._connect(str(given.get("url") or self._address))
        try:
            tasks = await environment.tasks(str(given.get("split") or "train"))
            task = _chosen(tasks, task_index or 0)
            session = f"{plain_name(self._group or new_id('a'))}/{plain_name(task)}/{new_id('s')}"
            played = await play(
                environment,
                task,
                client=client,
                talk=Talk(session=session, group=self._group or session),
                draw=_draw(sampling_params or {}),
                limits=Limits(max_turns=max_num_steps, step_timeout_s=self._step_timeout_s),
                seed=int(given.get("seed") or 0),
            )
        finally:
            if self._client is None:
                await client.close()
        info = {**getattr(environment, "info", {}), **played.details}
        return self._result(played, session, info)

    async def _connect(self, address: str) -> GatewayClient:
        model = self._model or await model_name(address, self._key)
        return GatewayClient(address, model=model, key=self._key)

    def _result(self, played: Played, session: str, info: dict[str, Any]) -> InteractionResult:
        prompt_ids, tokens, mask, left_out = one_sequence(played.replies)
        if left_out:
            info["turns_left_out"] = left_out
        first = played.replies[0].prompt_ids if played.replies else ()
        return InteractionResult(
            prompt=self._text(first, played.messages),
            reward=played.reward,
            messages=played.messages,
            info=info,
            response="".join(
                str(one.get("content") or "")
                for one in played.messages
                if one["role"] == "assistant"
            ),
            loss_mask=mask[len(prompt_ids) :],
            tokens=tokens,
            status=_STATUS[played.status],
            session=session,
        )

    def _text(self, prompt_ids: Sequence[int], messages: Sequence[Message]) -> str:
        if self._decode is not None:
            return self._decode(prompt_ids)
        before = []
        for message in messages:
            if message["role"] == "assistant":
                break
            before.append(f"{message['role']}: {message.get('content') or ''}")
        return "\n".join(before)


def one_sequence(
    replies: Sequence[Reply],
) -> tuple[tuple[int, ...], list[int], list[int], int]:
    """Prompt, all tokens and their mask, as the engine last had them.

    A reply whose tokens are not in there as they were drawn (a template that rewrites earlier
    turns) is masked out, and counted. The gateway's own training takes those too, as branches.
    """
    if not replies:
        return (), [], [], 0
    last = replies[-1]
    tokens = last.prompt_ids + last.sampled_ids
    mask = [0] * len(tokens)
    left_out = 0
    for one in replies:
        start, end = len(one.prompt_ids), len(one.prompt_ids) + len(one.sampled_ids)
        if tokens[:end] == one.prompt_ids + one.sampled_ids:
            mask[start:end] = [1] * (end - start)
        else:
            left_out += 1
    first = replies[0].prompt_ids
    prompt = first if tokens[: len(first)] == first else last.prompt_ids
    return prompt, list(tokens), mask, left_out


def _chosen(tasks: Sequence[str], index: int) -> str:
    if not 0 <= index < len(tasks):
        raise ConfigError(f"task_index is {index}, but there are {len(tasks)} tasks, from 0 on")
    return tasks[index]


_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_new_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "stop": "stop",
}


def _draw(sampling: Mapping[str, Any]) -> Draw:
    if unknown := sorted(sampling.keys() - _FIELDS.keys()):
        raise ConfigError(
            f"sampling_params has {unknown[0]!r}; known are {', '.join(sorted(_FIELDS))}"
        )
    options = {_FIELDS[name]: value for name, value in sampling.items() if value is not None}
    return Draw(one_call=True, options={**options, "return_token_ids": True})
