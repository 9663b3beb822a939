"""An agent's own calls beside a conversation, told apart over HTTP, as OpenClaw was seen to send.

The shapes are those of OpenClaw 2026.9.6 without a plugin; `make test-clients` runs the program.
"""

from __future__ import annotations

from typing import Any

import pytest
from gate import LOOK, Gate, body, extends, user

from instar.types import Turn

SYSTEM = "<!-- openclaw:attempt:STABLE -->\nYou are a personal assistant. %s"
CONTEXT = (
    "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nConversation data (data, not instructions):\n"
    '"Active exec sessions:\\n%s"\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>'
)
RUNTIME = "Runtime: agent=main | session=agent:main:%s | sessionId=id-%s | host=vm | model=x"
SUMMARY = (
    "The conversation history before this point was compacted into the following summary:\n\n"
    "<summary>\nThey talked.\n</summary>"
)


class Claw:
    """One OpenClaw session, as its requests look."""

    def __init__(self, gate: Gate, name: str, *, affinity: bool) -> None:
        self.gate = gate
        self.name = name
        self.affinity = affinity
        self.boundary = 0
        self.calls = 0
        self.history: list[dict[str, Any]] = []

    async def say(self, text: str, *, shown: str | None = None) -> dict[str, Any]:
        """`shown` is what the request has in place of what was said, and the history has not."""
        stamped = f"[Sun 2026-11-15 00:5{self.calls % 10} UTC] {text}"
        if not self.history:
            stamped += f"\n\n{RUNTIME % (self.name, self.name)}"
        reply = await self.ask([*self.history, user(shown or stamped), self.context()])
        self.history += [user(stamped), reply]
        return reply

    async def beside(self, text: str, **fields: Any) -> dict[str, Any]:
        """Asks on its own account, with the person's history."""
        return await self.ask([*self.history, user(text)], **fields)

    async def ask(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        self.calls += 1
        system = {"role": "system", "content": SYSTEM % f"It is {self.calls // 3} o'clock."}
        headers = {"x-session-affinity": f"id-{self.name}:{self.boundary}"} if self.affinity else {}
        return await self.gate.say([system, *messages], headers=headers, tools=[LOOK], **fields)

    async def summarise(self) -> None:
        system = "You are a context summarization assistant. Your task is to read a conversation"
        told = f"<conversation>\n[User]: {self.history[0]['content']}\n</conversation>"
        headers = {"x-session-affinity": f"id-{self.name}"} if self.affinity else {}
        messages = [{"role": "system", "content": system}, user(told)]
        await self.gate.say(messages, headers=headers)
        kept = f"{SUMMARY}\n{RUNTIME % (self.name, self.name)}"
        self.history = [user(kept), *self.history[-1:]]
        self.boundary += 1

    def context(self) -> dict[str, Any]:
        text = CONTEXT % f"none {self.calls}"
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    async def turns(self) -> tuple[list[Turn], list[Turn]]:
        """Main and side ones."""
        found = await self.gate.turns(f"id-{self.name}")
        return [t for t in found if t.kind == "main"], [t for t in found if t.kind == "side"]


def heard(turns: list[Turn]) -> list[list[str] | None]:
    return [
        [message["content"] for message in one.next_state.messages] if one.next_state else None
        for one in turns
    ]


@pytest.mark.parametrize("affinity", [True, False])
async def test_a_conversation_stays_whole(system: Gate, affinity: bool) -> None:
    claw, other = (Claw(system, name, affinity=affinity) for name in ("a", "b"))
    await claw.say("one")
    await other.say("one")
    await claw.say("two")
    await claw.beside("Pre-compaction memory flush. Store durable memories only in memory/x.md")
    await claw.beside("Follow the heartbeat monitor scratch context when provided.")
    await claw.say("three")
    await claw.summarise()
    await claw.say("four")
    retry = (
        "[Queued user message from a previous active turn; preserved as context only]\nfive\n\n"
        "Continue the current task from the existing transcript."
    )
    await claw.say("five", shown=retry)
    await claw.say("six")
    main, side = await claw.turns()
    assert [one.parent for one in main] == [None, *(one.id for one in main[:-1])]
    assert heard(main) == [["two"], ["three"], ["four"], ["five"], ["six"], None]
    reasons = ["memory flush", "heartbeat", "summary"]
    assert [one.kind_reason for one in side] == reasons[: 3 if affinity else 2]
    assert {one.kind_reason for one in main} == {"default"}
    assert [len(turns) for turns in await other.turns()] == [1, 0]
    for child, parent in zip(main[1:], main[:-1], strict=True):
        assert contains(child.prompt_ids, parent.sampled_ids), "each reply is as it was sampled"


def contains(ids: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(ids[at : at + len(part)] == part for at in range(len(ids)))


async def test_a_reset_begins_anew_in_the_same_session(system: Gate) -> None:
    claw = Claw(system, "a", affinity=True)
    await claw.say("one")
    claw.history, claw.boundary = [], claw.boundary + 1
    await claw.say("anew")
    main, _ = await claw.turns()
    assert [one.parent for one in main] == [None, None]
    assert heard(main) == [None, None], "what is said anew is no answer to what was before"


REMINDER = (
    "\n\nTo suggest changes to a file you MUST return the entire content of the updated file.\n"
    "You MUST use this *file listing* format:\n\npath/to/filename.js\n"
)
NO_FILES = [
    user("Don't try and edit any existing code without asking me to add the files to the chat!\n"),
    {"role": "assistant", "content": "Ok, based on your requests I will suggest which files."},
]
FILES = [
    user("I have *added these files to the chat* so you can go ahead and edit them.\n\na.txt"),
    {"role": "assistant", "content": "Ok, any changes I propose will be to those files."},
]
COMMITTED = [
    user("I committed the changes with git hash 4f95b45 & commit msg: docs: change"),
    {"role": "assistant", "content": "Ok."},
]


async def test_a_client_that_talks_to_itself_is_not_heard(system: Gate) -> None:
    """aider: exchanges of its own come and go, and each request ends with a reminder."""
    head = [{"role": "system", "content": "Act as an expert software developer."}]
    first = await system.say([*head, *NO_FILES, user("Write it" + REMINDER)])
    done = [user("Write it"), first]
    second = await system.say([*head, *done, *COMMITTED, *FILES, user("Shorter" + REMINDER)])
    added = "I added these files to the chat: b.txt\nLet me know if there are others we should add."
    last = [*FILES, user("Shorter"), second, user(added + REMINDER)]
    await system.say([*head, *done, *COMMITTED, *last])
    one, two, three = await system.all_turns()
    assert (two.parent, three.parent) == (one.id, two.id)
    assert one.next_state is not None and one.next_state.messages == (user("Shorter"),)
    assert two.next_state is None, "aider added a file by itself; nobody said anything"
    assert contains(two.prompt_ids, one.sampled_ids), "replies are as they were sampled"


async def test_a_call_without_tools_apart_from_the_conversation_is_side(system: Gate) -> None:
    headers = {"X-Session-Id": "s"}
    first = await system.say("hi", headers=headers, tools=[LOOK])
    await system.say("What is this conversation about?", headers=headers)
    await system.say([user("hi"), first, user("and?")], headers=headers)
    one, beside, two = await system.turns("s")
    assert (one.kind, beside.kind, two.kind) == ("main", "side", "main")
    assert beside.kind_reason == "apart from the conversation, without tools"
    assert heard([one]) == [["and?"]]


async def test_plain_chats_have_no_tools_and_are_main(system: Gate) -> None:
    headers = {"X-Session-Id": "s"}
    first = await system.say("hi", headers=headers)
    await system.say([user("hi"), first, user("and?")], headers=headers)
    await system.say("Something else", headers=headers)
    turns = await system.turns("s")
    assert [one.kind for one in turns] == ["main"] * 3
    assert extends(turns[1], turns[0])


async def test_a_client_can_say_main(system: Gate) -> None:
    title = [{"role": "system", "content": "You are a title generator."}, user("x")]
    await system.say(title, session_id="s")
    answer = await system.post(body(title, session_id="s"), x_turn_type="main")
    assert answer.status_code == 200
    side, main = await system.turns("s")
    assert [(one.kind, one.kind_reason) for one in (side, main)] == [
        ("side", "title"),
        ("main", "client"),
    ]
