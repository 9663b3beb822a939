"""Votes, strips, next states, rules, own judges and hints: all that needs no model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from instar.config import Config, CustomJudge
from instar.config_load import load_config
from instar.errors import ConfigError
from instar.judge.custom import load_custom
from instar.judge.hints import WordHinter
from instar.judge.next_state import Case, ToolResult, case_of
from instar.judge.panel import JUDGES, PanelJudge, make_judge, nearest, tally
from instar.judge.rules import rule_vote
from instar.synthetic import strip
from instar.types import Message, NextState, Sampling, Turn, Verdict


def turn(following: Sequence[Message] | None, **changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "id": "t1",
        "owner": "ann",
        "session": "s1",
        "parent": None,
        "extends": False,
        "kind": "main",
        "prompt_ids": (1, 2),
        "sampled_ids": (3,),
        "logprobs": (-0.1,),
        "settings": Sampling(),
        "version": "base",
        "finish": "stop",
        "messages": ({"role": "user", "content": "Name a river."},),
        "reply": {"role": "assistant", "content": "The Rhine."},
        "created": 1.0,
        "next_state": None if following is None else NextState(messages=tuple(following)),
    }
    return Turn(**{**fields, **changes})


def said(text: str, role: str = "user") -> Message:
    return {"role": role, "content": text}


class Scripted:
    """A voter that has its votes ready, or fails."""

    def __init__(self, votes: Sequence[int | None] | Exception, delay: float = 0) -> None:
        self.script = votes
        self.delay = delay
        self.seen: list[Case] = []

    async def votes(self, case: Case, count: int) -> Sequence[int | None]:
        self.seen.append(case)
        await asyncio.sleep(self.delay)
        if isinstance(self.script, Exception):
            raise self.script
        return self.script


def panel(votes: Sequence[int | None] | Exception, **settings: Any) -> PanelJudge:
    return PanelJudge(voter=Scripted(votes), hinter=WordHinter(), count=3, **settings)


@pytest.mark.parametrize(
    ("votes", "threshold", "label"),
    [
        ([1, 1, -1], 0.5, 1),
        ([-1, -1, None], 0.5, -1),
        ([0, 0, 1], 0.5, 0),
        ([1, -1], 0.5, None),
        ([1, 0, -1], 0.5, None),
        ([None, None], 0.5, None),
        ([], 0.5, None),
        ([7, 7], 0.5, None),
        ([1, 1, 0, -1], 0.5, None),
        ([1, 1, 0, -1], 0.3, 1),
        ([1, 1, 1, 1, -1], 0.8, 1),
        ([1, 1, 1, -1, -1], 0.6, 1),
        ([1, 1, 1, 0, -1], 0.6, 1),
        ([1, 1, 1, -1, -1], 0.61, None),
        ([1, 1, -1, 0, None], 0.5, None),
        ([1, 1, 1, 1, 1], 1.0, 1),
        ([1, None, None], 0.6, 1),
    ],
)
def test_votes_become_a_label(votes: list[int | None], threshold: float, label: int | None) -> None:
    assert tally(votes, threshold=threshold) == label


@pytest.mark.parametrize(
    ("votes", "label"),
    [([1, 1, 0], 1), ([1, 1, -1], 0), ([1, 0], None), ([-1, None, -1], -1), ([None], None)],
)
def test_a_mean_of_votes_is_the_nearest_label(votes: list[int | None], label: int | None) -> None:
    assert nearest(votes) == label


async def test_a_verdict_carries_its_votes() -> None:
    verdict, hint = await panel([1, 1, None]).judge(turn([said("Thanks!")]))
    assert verdict == Verdict(score=1, votes=(1, 1, None))
    assert hint is None


async def test_a_correction_carries_a_hint() -> None:
    verdict, hint = await panel([-1, -1, 1]).judge(turn([said("Too long, no lists please.")]))
    assert verdict is not None
    assert verdict.score == -1
    assert hint is not None
    assert "short" in hint.text
    assert "lists" in hint.text


# Each of these is a way in which the closest system's judge goes wrong.


async def test_a_tie_is_no_verdict_and_not_zero() -> None:
    assert await panel([1, -1]).judge(turn([said("Hm.")])) == (None, None)


async def test_only_invalid_votes_are_no_verdict_and_not_zero() -> None:
    assert await panel([None, None, None]).judge(turn([said("Hm.")])) == (None, None)


async def test_a_failing_judge_is_no_verdict_and_says_so() -> None:
    judge = panel(RuntimeError("down"))
    assert await judge.judge(turn([said("Thanks!")])) == (None, None)
    opinion = await judge.opinion(turn([said("Thanks!")]))
    assert opinion is not None
    assert opinion.failed
    assert opinion.problem == "RuntimeError: down"
    undecided = await panel([1, -1]).opinion(turn([said("Hm.")]))
    assert undecided is not None
    assert not undecided.failed


async def test_a_slow_judge_is_no_verdict() -> None:
    slow = PanelJudge(voter=Scripted([1], delay=60), hinter=WordHinter(), timeout_s=0.01)
    opinion = await slow.opinion(turn([said("Thanks!")]))
    assert opinion is not None
    assert opinion.failed
    assert opinion.label is None


async def test_no_next_state_is_no_verdict() -> None:
    voter = Scripted([1])
    judge = PanelJudge(voter=voter, hinter=WordHinter())
    assert await judge.judge(turn(None)) == (None, None)
    assert await judge.judge(turn([])) == (None, None)
    assert voter.seen == []


def test_the_judge_sees_the_request_and_the_history() -> None:
    messages = (
        said("You are helpful.", "system"),
        said("Hi"),
        said("Hello!", "assistant"),
        said("Name a river."),
    )
    case = case_of(turn([said("Thanks")], messages=messages))
    assert case is not None
    assert case.request == "Name a river."
    assert case.history == "user: Hi\nassistant: Hello!"
    assert case.response == "The Rhine."


def test_all_tool_results_are_seen_and_not_only_the_last() -> None:
    results = [
        {"role": "tool", "tool_call_id": "a", "content": "Traceback (most recent call last)"},
        {"role": "tool", "tool_call_id": "b", "content": "ok"},
    ]
    case = case_of(turn(results))
    assert case is not None
    assert case.role == "tool"
    assert "Traceback" in case.next
    assert case.next.endswith("ok")
    assert rule_vote(case) == -1


MIXED = (
    said("exit code: 0", "tool"),
    said("exit code: 2 make: *** Error", "tool"),
    said("hm, stop, what happened?"),
)


def test_tool_results_before_a_persons_words_are_part_of_the_next_state() -> None:
    case = case_of(turn(MIXED))
    assert case is not None
    assert case.whole == "exit code: 0\n\nexit code: 2 make: *** Error\n\nhm, stop, what happened?"
    assert [one.text for one in case.tools] == ["exit code: 0", "exit code: 2 make: *** Error"]
    assert [(one.role, one.next) for one in case.pieces()] == [
        ("tool", "exit code: 0"),
        ("tool", "exit code: 2 make: *** Error"),
        ("user", "hm, stop, what happened?"),
    ]
    assert case.history == ""
    assert rule_vote(case) == -1


@pytest.mark.parametrize(
    ("words", "tool", "vote"),
    [
        ("👍", "exit code: 1", 1),
        ("👎", "exit code: 0", -1),
        ("And now?", "exit code: 0", 1),
        ("And now?", "exit code: 1", -1),
        ("That's fine, thanks!", "exit code: 1", None),
        ("That's wrong.", "exit code: 0", None),
        ("And now?", "The blue whale is large.", None),
    ],
)
def test_rules_let_the_person_have_the_last_word(words: str, tool: str, vote: int | None) -> None:
    results = (ToolResult(text=tool),)
    assert rule_vote(Case(request="", response="", next=words, results=results)) == vote


async def test_an_own_class_is_shown_the_whole_next_state(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "class Seen:\n    def compute_reward(self, prompt, response, next_feedback):\n"
        "        return 1.0 if next_feedback == 'exit code: 2\\n\\nwhat now?' else -1.0\n\n\n"
        "class SeenInMany:\n    def batch_compute_rewards(self, batch):\n"
        "        return [1.0 if one['feedback'] == 'exit code: 2\\n\\nwhat now?' else -1.0"
        " for one in batch]\n"
    )
    case = case_of(turn([said("exit code: 2", "tool"), said("what now?")]))
    assert case is not None
    for name in ("Seen", "SeenInMany"):
        voter = load_custom(CustomJudge(path=f"{file}:{name}"))
        assert await voter.votes(case, 2) == [1, 1]


def test_each_tool_result_knows_its_call() -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in ("ls", "make")
    ]
    reply = {"role": "assistant", "content": "Let me see.", "tool_calls": calls}
    results = [
        {"role": "tool", "tool_call_id": "make", "content": "m"},
        {"role": "tool", "tool_call_id": "ls", "content": "l"},
    ]
    by_id = case_of(turn(results, reply=reply))
    assert by_id is not None
    assert by_id.tools == (
        ToolResult(text="m", call="make({})"),
        ToolResult(text="l", call="ls({})"),
    )
    renamed = [{**one, "tool_call_id": f"x{at}"} for at, one in enumerate(results)]
    by_place = case_of(turn(renamed, reply=reply))
    assert by_place is not None
    assert [one.call for one in by_place.tools] == ["ls({})", "make({})"]


def test_the_last_message_is_not_taken_for_the_reply_where_a_client_made_it() -> None:
    synthetic = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnow\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
    listed = {"role": "user", "content": [{"type": "text", "text": synthetic}]}
    case = case_of(turn([said("[Sun 2026-11-15 00:56 UTC] No, the Danube."), listed]))
    assert case is not None
    assert case.next == "No, the Danube."
    assert case_of(turn([listed])) is None


# The rest.


def test_the_person_has_the_last_word_over_a_tool() -> None:
    case = case_of(turn([said("exit code: 1", "tool"), said("That's fine, thanks!")]))
    assert case is not None
    assert (case.role, case.next) == ("user", "That's fine, thanks!")
    assert rule_vote(case) is None  # an error that they may have called fine is no sure thing


def test_tool_calls_are_part_of_the_reply() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"a":1}'}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    case = case_of(turn([said("", "tool")], reply=reply))
    assert case is not None
    assert case.response == 'ls({"a":1})'
    assert (case.role, case.next) == ("tool", "")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("[Sun 2026-11-15 00:56 UTC] Hello", "Hello"),
        ("[2026-11-15 00:56] Hello", "Hello"),
        ("Hi\n\nRuntime: agent=main | session=agent:main:alpha | host=x", "Hi"),
        ("<system-reminder>Do not\nforget.</system-reminder>Thanks", "Thanks"),
        ("<environment_context>\n<cwd>/a</cwd>\n</environment_context>", ""),
        (
            "[Queued user message from a previous active turn; preserved as context only] "
            "make it short Continue the current task from the existing transcript.",
            "make it short",
        ),
        ("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> cut off", ""),
        ("[1, 2, 3] is my list", "[1, 2, 3] is my list"),
        ("Use <b> and <<<these>>>", "Use <b> and <<<these>>>"),
    ],
)
def test_synthetic_text_is_taken_out(text: str, left: str) -> None:
    assert strip(text) == left


@pytest.mark.parametrize(
    ("text", "vote"),
    [
        ("👍", 1),
        ("👎", -1),
        ("👍👍", 1),
        ("👌", 1),
        ("👍🏽👍🏽 !", 1),
        ("😍🔥", 1),
        ("🙄", -1),
        ("👎👍", None),
        ("👍 but no", None),
        ("ok", None),
        ("Wow, thanks for nothing.", -1),
        ("Oh great, thank you so much for nothing", -1),
        ("Thanks for nothing, sleep-wise: you were bang on.", None),
        ("Nein, es soll sich reimen.", -1),
        ("Nee, het moet rijmen.", -1),
        ("Nej, den ska rimma", -1),
        ("いいえ、韻を踏んでください。", -1),
        ("Nein, das ist perfekt so.", None),
        ("Nee, geen probleem.", None),
        ("Nein.", None),
        ("No, it has to rhyme.", None),
        ("No, shorter! One sentence is enough for me.", -1),
        ("No, I said blue.", -1),
        ("No, less formal please", -1),
        ("No, thanks.", None),
        ("No, that's all.", None),
        ("No, more for now would be too much", None),
    ],
)
def test_rules_read_what_leaves_nothing_to_guess(text: str, vote: int | None) -> None:
    assert rule_vote(Case(request="", response="A poem.", next=text)) == vote


_LONG = "It is so. " * 20


@pytest.mark.parametrize(
    ("response", "text", "vote"),
    [
        (_LONG, "Say it in one word.", -1),
        (_LONG, "Finish with a question.", -1),
        (_LONG, "Start with hello next time. Two sentences max.", -1),
        (_LONG, "auf deutsch bitte", -1),
        ("- one\n- two", "No lists.", -1),
        # The reply is like that already.
        ("It is so.", "Just one sentence, as it should be.", None),
        ("It is so.", "No lists.", None),
        # More is said than that, or asked, or somebody is pleased.
        (_LONG, "Two sentences on bees.", None),
        (_LONG, "Keep it short. Who was Cleopatra?", None),
        (_LONG, "Can you give me an example?", None),
        (_LONG, "Give me an example.", None),
        (_LONG, "Perfect, keep it short.", None),
        # An answer to what was asked.
        ("How long should it be?", "Two sentences max.", None),
    ],
)
def test_who_says_only_how_a_reply_should_be_corrects_it(
    response: str, text: str, vote: int | None
) -> None:
    assert rule_vote(Case(request="What is a bee?", response=response, next=text)) == vote


def test_a_no_to_a_question_is_an_answer() -> None:
    case = Case(request="", response="Soll er sich reimen?", next="Nein, lieber ein freier Vers.")
    assert rule_vote(case) is None


def test_every_kind_of_judge_has_settings() -> None:
    assert set(JUDGES) == {"probe", "llm", "rules", "custom"}
    for kind in JUDGES:
        assert (
            load_config(None, [f"evaluation.judge.type={kind}"]).config.evaluation.judge.type
            == kind
        )
    assert Config().evaluation.judge.type == "probe"


async def test_the_config_chooses_the_judge() -> None:
    config = load_config(None, ["evaluation.judge.type=rules", "evaluation.num_judges=5"]).config
    judge = make_judge(config, folder=lambda: Path("nowhere"))
    verdict, _ = await judge.judge(turn([said("exit code: 3", "tool")]))
    assert verdict == Verdict(score=-1, votes=(-1,))


def test_keys_of_another_judge_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"key of judge llm, but evaluation.judge.type is rules"):
        load_config(None, ["evaluation.judge.type=rules", "evaluation.judge.base_url=x"])
