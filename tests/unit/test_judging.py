"""The worker that judges a store: judges that fail, on one turn or as a whole, and people."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from store_turns import make_turn, user
from typer.testing import CliRunner

from instar.cli import app
from instar.commands.judge import judged
from instar.judge.features import NAMES, features
from instar.judge.fit import Labelled, Recipe, fit_features
from instar.judge.hints import WordHinter
from instar.judge.next_state import Case
from instar.judge.panel import PanelJudge
from instar.judge.probe import Probe, load_calibrations
from instar.learn import judging
from instar.learn.calibrating import NEW_PAIRS, Calibrator
from instar.learn.judging import ATTEMPTS, JudgeWorker
from instar.record.feedback import feedback_counts, give_feedback
from instar.record.forget import forget_session
from instar.record.store import TurnStore, open_store
from instar.types import Hint, NextState, Turn, Verdict


class Voter:
    """Says +1, or -1 of what is too long; fails on "boom", and on everything while it is down."""

    def __init__(self) -> None:
        self.down = False
        self.asked: list[str] = []

    async def votes(self, case: Case, count: int) -> Sequence[int | None]:
        self.asked.append(case.next)
        if self.down or case.next == "boom":
            raise RuntimeError("out of order")
        return [-1 if case.next.startswith("Too long") else 1] * count


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TurnStore]:
    async with open_store(f"sqlite:///{tmp_path}/instar.db") as opened:
        yield opened


async def say(store: TurnStore, name: str, text: str, **fields: Any) -> None:
    following = NextState(messages=(user(text),))
    await store.record(make_turn(name, session=f"s-{name}", next_state=following, **fields))


def worker(store: TurnStore, voter: Voter) -> JudgeWorker:
    return JudgeWorker(store, PanelJudge(voter=voter, hinter=WordHinter()))


async def verdict(store: TurnStore, name: str) -> int | None:
    turn = await store.turn("anna", name)
    assert turn is not None
    return None if turn.verdict is None else turn.verdict.score


async def test_a_turn_on_which_the_judge_always_fails_is_given_up(
    store: TurnStore, caplog: pytest.LogCaptureFixture
) -> None:
    await say(store, "bad", "boom")
    await say(store, "good", "fine")
    voter = Voter()
    judge = worker(store, voter)
    with caplog.at_level(logging.ERROR, "instar.judge"):
        assert await judge.drain()
    assert voter.asked.count("boom") == ATTEMPTS
    assert (await verdict(store, "good"), await verdict(store, "bad")) == (1, None)
    assert await store.ready() == []
    rest = {"no_verdict": 0, "hinted": 0, "given_up": 1, "failed": ATTEMPTS}
    assert judge.counts == {"judged": 1, **rest}
    assert "turn bad gets no verdict" in caplog.text
    assert "out of order" in caplog.text


async def test_bad_turns_in_front_do_not_hold_up_the_others(store: TurnStore) -> None:
    for at in range(40):
        await say(store, f"bad{at}", "boom")
    await say(store, "good", "fine")
    judge = worker(store, Voter())
    for _ in range(40):
        await judge.once()
        if await verdict(store, "good") == 1:
            break
    assert await verdict(store, "good") == 1


async def test_a_judge_that_is_down_costs_no_turn_its_verdict(store: TurnStore) -> None:
    await say(store, "one", "fine")
    await say(store, "two", "fine, too")
    voter = Voter()
    voter.down = True
    judge = worker(store, voter)
    for _ in range(3 * ATTEMPTS):
        assert await judge.once() == (False, 2)
    assert not await judge.drain()
    assert len(await store.ready()) == 2
    voter.down = False
    assert await judge.drain()
    assert (await verdict(store, "one"), await verdict(store, "two")) == (1, 1)
    assert judge.counts["given_up"] == 0


async def test_one_that_goes_down_after_it_answered_costs_none_either(store: TurnStore) -> None:
    voter = Voter()
    judge = worker(store, voter)
    await say(store, "one", "fine")
    assert await judge.drain()
    voter.down = True
    await say(store, "two", "fine, too")
    for _ in range(3 * ATTEMPTS):
        assert await judge.once() == (False, 1)
    voter.down = False
    assert await judge.drain()
    assert await verdict(store, "two") == 1


async def test_pauses_grow_while_the_judge_is_down(
    store: TurnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    stop = asyncio.Event()

    async def pause(_: asyncio.Event, seconds: float) -> None:
        pauses.append(seconds)
        voter.down = len(pauses) < 5
        if len(pauses) == 6:
            stop.set()

    monkeypatch.setattr(judging, "pause", pause)
    await say(store, "one", "fine")
    voter = Voter()
    voter.down = True
    await worker(store, voter).run(stop)
    assert pauses[:5] == [10.0, 20.0, 60.0, 300.0, 300.0]
    assert pauses[5] < 1  # judged, and nothing is left
    assert await verdict(store, "one") == 1


TOO_LONG = "Too long, one sentence."
SHORT = Hint(
    text="Answer in one short sentence.",
    ways=(
        "Answer in one short sentence.",
        f'The user wants: "{TOO_LONG}" Follow this in every answer.',
        TOO_LONG,
    ),
)


async def told(store: TurnStore, name: str, score: Literal[-1, 0, 1], text: str = "") -> Turn:
    """The turn after the person gave it a verdict of their own."""
    hint = Hint(text=text, source="person") if text else None
    verdict = Verdict(score=score, source="person")
    found = await give_feedback(store, "anna", turn=name, verdict=verdict, hint=hint)
    assert found is not None
    return found


async def followed(store: TurnStore, name: str, state: NextState) -> None:
    await store.saw_next(name, state)
    await store.write(lambda _: None)  # goes through the same queue: then the note is on disk


async def hint_of(store: TurnStore, name: str) -> Hint | None:
    turn = await store.turn("anna", name)
    assert turn is not None
    return turn.hint


async def test_words_after_a_persons_own_verdict_are_kept_and_give_a_hint(store: TurnStore) -> None:
    await store.record(make_turn("t"))
    await told(store, "t", -1)
    state = NextState(messages=(user(TOO_LONG),), turn="next")
    await followed(store, "t", state)
    judge = worker(store, Voter())
    assert await judge.drain()
    found = await store.turn("anna", "t")
    assert found is not None
    assert found.next_state == state
    assert found.verdict == Verdict(score=-1, source="person")
    assert found.hint == SHORT
    assert await store.ready() == []
    assert (judge.counts["hinted"], judge.counts["judged"]) == (1, 0)
    assert await feedback_counts(store) == {"anna": 1}  # the judge can be fitted to it


async def test_a_persons_verdict_before_the_judge_still_leaves_a_hint(store: TurnStore) -> None:
    await say(store, "t", TOO_LONG)
    await told(store, "t", -1)
    assert await worker(store, Voter()).drain()
    assert await hint_of(store, "t") == SHORT
    assert await verdict(store, "t") == -1


@pytest.mark.parametrize("score", [0, 1])
async def test_a_reply_that_a_person_does_not_blame_gets_no_hint(
    store: TurnStore, score: Literal[0, 1]
) -> None:
    await store.record(make_turn("before"))
    await told(store, "before", score)
    await followed(store, "before", NextState(messages=(user(TOO_LONG),)))
    await say(store, "after", TOO_LONG)
    await told(store, "after", score)
    assert await store.ready() == []
    found = await store.turn("anna", "before")
    assert found is not None and found.next_state is not None
    assert (found.hint, await hint_of(store, "after")) == (None, None)


async def test_a_next_request_is_no_hint_for_a_reply_that_was_blamed(store: TurnStore) -> None:
    await say(store, "t", "Write a poem about cats.")
    await told(store, "t", -1)
    assert await worker(store, Voter()).drain()
    assert await hint_of(store, "t") is None
    assert await store.ready() == []


async def test_blame_keeps_a_hint_from_the_persons_words_and_a_zero_does_not(
    store: TurnStore,
) -> None:
    await say(store, "t", TOO_LONG)
    assert await worker(store, Voter()).drain()
    assert (await told(store, "t", -1)).hint == SHORT
    assert (await told(store, "t", -1, "In French.")).hint == Hint(
        text="In French.", source="person"
    )
    assert (await told(store, "t", 0)).hint is None
    assert await store.ready() == []


@pytest.mark.parametrize(("score", "hint"), [(1, None), (0, None), (-1, SHORT)])
async def test_what_a_person_says_while_the_judge_thinks_counts(
    store: TurnStore, score: Literal[-1, 0, 1], hint: Hint | None
) -> None:
    class Slow(Voter):
        async def votes(self, case: Case, count: int) -> Sequence[int | None]:
            if not self.asked:
                await told(store, "t", score)
            return await super().votes(case, count)

    await say(store, "t", TOO_LONG)
    assert await worker(store, Slow()).drain()
    assert (await verdict(store, "t"), await hint_of(store, "t")) == (score, hint)
    assert await store.ready() == []


async def test_a_hint_that_cannot_be_found_is_given_up(
    store: TurnStore, caplog: pytest.LogCaptureFixture
) -> None:
    await say(store, "bad", "boom")
    await told(store, "bad", -1)
    await say(store, "good", "fine")
    with caplog.at_level(logging.ERROR, "instar.judge"):
        assert await worker(store, Voter()).drain()
    assert "turn bad gets no hint" in caplog.text
    assert (await verdict(store, "bad"), await store.ready()) == (-1, [])


RULES = ["--set", "evaluation.judge.type=rules", "--set", "engine.type=fake"]


def test_the_command_judges_what_is_ready(tmp_path: Path) -> None:
    failed = NextState(messages=({"role": "tool", "content": "exit code: 1"},))

    async def prepare() -> None:
        async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
            await store.record(make_turn("t", next_state=failed))

    async def look() -> int | None:
        async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
            return await verdict(store, "t")

    asyncio.run(prepare())
    arguments = ["judge", "run", "--once", "--json", "--home", str(tmp_path), *RULES]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["judged"] == 1
    assert asyncio.run(look()) == -1


class Blank:
    """An encoder that sees nothing, so that only the words decide."""

    width = 4

    def encode(self, cases: Sequence[Case]) -> torch.Tensor:
        return torch.zeros(len(cases), self.width)


def probe() -> Probe:
    texts = {1: "Thanks, perfect!", 0: "What is the capital?", -1: "No, that is wrong."}
    cases = [
        Labelled(case=Case(request="q", response="a", next=text), label=label)
        for label, text in texts.items()
        for _ in range(12)
    ]
    words = torch.tensor([features(one.case) for one in cases])
    recipe = Recipe(components=2, networks=3, units=8, steps=60, folds=2, dropout=0.1)
    hidden = torch.zeros(len(cases), Blank.width)
    assert words.shape[1] == len(NAMES)
    return Probe(encoder=Blank(), head=fit_features(cases, hidden, words, recipe).head)  # type: ignore[arg-type]


async def test_feedback_fits_the_running_judge_to_the_person(
    store: TurnStore, tmp_path: Path
) -> None:
    now = 0.0
    voter = probe()
    calibrator = Calibrator(store, voter, tmp_path, clock=lambda: now)

    async def praise(first: int, last: int) -> None:
        for at in range(first, last):
            await say(store, f"t{at}", "What is the capital?")
            await told(store, f"t{at}", 1)

    await praise(0, NEW_PAIRS - 1)
    assert await calibrator.look() == []
    await praise(NEW_PAIRS - 1, 40)
    assert await calibrator.look() == []  # it has just looked
    now += 1000
    assert await calibrator.look() == ["anna"]
    learned = voter.calibrations["anna"]
    assert learned.bias[2] > 0 > learned.bias[1]  # what looks neutral is praise from this person
    assert load_calibrations(tmp_path) == {"anna": learned}
    assert learned.pairs == 40
    now += 1000
    assert await calibrator.look() == []  # nothing new
    again = Calibrator(store, voter, tmp_path, clock=lambda: now)
    assert await again.look() == []  # a new process knows what was learned


async def test_what_is_forgotten_is_forgotten_by_the_judge_too(
    store: TurnStore, tmp_path: Path
) -> None:
    now = 0.0
    voter = probe()
    calibrator = Calibrator(store, voter, tmp_path, clock=lambda: now)
    for at in range(40):
        await say(store, f"t{at}", "What is the capital?" if at < 30 else "No, that is wrong.")
        await told(store, f"t{at}", 1 if at < 30 else -1)
    assert await calibrator.look() == ["anna"]
    learned = voter.calibrations["anna"]
    for at in range(30):
        await forget_session(store, "anna", f"s-t{at}")
    now += 1000
    assert await calibrator.look() == ["anna"]
    assert voter.calibrations["anna"].pairs == 10
    assert voter.calibrations["anna"].bias[2] < learned.bias[2]
    for at in range(30, 40):
        await forget_session(store, "anna", f"s-t{at}")
    again = Calibrator(store, voter, tmp_path, clock=lambda: now)
    assert await again.look() == ["anna"]
    assert voter.calibrations == load_calibrations(tmp_path) == {}
    now += 1000
    assert await again.look() == []


async def test_a_full_disk_does_not_end_the_judge(store: TurnStore, tmp_path: Path) -> None:
    (tmp_path / "judge").write_text("in the way")
    calibrator = Calibrator(store, probe(), tmp_path / "judge")
    for at in range(NEW_PAIRS):
        await say(store, f"t{at}", "What is the capital?")
        await told(store, f"t{at}", 1)
    await say(store, "t9", "Thanks!")
    judge = PanelJudge(voter=Voter(), hinter=WordHinter())
    running = asyncio.ensure_future(
        JudgeWorker(store, judge, calibrator=calibrator).run(stop := asyncio.Event())
    )
    await asyncio.sleep(0.2)
    assert not running.done()
    stop.set()
    await running


async def test_other_judges_are_not_fitted(store: TurnStore, tmp_path: Path) -> None:
    assert Calibrator.of(store, Voter(), tmp_path) is None


def test_the_command_writes_a_damaged_calibration_anew_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare() -> None:
        async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
            for owner in ("anna", "ben"):
                await say(store, owner, "What is the capital?", owner=owner)
                praise = Verdict(score=1, source="person")
                await give_feedback(store, owner, turn=owner, verdict=praise, hint=None)

    def opened(*_: object) -> PanelJudge:
        voter = probe()
        voter.calibrations = load_calibrations(tmp_path / "judge")
        return PanelJudge(voter=voter, hinter=WordHinter())

    asyncio.run(prepare())
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "calibration.json").write_text("{")
    monkeypatch.setattr("instar.commands.judge.open_judge", opened)
    command = ["judge", "calibrate", "--owner", "anna", "--home", str(tmp_path)]
    found = CliRunner().invoke(app, [*command, "--set", "engine.type=fake"])
    assert found.exit_code == 0, found.output
    known = load_calibrations(tmp_path / "judge")
    assert {owner: one.pairs for owner, one in known.items()} == {"anna": 1, "ben": 1}
    assert (tmp_path / "judge" / "calibration.json.damaged").read_text() == "{"

    async def forget() -> None:
        async with open_store(f"sqlite:///{tmp_path}/instar.db") as store:
            for owner in ("anna", "ben"):
                await forget_session(store, owner, f"s-{owner}")

    asyncio.run(forget())
    found = CliRunner().invoke(app, [*command, "--set", "engine.type=fake"])
    assert found.exit_code == 0, found.output
    assert list(load_calibrations(tmp_path / "judge")) == ["ben"]


@pytest.mark.parametrize(
    ("command", "error"), [("cat app.log", False), ("make", True), (None, None)]
)
def test_the_report_knows_what_a_tool_was_asked_for(
    command: str | None, error: bool | None
) -> None:
    printed = "step one\nmake: *** [all] Error 2\nstep three\nstep four"
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    reply = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]}
    told = {"role": "tool", "tool_call_id": "c", "content": printed}
    turn = make_turn(
        verdict=Verdict(score=1),
        reply=reply if command else {"role": "assistant", "content": "Hi."},
        next_state=NextState(messages=(told, user("And?")) if command else (user("And?"),)),
    )
    row = judged(turn)
    assert row is not None
    assert row.tool_error is error
