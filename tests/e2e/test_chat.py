"""Chat Completions as the openai SDK speaks it, and what the store keeps of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gate import END, LOOK, MODEL, Gate, decoded, extends, gate, listening, sdk, user

CALL = {"name": "look", "arguments": {"at": "the sky", "n": [1, None]}}


async def streamed(client: Any, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """A streamed reply put together as a client would, and its chunks."""
    stream = await client.chat.completions.create(model=MODEL, stream=True, **fields)
    chunks = [chunk async for chunk in stream]
    reply: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for chunk in chunks:
        for choice in chunk.choices:
            reply["content"] += choice.delta.content or ""
            reply["reasoning"] += (choice.delta.model_extra or {}).get("reasoning_content") or ""
            reply["calls"] += choice.delta.tool_calls or []
            reply["finish"] = choice.finish_reason or reply["finish"]
    return reply, chunks


async def whole(client: Any, **fields: Any) -> dict[str, Any]:
    """The same of a reply that came in one piece."""
    answer = await client.chat.completions.create(model=MODEL, **fields)
    choice = answer.choices[0]
    return {
        "content": choice.message.content or "",
        "reasoning": (choice.message.model_extra or {}).get("reasoning_content") or "",
        "calls": choice.message.tool_calls or [],
        "finish": choice.finish_reason,
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_content_reasoning_and_calls_reach_the_client(tmp_path: Path, stream: bool) -> None:
    script = [{"text": "It is blue: ☃.", "reasoning": "hm,\n\nwell", "tool_calls": [CALL, CALL]}]
    async with listening(tmp_path, script) as address, sdk(address) as client:
        fields: dict[str, Any] = {"messages": [user("hi")], "tools": [LOOK]}
        reply = (await streamed(client, **fields))[0] if stream else await whole(client, **fields)
    assert reply["content"] == "It is blue: ☃."
    assert reply["reasoning"] == "hm,\n\nwell"
    assert [call.function.name for call in reply["calls"]] == ["look", "look"]
    assert [json.loads(c.function.arguments) for c in reply["calls"]] == [CALL["arguments"]] * 2
    assert len({call.id for call in reply["calls"]}) == 2
    assert reply["finish"] == "tool_calls"


async def test_a_stream_comes_in_pieces_and_ends_with_usage(tmp_path: Path) -> None:
    text = "one two three four five"
    async with listening(tmp_path, [{"text": text}]) as address, sdk(address) as client:
        reply, chunks = await streamed(
            client, messages=[user("count")], stream_options={"include_usage": True}
        )
    assert reply["content"] == text
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 3
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "stop"
    usage = chunks[-1].usage
    assert usage.completion_tokens == len(text) + 1, "the end-of-turn token was sampled too"
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stream_tells_its_usage_unasked_with_the_finish(tmp_path: Path) -> None:
    async with listening(tmp_path, [{"text": "one"}]) as address, sdk(address) as client:
        _, chunks = await streamed(client, messages=[user("count")])
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == len("one") + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("stream", [True, False])
async def test_each_sampled_token_has_its_logprob(tmp_path: Path, stream: bool) -> None:
    fields: dict[str, Any] = {"messages": [user("x")], "logprobs": True, "top_logprobs": 2}
    async with listening(tmp_path, [{"text": "abc"}]) as address, sdk(address) as client:
        if stream:
            _, chunks = await streamed(client, **fields)
            kept = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
            entries = [entry for logprobs in kept for entry in logprobs.content]
        else:
            answer = await client.chat.completions.create(model=MODEL, **fields)
            entries = answer.choices[0].logprobs.content
    assert [entry.token for entry in entries[:3]] == ["a", "b", "c"]
    assert len(entries) in (3, 4)
    for entry in entries:
        first, other = entry.top_logprobs
        assert first.token == entry.token != other.token
        assert other.logprob < first.logprob == entry.logprob < 0
    assert entries[0].bytes == [97]


@pytest.mark.parametrize("pieces", [1, 3, 50])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_is_never_shown(tmp_path: Path, stream: bool, pieces: int) -> None:
    """Also where it is split over tokens, and pieces of it are what a reply may contain."""
    script = [{"text": "a ST b STO c STOP d"}]
    fields: dict[str, Any] = {"messages": [user("x")], "stop": ["STOP", "never"]}
    async with (
        listening(tmp_path, script, engine__piece_tokens=pieces) as address,
        sdk(address) as client,
    ):
        reply = (await streamed(client, **fields))[0] if stream else await whole(client, **fields)
    assert (reply["content"], reply["finish"]) == ("a ST b STO c ", "stop")


async def test_a_seed_fixes_the_reply(system: Gate) -> None:
    first, again, other = [
        (await system.say("x", seed=seed))["content"] for seed in (7, 7, 2**64 - 1)
    ]
    assert first == again != other
    seeds = {turn.settings.seed for turn in await system.all_turns()}
    assert seeds == {7, 2**64 - 1}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_reply_is_cut_at_its_longest(system: Gate, name: str) -> None:
    answer = await system.ask("x", **{name: 5})
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5
    (turn,) = await system.all_turns()
    assert (turn.finish, len(turn.sampled_ids)) == ("length", 5)


async def test_the_newer_name_of_max_tokens_wins(system: Gate) -> None:
    answer = await system.ask("x", max_tokens=9, max_completion_tokens=4)
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"role": "user", "content": "plain"}, "<|im_start|>user\nplain<|im_end|>"),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            "<|im_start|>user\na\nb<|im_end|>",
        ),
        ({"role": "assistant", "content": None}, "<|im_start|>assistant\n<|im_end|>"),
        ({"role": "user"}, "<|im_start|>user\n<|im_end|>"),
        ({"role": "developer", "content": "obey"}, "<|im_start|>system\nobey<|im_end|>"),
    ],
)
async def test_every_form_of_content_is_rendered(
    system: Gate, message: dict[str, Any], shown: str
) -> None:
    await system.say([message])
    (turn,) = await system.all_turns()
    assert decoded(turn.prompt_ids) == f"{shown}\n<|im_start|>assistant\n"


async def test_models_are_listed(tmp_path: Path) -> None:
    async with (
        listening(tmp_path, gateway__model_aliases='["gpt-4o"]') as address,
        sdk(address) as client,
    ):
        names = [model.id async for model in client.models.list()]
        reply = await client.chat.completions.create(model="gpt-4o", messages=[user("x")])
        named = await client.chat.completions.create(model=f"{MODEL}:base", messages=[user("x")])
    assert names == [MODEL, "gpt-4o", f"{MODEL}:base"]
    assert reply.model == "gpt-4o"
    assert named.system_fingerprint == "base"


@pytest.mark.parametrize("stream", [True, False])
async def test_one_call_a_turn_where_the_client_asks_for_it(tmp_path: Path, stream: bool) -> None:
    script = [{"text": "so", "tool_calls": [CALL, CALL, CALL]}]
    fields: dict[str, Any] = {
        "messages": [user("x")],
        "tools": [LOOK],
        "parallel_tool_calls": False,
    }
    async with listening(tmp_path, script) as address, sdk(address) as client:
        reply = (await streamed(client, **fields))[0] if stream else await whole(client, **fields)
    assert len(reply["calls"]) == 1
    assert reply["finish"] == "tool_calls"


async def test_tools_are_told_to_a_model_whose_template_knows_none(system: Gate) -> None:
    await system.say([{"role": "system", "content": "Be brief."}, user("x")], tools=[LOOK])
    await system.say("x", tools=[LOOK], tool_choice="none")
    told, untold = sorted(await system.all_turns(), key=lambda turn: -len(turn.prompt_ids))
    text = decoded(told.prompt_ids)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert '"name": "look"' in text and "<tool_call></tool_call>" in text
    assert "look" not in decoded(untold.prompt_ids)
    assert (told.tools, untold.tools) == ((LOOK,), ())


async def test_a_tool_loop_is_recorded_token_exactly(tmp_path: Path) -> None:
    """The client re-serialises everything; each prompt still extends the one before."""
    script = [
        {"text": "I look twice.", "reasoning": "where?", "tool_calls": [CALL, CALL]},
        {"tool_calls": [CALL]},
        {"text": "Done: it is blue."},
        {"text": "You are welcome."},
    ]
    headers = {"X-Session-Id": "loop"}
    async with gate(tmp_path, script) as opened:
        history: list[dict[str, Any]] = [{"role": "system", "content": "Use tools."}, user("Sky?")]
        delivered = []
        for results in (2, 1, 0, 0):
            reply = await opened.say(history, headers=headers, tools=[LOOK])
            delivered.append(reply)
            history.append(resent(reply))
            for at, call in enumerate(reply.get("tool_calls", ())):
                name = call["id"].replace("_", "")
                history.append({"role": "tool", "tool_call_id": name, "content": f"blue {at}"})
            assert len(reply.get("tool_calls", ())) == results
            if not results:
                history.append(user("Thanks"))
        turns = await opened.turns("loop")
        assert await opened.metric("instar_turns_total") == 4
    assert [turn.parent for turn in turns] == [None, *(turn.id for turn in turns[:-1])]
    assert [turn.extends for turn in turns] == [False, True, True, True]
    assert all(extends(turn, above) for turn, above in zip(turns[1:], turns, strict=False))
    assert [len(turn.next_state.messages) if turn.next_state else 0 for turn in turns] == [
        *(2, 1, 1, 0)
    ], "each turn knows all that followed it, both results of the first"
    roles = [m["role"] for m in turns[0].next_state.messages] if turns[0].next_state else []
    assert roles == ["tool", "tool"]
    for turn, line, reply in zip(turns, script, delivered, strict=True):
        text = decoded(turn.sampled_ids)
        assert text.endswith(END) and line.get("text", "") in text
        assert turn.reply == reply
        assert len(turn.logprobs) == len(turn.sampled_ids) > 1


def resent(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply as some clients resend it: trimmed, no thinking, other ids, other JSON."""
    calls = [
        {
            "id": call["id"].replace("_", ""),
            "type": "function",
            "function": {
                "name": call["function"]["name"],
                "arguments": json.dumps(
                    dict(reversed(json.loads(call["function"]["arguments"]).items())), indent=2
                ),
            },
        }
        for call in reply.get("tool_calls", ())
    ]
    text = [{"type": "text", "text": (reply["content"] or "").strip()}]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


