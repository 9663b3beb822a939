"""A judge behind any OpenAI-compatible endpoint, asked m times.

It is shown the request, what was said before, the reply and the WHOLE next state, and answers
with JSON or a boxed number. Anything else is an invalid vote (None), and so is one that does not
come in time. If none came, that is an error and not a vote.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
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
- Of several tool results one that failed decides. If the person spoke after them, their words \
come first; where these say nothing about the answer, the tool results decide.

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
        # The endpoint may be instar itself: what a judge is asked quotes what a person may have
        # forgotten later, so nothing of it is kept there; an older one at least learns nothing.
        headers = {"X-No-Record": "1", "X-No-Train": "1", "X-Turn-Type": "side"}
        try:
            answer = await self.client.post("chat/completions", json=body, headers=headers)
            answer.raise_for_status()
            content = answer.json()["choices"][0]["message"]["content"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise JudgeError(f"{self.client.base_url} gave no answer: {error!r}") from error
        return content if isinstance(content, str) else ""

    async def several(self, system: str, user: str, count: int, within_s: float) -> list[str]:
        """Answers to one question asked so often, "" for each that failed or did not come within
        the time. Raises JudgeError if there was none at all."""
        asked = [asyncio.ensure_future(self.complete(system, user)) for _ in range(count)]
        try:
            done, _ = await asyncio.wait(asked, timeout=within_s)
        finally:
            for one in asked:
                one.cancel()
        problems = [one.exception() for one in done]
        if None not in problems:
            late = JudgeError(f"{self.client.base_url} gave no answer within {within_s:g} s")
            raise next((one for one in problems if one is not None), late)
        return [one.result() if one in done and not one.exception() else "" for one in asked]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmVoter:
    """One vote a sample."""

    endpoint: Endpoint
    timeout_s: float = 60.0

    async def votes(self, case: Case, count: int) -> Sequence[int | None]:
        question = describe(case)
        answers = await self.endpoint.several(SCORE_PROMPT, question, count, self.timeout_s)
        return [read_score(one) for one in answers]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmHinter:
    """Lets the model say what should have been different, as often as there are votes."""

    endpoint: Endpoint
    timeout_s: float = 60.0

    async def hints(self, case: Case, count: int) -> Sequence[str]:
        answers = await self.endpoint.several(HINT_PROMPT, describe(case), count, self.timeout_s)
        found = [hint for one in answers if (hint := read_hint(one)) is not None]
        if 2 * len(found) < sum(1 for one in answers if one):
            return []  # most say that the person did not tell what should be different
        return [hint for hint, _ in Counter(found).most_common()]


def open_endpoint(settings: LlmJudge, *, model: str | None) -> Endpoint:
    """The endpoint of the config; its key comes from the environment."""
    import httpx

    if not model:
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
        model=model,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
    )


def describe(case: Case) -> str:
    """The case as the model reads it; nothing of the next state is cut."""
    parts = [
        ("earlier", case.history[-HISTORY_CHARS:]),
        ("request", case.request),
        ("answer", case.response),
        *((f"what happened next ({kind})", text) for kind, text in _following(case)),
    ]
    return "\n\n".join(f"[{title}]\n{text}" for title, text in parts if text or title != "earlier")


def _following(case: Case) -> Iterator[tuple[str, str]]:
    """The next state piece by piece, with who spoke."""
    several = len(case.tools) > 1
    for number, one in enumerate(case.tools, 1):
        yield (f"tool result {number} of {len(case.tools)}" if several else "tool result"), one.text
    if case.role == "user":
        yield "the person's reply", case.next


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
        except (ValueError, RecursionError):  # of a bracket said over and over
            continue
        if isinstance(value, dict) and key in value:
            return value
    return None
