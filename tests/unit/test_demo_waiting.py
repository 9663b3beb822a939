"""The demo waits for other processes, but not for ever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from instar.demo.waiting import GONE_S, STILL_S, Background, trains_in
from instar.errors import InstarError


class Time:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def waits(
    home: Path,
    time: Time,
    *,
    until: Callable[[], bool] = lambda: False,
    signs: Iterator[int] | None = None,
    trains: Callable[[], bool | None] = lambda: True,
) -> None:
    async def true() -> bool:
        return until()

    async def sign() -> object:
        return next(signs) if signs else 0

    background = Background(
        home, sign, clock=time.clock, sleep=time.sleep, trains=lambda _: trains()
    )
    await background.until(true, "the next version")


async def test_a_process_that_does_not_come_back_is_told_with_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.log").write_text("".join(f"line {at}\n" for at in range(100)) + "no memory")
    time = Time()
    with pytest.raises(InstarError, match=r"next version.*is gone") as found:
        await waits(tmp_path, time, trains=lambda: False)
    assert time.now <= 2 * GONE_S
    assert "no memory" in str(found.value)
    assert "line 99" in str(found.value) and "line 50" not in str(found.value)


async def test_one_that_comes_back_in_time_is_waited_for(tmp_path: Path) -> None:
    time = Time()
    await waits(
        tmp_path,
        time,
        until=lambda: time.now > 10 * GONE_S,
        trains=lambda: time.now % 30 > 15,  # it dies every half a minute
    )


async def test_one_that_does_nothing_is_given_up_after_a_while(tmp_path: Path) -> None:
    time = Time()
    with pytest.raises(InstarError, match=r"15 minutes no turn was judged.*log cannot be read"):
        await waits(tmp_path, time, trains=lambda: None)
    assert STILL_S <= time.now < STILL_S + 60


async def test_one_that_does_something_has_all_the_time_it_takes(tmp_path: Path) -> None:
    time = Time()
    await waits(tmp_path, time, until=lambda: time.now > 5 * STILL_S, signs=count())


def test_a_process_that_trains_in_a_home_is_found(tmp_path: Path) -> None:
    home = tmp_path / "home"
    waits = "import sys; print('here', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", waits, "train", "--home", str(home)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdout.readline()  # it has its own name now
        assert trains_in(home) is True
        assert trains_in(tmp_path) is False
        process.communicate()
    assert trains_in(home) is False
