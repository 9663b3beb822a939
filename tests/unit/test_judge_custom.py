"""Anyone's own judge: a class in their file, asked in every form it may have."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from instar.config import CustomJudge
from instar.errors import ConfigError
from instar.judge.custom import load_custom, to_vote
from instar.judge.hints import WordHinter
from instar.judge.next_state import Case
from instar.judge.panel import PanelJudge

OWN = """
class Reward:
    def __init__(self, checkpoint_path="none"):
        self.checkpoint = checkpoint_path

    def compute_reward(self, prompt, response, next_feedback):
        if next_feedback == "boom":
            raise RuntimeError("boom")
        return {"good": 0.9, "bad": -2, "so": 0.05, "nan": float("nan")}[next_feedback]


class Many(Reward):
    def batch_compute_rewards(self, batch):
        return [self.compute_reward(i["prompt"], i["response"], i["feedback"]) for i in batch]


class Later(Reward):
    async def compute_reward(self, prompt, response, next_feedback):
        return super().compute_reward(prompt, response, next_feedback)


class ManyLater(Many):
    async def batch_compute_rewards(self, batch):
        return super().batch_compute_rewards(batch)


class Nothing:
    pass
"""


@pytest.mark.parametrize("name", ["Reward", "Many", "Later", "ManyLater"])
async def test_an_own_class_judges(tmp_path: Path, name: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    settings = CustomJudge(path=f"{file}:{name}", checkpoint_path="here", dead_zone=0.1)
    voter = load_custom(settings)
    assert voter.model.checkpoint == "here"
    for text, vote in {"good": 1, "bad": -1, "so": 0, "nan": None}.items():
        assert await voter.votes(Case(request="", response="", next=text), 2) == [vote, vote]
    judge = PanelJudge(voter=voter, hinter=WordHinter())
    opinion = await judge.consider(Case(request="", response="", next="boom"))
    assert opinion.failed


async def test_an_own_class_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "beside_the_judge.py").write_text("GOOD = 1\n")
    file = tmp_path / "own.py"
    file.write_text(
        "from beside_the_judge import GOOD\n\n\nclass Reward:\n"
        "    def compute_reward(self, prompt, response, next_feedback):\n        return GOOD\n"
    )
    voter = load_custom(CustomJudge(path=f"{file}:Reward"))
    assert await voter.votes(Case(request="", response="", next="x"), 1) == [1]


async def test_an_own_class_that_hangs_takes_no_thread_from_others(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import sys, threading\n\nover = threading.Event()\n\n\nclass Hangs:\n"
        "    def compute_reward(self, prompt, response, next_feedback):\n"
        "        sys.exit(1) if next_feedback == 'end' else over.wait()\n"
    )
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    voter = load_custom(CustomJudge(path=f"{file}:Hangs"))
    judge = PanelJudge(voter=voter, hinter=WordHinter(), timeout_s=-0.4)
    try:
        assert (await judge.consider(Case(request="", response="", next="x"))).failed
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 5) == 1
        opinion = await judge.consider(Case(request="", response="", next="end"))
        assert opinion.failed and "SystemExit" in (opinion.problem or "")
    finally:
        sys.modules["instar_own_own"].over.set()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("own.py", "expected FILE.py:Class"),
        ("missing.py:Reward", "is not here"),
        ("own.py:Absent", "has no class Absent; it has Later, Many, ManyLater, Nothing, Reward"),
        ("own.py:Nothing", "neither compute_reward"),
    ],
)
def test_an_own_class_that_cannot_judge_is_refused(tmp_path: Path, path: str, problem: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(ConfigError, match=problem):
        load_custom(CustomJudge(path=str(tmp_path / path)))


def test_rewards_that_are_no_numbers_are_no_votes() -> None:
    assert [to_vote(one) for one in (True, "1", None, 0, 0.0, 3)] == [None, None, None, 0, 0, 1]


def test_a_tensor_of_one_number_is_a_reward() -> None:
    rewards = [torch.tensor(0.5), torch.tensor([-2.0]), torch.tensor(float("nan")), torch.ones(2)]
    assert [to_vote(one) for one in rewards] == [1, -1, None, None]
    assert to_vote(torch.tensor(True)) is None
    assert to_vote(torch.tensor(-0.5).numpy()[()]) == -1


def test_an_own_class_may_be_a_dataclass_with_late_annotations(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\n"
        "class Reward:\n    scale: float = 2.0\n\n"
        "    def compute_reward(self, prompt, response, next_feedback):\n"
        "        return self.scale\n"
    )
    assert load_custom(CustomJudge(path=f"{file}:Reward")).model.scale == 2.0
