"""How many threads fit, from made-up readings of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sampled_turns import tiny_llama

from instar.config import TrainingConfig
from instar.threads import Pace, Usage, at_most, most_threads, read_usage
from instar.train.model import Model
from instar.train.reading import WeightsReader


def pace(limit: int, *, own: float, idle: float, wall: float = 1.0) -> int:
    """Threads after a window in which this process and nobody used so many cores."""
    readings = iter(
        [
            Usage(wall=5.0, own=3.0, idle=40.0),
            Usage(wall=5.0 + wall, own=3.0 + own * wall, idle=40.0 + idle * wall),
        ]
    )
    return Pace(limit, read=lambda: next(readings)).check()


@pytest.mark.parametrize(
    ("limit", "own", "idle", "threads"),
    [
        (2, 1.95, 0.0, 2),  # alone on two cores
        (2, 1.0, 0.95, 2),  # one thread, the other core idle: room for two
        (2, 0.0, 2.0, 2),  # nothing asked for a while on a quiet machine
        (2, 1.0, 0.0, 1),  # a trainer on the other core
        (2, 1.3, 0.0, 1),  # two threads that get in each other's way
        (2, 0.3, 0.0, 1),  # a crowded machine
        (16, 8.0, 0.1, 8),  # a trainer on half of the cores
        (4, 1.0, 60.0, 4),  # never more than allowed
        (1, 0.1, 0.0, 1),
    ],
)
def test_threads_follow_the_cores_to_spare(
    limit: int, own: float, idle: float, threads: int
) -> None:
    assert pace(limit, own=own, idle=idle) == threads


def test_a_short_moment_changes_nothing() -> None:
    assert pace(2, own=0.1, idle=0.0, wall=0.1) == 2


def test_a_system_that_does_not_tell_keeps_all_threads() -> None:
    assert Pace(4, read=lambda: None).check() == 4


def test_the_real_reading_moves_forward() -> None:
    first, second = read_usage(), read_usage()
    if first is None or second is None:
        pytest.skip("no /proc/stat here")
    assert second.wall > first.wall
    assert second.own >= first.own
    assert second.idle >= first.idle


def test_fewer_threads_for_a_while_and_then_all_again() -> None:
    most = most_threads()
    with at_most(1), at_most(most + 1):
        assert torch.get_num_threads() == most  # never more than PyTorch takes by itself
    with pytest.raises(ValueError, match="in between"), at_most(1):
        assert torch.get_num_threads() == 1
        raise ValueError("in between")
    assert torch.get_num_threads() == most


def test_a_trainer_takes_the_threads_that_there_are_cores_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where somebody else in its process has set another number meanwhile."""
    told = iter([2, 2, 1])
    monkeypatch.setattr("instar.threads.Pace.check", lambda _: next(told))
    reader = WeightsReader(
        Model(tiny_llama(tmp_path), TrainingConfig(), device="cpu", dtype="float32", seed=0),
        TrainingConfig(),
    )
    seen = []
    for _ in range(3):
        with at_most(1):
            reader.logprobs((1, 2), (3,), temperature=1.0)
            seen.append(torch.get_num_threads())
    assert seen == [2, 2, 1]
