"""A judge that is down for a whole run: serving and recording go on, turns are judged later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gate import Gate, user

from instar.judge.hints import WordHinter
from instar.judge.next_state import Case
from instar.judge.panel import PanelJudge
from instar.learn.judging import JudgeWorker


class Voter:
    """Cannot be reached while it is down."""

    def __init__(self) -> None:
        self.down = True
        self.asked = asyncio.Event()

    async def votes(self, case: Case, count: int) -> Sequence[int | None]:
        self.asked.set()
        if self.down:
            raise ConnectionError("nobody is there")
        return [-1] * count


async def test_turns_wait_for_a_judge_that_is_down(system: Gate) -> None:
    voter, store = Voter(), system.system.store
    judge = PanelJudge(voter=voter, hinter=WordHinter())
    stop = asyncio.Event()
    running = asyncio.ensure_future(JudgeWorker(store, judge).run(stop))
    history = [user("Hello")]
    for text in ("Too long.", "No lists.", "Again, too long."):
        reply = await system.say(history, headers={"x-session-id": "s"})
        history += [reply, user(text)]
        if text != "Too long.":
            await voter.asked.wait()  # from the second turn on there is something to judge
    turns = await system.turns("s")
    assert [turn.verdict for turn in turns] == [None, None, None]
    assert len(await store.ready()) == 2
    stop.set()
    await running

    voter.down = False
    later = JudgeWorker(store, judge)
    assert await later.drain()
    assert later.counts == {"judged": 2, "no_verdict": 0, "hinted": 0, "given_up": 0, "failed": 0}
    first, second, last = await system.turns("s")
    assert first.verdict is not None and first.verdict.score == -1
    assert first.hint is not None and first.hint.text == "Keep the answer short."
    assert second.hint is not None and second.hint.text == "Do not use lists."
    assert last.verdict is None  # nothing has followed it yet