async def test_kinds_and_no_train_are_recorded(system: Gate) -> None:
    session = {"X-Session-Id": "kinds"}
    await system.say("a", headers=session)
    await system.say("b", headers={**session, "X-Turn-Type": "side"})
    await system.say("c", headers={**session, "X-No-Train": "1"})
    await system.say("d", headers=session, no_train=True, turn_type="side")
    turns = await system.turns("kinds")
    assert [(t.kind, t.kind_reason, t.no_train) for t in turns] == [
        ("main", "default", False),
        ("side", "client", False),
        ("main", "default", True),
        ("side", "client", True),
    ]


@pytest.mark.parametrize(
    ("header", "body", "private"),
    [
        ("y", None, True),
        ("0", True, True),
        ("1", False, True),
        (None, "please", True),
        ("off", None, False),
        ("", False, False),
        (None, 0, False),
    ],
)
async def test_a_turn_is_private_if_header_or_body_say_anything_but_no(
    system: Gate, header: str | None, body: bool | str | int | None, private: bool
) -> None:
    headers = {"X-Session-Id": "p"} | ({} if header is None else {"X-No-Train": header})
    await system.say("a", headers=headers, **({} if body is None else {"no_train": body}))
    (turn,) = await system.turns("p")
    assert turn.no_train is private


async def test_a_side_turn_is_not_what_followed(system: Gate) -> None:
    """A title made from a conversation is not the person's answer to it."""
    session = {"X-Session-Id": "title"}
    reply = await system.say("hi", headers=session)
    history = [user("hi"), reply, user("Give this a title.")]
    await system.say(history, headers={**session, "X-Turn-Type": "side"})
    first, side = await system.turns("title")
    assert (side.parent, first.next_state) == (first.id, None)
