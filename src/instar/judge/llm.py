"""A judge behind any OpenAI-compatible endpoint, asked m times.

It is shown the request, what was said before, the reply and the WHOLE next state, and answers
with JSON or a boxed number. Anything else is an invalid vote (None). If no question could be
put at all, that is an error and not a vote.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from instar.config import LlmJudge, secret
from instar.errors import ConfigError, JudgeError
from instar.judge.next_state import Case

if TYPE_CHECKING:
    import httpx

SCORE_PROMPT = """You judge whether an assistant's answer did what the person wanted, from what \
happened next.

Rules:
- What happened next is the evidence. Do not judge the answer by your own taste.
- 1: the person thanks, accepts, or builds on the answer; or the tool call succeeded.
- -1: the person corrects, complains, repeats or rephrases the request, is sarcastic, or asks for \
the answer to be changed (also its length, format or tone), even if they praise a part of it; or \
the tool call failed. A tool's result exists because the assistant called the tool.
- 0: a new topic, a neutral follow-up question, an answer to the assistant's question, small talk, \
or an empty tool result.

Think briefly. Then end with one line of JSON and nothing after it: {"score": 1} or {"score": 0} \
or {"score": -1}"""

HINT_PROMPT = """A person was not content with an assistant's answer. From what they said next, \
write what the assistant should have done: one to three short sentences, as an instruction to the \
assistant ("Answer in one sentence."). Use only what the person said. Do not repeat facts of the \
topic unless they corrected one.

End with one line of JSON and nothing after it: {"hint": "..."} or, if they did not say what \
should be different, {"hint": null}"""

HISTORY_CHARS = 6000
"""The newest part of the history that is shown; the request, reply and next state are whole."""

_BOXED = re.compile(r"\\boxed\{\s*([+-]?\d+)\s*\}")
_SENTENCE = re.compile(r"[^.!?。!?]+[.!?。!?]*\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where chat completions are asked for."""

    client: httpx.AsyncClient
    model: str
    temperature: float = 0.6
    max_tokens: int = 1024

    async def complete(self, system: str, user: str) -> str:
        """The text of one answer. Raises JudgeError if there was none."""
        import httpx

        body = {
            "model": self.model,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": user},
            ],
        }
        # The endpoint may be instar itself: what a judge says is never a turn to learn from.
        headers = {"X-No-Train": "1", "X-Turn-Type": "side"}
        try:
            answer = await self.client.post("chat/completions", json=body, headers=headers)
            answer.raise_for_status()
            content = answer.json()["choices"][0]["message"]["content"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise JudgeError(f"{self.client.base_url} gave no answer: {error!r}") from error
        return content if isinstance(content, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmVoter:
    """One vote a sample."""

    endpoint: Endpoint

    async def votes(self, case: Case, count: int) -> Sequence[int | None]:
        question = describe(case)
        asked = (self.endpoint.complete(SCORE_PROMPT, question) for _ in range(count))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        failures = [one for one in answers if isinstance(one, BaseException)]
        if len(failures) == len(answers):
            raise failures[0]
        return [None if isinstance(one, BaseException) else read_score(one) for one in answers]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmHinter:
    """Lets the model say what should have been different."""

    endpoint: Endpoint

    async def hint(self, case: Case) -> str | None:
        return read_hint(await self.endpoint.complete(HINT_PROMPT, describe(case)))


def open_endpoint(settings: LlmJudge, *, model: str | None) -> Endpoint:
    """The endpoint of the config; its key comes from the environment."""
    import httpx

    name = settings.model or model
    if not name:
        raise ConfigError(
            "evaluation.judge.type is llm but no model is named; set evaluation.judge_model"
        )
    key = secret(settings.key)
    client = httpx.AsyncClient(
        base_url=settings.base_url.rstrip("/") + "/",
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=settings.timeout_s,
    )
    return Endpoint(
        client=client,
        model=name,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
    )


def describe(case: Case) -> str:
    """The case as the model reads it; nothing of the next state is cut."""
    kind = "tool result" if case.role == "tool" else "the person's reply"
    history = case.history[-HISTORY_CHARS:]
    parts = [
        ("earlier", history),
        ("request", case.request),
        ("answer", case.response),
        (f"what happened next ({kind})", case.next),
    ]
    return "\n\n".join(f"[{title}]\n{text}" for title, text in parts if text or title != "earlier")


def read_score(text: str) -> int | None:
    """The vote in an answer: its last JSON object with a score, or its last boxed number."""
    if (found := _last_json(text, "score")) is not None:
        score = found["score"]
        valid = isinstance(score, int) and not isinstance(score, bool) and score in (-1, 0, 1)
        return score if valid else None
    if boxed := _BOXED.findall(text):
        score = int(boxed[-1])
        return score if score in (-1, 0, 1) else None
    return None


def read_hint(text: str) -> str | None:
    """The hint in an answer, at most three sentences."""
    found = _last_json(text, "hint")
    hint = found["hint"] if found else None
    if not isinstance(hint, str) or not hint.strip():
        return None
    return "".join(_SENTENCE.findall(hint.strip())[:3]).strip() or None


def _last_json(text: str, key: str) -> dict[str, Any] | None:
    decoder = json.JSONDecoder()
    for found in reversed(list(re.finditer(r"\{", text))):
        try:
            value, _ = decoder.raw_decode(text, found.start())
        except ValueError:
            continue
        if isinstance(value, dict) and key in value:
            return value
    return None
