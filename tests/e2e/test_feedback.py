"""`POST /v1/feedback`: what a person says wins, is theirs alone, and is refused clearly."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from gate import Gate, user

from instar.record.keys import Keys
from instar.types import Hint, Verdict


async def give(system: Gate, body: Any, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await system.http.post("/v1/feedback", json=body, headers=named)


async def talk(system: Gate, session: str = "s", **fields: Any) -> str:
    """Two turns and one on the side; gives the id of the last main one."""
    headers = {"x-session-id": session}
    first = await system.say("Hello", headers=headers, **fields)
    await system.say([user("Hello"), first, user("More")], headers=headers, **fields)
    await system.say("Title?", headers=headers, turn_type="side")
    turns = [turn for turn in await system.turns(session) if turn.kind == "main"]
    return turns[-1].id


async def test_a_verdict_on_a_turn_and_on_a_sessions_last_main_turn(system: Gate) -> None:
    last = await talk(system)
    first = (await system.turns("s"))[0].id
    answer = await give(system, {"turn": first, "score": 1})
    assert answer.json() == {"turn": first, "session": "s", "score": 1, "used": True}
    answer = await give(system, {"session": "s", "score": -1, "text": " Too long. "})
    assert answer.json()["turn"] == last
    found = {turn.id: turn for turn in await system.turns("s")}
    assert found[first].verdict == Verdict(score=1, source="person")
    assert found[last].verdict == Verdict(score=-1, source="person")
    assert found[last].hint == Hint(text="Keep the answer short.", source="person")
    answer = await give(system, {"score": 0}, x_session_id="s")
    assert answer.json()["turn"] == last
    assert await system.metric("instar_requests_total") >= 3


async def test_a_person_wins_over_the_judge_before_and_after(system: Gate) -> None:
    last = await talk(system)
    store = system.system.store
    judged = Verdict(score=-1, votes=(-1, -1, 1))
    await store.set_verdict(last, judged, Hint(text="Be brief."))
    await give(system, {"turn": last, "score": 1, "text": "Perfect, thanks!"})
    found = (await store.turn("local", last)) or pytest.fail("it is gone")
    # A reply that was good needs no hint: the judge's was a mistake, and praise is none.
    assert (found.verdict, found.hint) == (Verdict(score=1, source="person"), None)
    await store.set_verdict(last, judged, None)
    found = (await store.turn("local", last)) or pytest.fail("it is gone")
    assert found.verdict == Verdict(score=1, source="person")
    await give(system, {"turn": last, "score": -1, "text": "On second thought: shorter."})
    found = (await store.turn("local", last)) or pytest.fail("it is gone")
    assert found.hint is not None
    assert found.hint.text == "Keep the answer short. On second thought: shorter."


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Too long!!", "Keep the answer short."),
        ("Bullets again? Seriously?", "Do not use lists."),
        ("Mention the dog.", "Mention the dog."),
        # What cannot be made into an instruction stays as it was said, at most three sentences.
        ("It was mediocre.", "It was mediocre."),
        ("One thing. And one. And one. And one.", "One thing. And one. And one."),
        ("ab " * 3000, ("Ab " + "ab " * 200)[:400]),
        # Scorn is nobody's instruction.
        ("Sure, because I love reading manuals.", None),
    ],
)
async def test_words_become_an_instruction_as_in_a_reply(
    system: Gate, text: str, hint: str | None
) -> None:
    last = await talk(system)
    assert (await give(system, {"turn": last, "score": -1, "text": text})).status_code == 200
    found = (await system.system.store.turn("local", last)) or pytest.fail("it is gone")
    assert found.hint == (None if hint is None else Hint(text=hint, source="person"))


async def test_a_turn_that_a_person_judged_leaves_the_judges_queue(system: Gate) -> None:
    await talk(system)
    first = (await system.turns("s"))[0].id
    assert [turn.id for turn in await system.system.store.ready()] == [first]
    await give(system, {"turn": first, "score": 0})
    assert await system.system.store.ready() == []


async def test_a_private_turn_keeps_nothing(system: Gate) -> None:
    last = await talk(system, no_train=True)
    answer = await give(system, {"turn": last, "score": -1, "text": "My secret."})
    assert answer.json()["used"] is False
    found = (await system.system.store.turn("local", last)) or pytest.fail("it is gone")
    assert (found.verdict, found.hint) == (None, None)
    assert await system.system.store.ready() == []


async def test_what_goes_on_from_a_private_turn_is_private_too(system: Gate) -> None:
    private = {"x-session-id": "s", "x-no-train": "1"}
    first = await system.say("Hello", headers={"x-session-id": "s"})
    history = [user("Hello"), first, user("I am ill, in private.")]
    second = await system.say(history, headers=private)
    later = [*history, second, user("And what can I take?")]
    await system.say(later, headers={"x-session-id": "s"})
    await system.say([*history[:2], user("Thanks!")], headers={"x-session-id": "s"})
    assert [turn.no_train for turn in await system.turns("s")] == [False, True, True, False]
    assert [turn.session for turn in await system.system.store.ready()] == ["s"]


async def test_what_is_said_in_private_teaches_nothing_about_the_turn_before(system: Gate) -> None:
    first = await system.say("Hello", headers={"x-session-id": "s"})
    history = [user("Hello"), first, user("No! I told you about my illness.")]
    await system.say(history, headers={"x-session-id": "s", "x-no-train": "1"})
    await system.system.store.close_session("local", "s", 0.0)
    turns = await system.turns("s")
    assert [turn.next_state for turn in turns] == [None, None]
    assert await system.system.store.ready() == []


async def test_owners_cannot_reach_each_others_turns(system: Gate) -> None:
    last = await talk(system)
    _, secret = await Keys(system.system.store).create_key("ben")
    for body in ({"turn": last, "score": 1}, {"session": "s", "score": 1}):
        answer = await give(system, body, authorization=f"Bearer {secret}")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
    found = await system.system.store.turn("local", last)
    assert found is not None and found.verdict is None


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"turn": "t1", "score": 2}, 400, "score"),
        ({"turn": "t1", "score": True}, 400, "score"),
        ({"turn": "t1", "score": 1.0}, 400, "score"),
        ({"turn": "t1", "score": "1"}, 400, "score"),
        ({"turn": "t1", "score": [1]}, 400, "score"),
        ({"turn": "t1"}, 400, "score"),
        ({"score": 1}, 400, "turn"),
        ({"turn": "", "score": 1}, 400, "turn"),
        ({"turn": "t1", "session": "s", "score": 1}, 400, "turn"),
        ({"turn": 5, "score": 1}, 400, "turn"),
        ({"turn": "t1", "score": 1, "text": 5}, 400, "text"),
        ({"turn": "t1", "score": 1, "text": "x" * 10_001}, 400, "text"),
        ({"turn": "t1", "score": 1, "txet": "x"}, 400, "txet"),
        ({"session": "a\nb", "score": 1}, 400, "session_id"),
        ({"turn": "t1", "score": 1}, 404, "turn"),
        ({"session": "nobody", "score": 1}, 404, "session"),
        ([], 400, None),
    ],
)
async def test_mistakes_are_told_in_openais_shape(
    system: Gate, body: Any, status: int, param: str | None
) -> None:
    answer = await give(system, body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]
