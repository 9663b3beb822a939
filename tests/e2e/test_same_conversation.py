"""One conversation is the same prompt in every dialect, and each turn extends the last."""

from __future__ import annotations

import asyncio
import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pytest
from gate import LOOK, MODEL, Gate, extends, gate
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

LETTERS = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters="<>")
words = st.text(LETTERS | st.just("\n"), max_size=12)
calls = st.lists(st.fixed_dictionaries({"at": words}), max_size=2)
replies = st.fixed_dictionaries({"text": words, "reasoning": words, "calls": calls})
steps = st.lists(st.tuples(words, replies), min_size=2, max_size=4)


class Client(Protocol):
    """An agent that keeps its history in one dialect's own form."""

    async def say(self, gate: Gate, text: str) -> list[str]:
        """Send a text; gives the ids of the calls that the reply makes."""
        ...

    async def answer(self, gate: Gate, results: dict[str, str]) -> list[str]:
        """Send the results of calls."""
        ...


async def _post(gate: Gate, path: str, body: dict[str, Any]) -> Any:
    answer = await gate.http.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


class Chat:
    def __init__(self, system: str) -> None:
        self.history: list[Any] = [{"role": "system", "content": system}] if system else []

    async def say(self, gate: Gate, text: str) -> list[str]:
        self.history.append({"role": "user", "content": text})
        return await self._ask(gate)

    async def answer(self, gate: Gate, results: dict[str, str]) -> list[str]:
        for name, text in results.items():
            self.history.append({"role": "tool", "tool_call_id": name, "content": text})
        return await self._ask(gate)

    async def _ask(self, gate: Gate) -> list[str]:
        fields = {"messages": self.history, "tools": [LOOK]}
        found = await _post(gate, "/v1/chat/completions", fields)
        message = found["choices"][0]["message"]
        self.history.append(message)
        return [call["id"] for call in message.get("tool_calls", ())]


class Messages:
    def __init__(self, system: str) -> None:
        self.system = {"system": [{"type": "text", "text": system}]} if system else {}
        self.history: list[Any] = []

    async def say(self, gate: Gate, text: str) -> list[str]:
        block = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        self.history.append({"role": "user", "content": [block]})
        return await self._ask(gate)

    async def answer(self, gate: Gate, results: dict[str, str]) -> list[str]:
        blocks = [
            {"type": "tool_result", "tool_use_id": name, "content": text, "is_error": False}
            for name, text in results.items()
        ]
        self.history.append({"role": "user", "content": blocks})
        return await self._ask(gate)

    async def _ask(self, gate: Gate) -> list[str]:
        function = LOOK["function"]
        assert isinstance(function, dict)
        schema = {"name": "look", "description": function["description"]}
        tool = {**schema, "input_schema": function["parameters"]}
        hosted = {"type": "web_search_20250305", "name": "web_search"}
        fields = {"messages": self.history, "tools": [tool, hosted], "max_tokens": 1024}
        found = await _post(gate, "/v1/messages?beta=true", {**fields, **self.system})
        self.history.append({"role": "assistant", "content": found["content"]})
        return [block["id"] for block in found["content"] if block["type"] == "tool_use"]


class Responses:
    def __init__(self, system: str, *, resend: bool) -> None:
        self.system = {"instructions": system} if system else {}
        self.resend = resend
        self.last: str | None = None
        self.items: list[Any] = []

    async def say(self, gate: Gate, text: str) -> list[str]:
        self.items.append({"role": "user", "content": [{"type": "input_text", "text": text}]})
        return await self._ask(gate)

    async def answer(self, gate: Gate, results: dict[str, str]) -> list[str]:
        for name, text in results.items():
            self.items.append({"type": "function_call_output", "call_id": name, "output": text})
        return await self._ask(gate)

    async def _ask(self, gate: Gate) -> list[str]:
        tool = {"type": "function", "strict": False, **LOOK["function"]}  # type: ignore[dict-item]
        fields = {"input": self.items, "tools": [tool, {"type": "web_search"}], **self.system}
        if not self.resend:
            fields["previous_response_id"] = self.last
        found = await _post(gate, "/v1/responses", {**fields, "store": not self.resend})
        self.last = found["id"]
        self.items = [*self.items, *found["output"]] if self.resend else []
        return [item["call_id"] for item in found["output"] if item["type"] == "function_call"]


async def talk(home: Path, client: Client, spoken: list[Any]) -> list[Any]:
    """The turns that are recorded of a conversation."""
    script, results = [], []
    for _, reply in spoken:
        made = [{"name": "look", "arguments": one} for one in reply["calls"]]
        script.append({"text": reply["text"], "reasoning": reply["reasoning"], "tool_calls": made})
        results.append([json.dumps(one) for one in reply["calls"]])
    async with gate(home, script) as opened:
        names: list[str] = []
        for (text, _), before in zip(spoken, [[], *results], strict=False):
            assert len(names) == len(before)
            if names:
                answers = dict(zip(names, before, strict=True))
                names = await client.answer(opened, answers)
            else:
                names = await client.say(opened, text)
        sessions = await opened.system.store.sessions("local")
        assert len(sessions) == 1, "the history alone tells the session"
        return await opened.turns(sessions[0].id)


@given(system=words, spoken=steps)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    # Looking for a smaller failure would open thousands of gateways.
    phases=[Phase.explicit, Phase.generate],
)
def test_the_same_conversation_is_the_same_prompt_in_every_dialect(
    system: str, spoken: list[Any]
) -> None:
    clients: dict[str, Client] = {
        "chat": Chat(system),
        "messages": Messages(system),
        "responses, resent": Responses(system, resend=True),
        "responses, by id": Responses(system, resend=False),
    }
    seen: dict[str, list[Any]] = {}
    for name, client in clients.items():
        with tempfile.TemporaryDirectory() as home:
            seen[name] = asyncio.run(talk(Path(home), client, spoken))
    for name, turns in seen.items():
        assert len(turns) == len(spoken)
        assert [t.prompt_ids for t in turns] == [t.prompt_ids for t in seen["chat"]], name
        for before, after in pairwise(turns):
            assert after.parent == before.id and after.extends, name
            assert extends(after, before), name


@pytest.mark.parametrize("system", ["", "Be brief."])
def test_such_a_conversation_has_calls_and_thoughts(tmp_path: Path, system: str) -> None:
    """Else the test above could say little: one example by hand."""
    spoken: list[Any] = [
        ("look up", {"text": "I look.", "reasoning": "hm", "calls": [{"at": "sky"}, {"at": "x"}]}),
        ("", {"text": "Blue.", "reasoning": "", "calls": []}),
        ("thanks", {"text": "", "reasoning": "", "calls": []}),
    ]
    for number, client in enumerate([Messages(system), Responses(system, resend=True)]):
        home = tmp_path / str(number)
        home.mkdir()
        first, second, third = asyncio.run(talk(home, client, spoken))
        assert [call["function"]["arguments"] for call in first.reply["tool_calls"]] == [
            '{"at":"sky"}',
            '{"at":"x"}',
        ]
        assert first.reply["reasoning_content"] == "hm"
        assert [m["role"] for m in second.messages[-3:]] == ["assistant", "tool", "tool"]
        assert first.finish == "tool_calls" and third.reply["content"] == ""
        assert third.messages[-1] == {"role": "user", "content": "thanks"}
