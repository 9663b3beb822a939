"""Anyone's own judge: a class in a Python file, with the methods that OpenClaw-RL's had.

    class MyReward:
        def compute_reward(self, prompt: str, response: str, next_feedback: str) -> float: ...
        def batch_compute_rewards(self, batch): ...   # optional: {"prompt","response","feedback"}

It is named as `file.py:Class`; both methods may be `async def`. What they are given as feedback is
the whole next state: all tool results, then what the person said. A reward above the dead zone is
+1, below it -1, inside it 0; one that is no number is no vote.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from instar.config import CustomJudge
from instar.errors import ConfigError, JudgeError
from instar.judge.next_state import Case
from instar.own_file import load_file


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomVoter:
    """Asks the person's own class, in a thread where it is not async: it may be slow."""

    model: Any
    dead_zone: float = 0.0

    async def votes(self, case: Case, count: int) -> Sequence[int | None]:
        rewards = await self._rewards(case, count)
        if len(rewards) != count:
            raise JudgeError(f"batch_compute_rewards gave {len(rewards)} rewards for {count} items")
        return [to_vote(reward, dead_zone=self.dead_zone) for reward in rewards]

    async def _rewards(self, case: Case, count: int) -> list[Any]:
        shown = {"prompt": case.request, "response": case.response, "feedback": case.whole}
        if hasattr(self.model, "batch_compute_rewards"):
            batch = [dict(shown) for _ in range(count)]
            found = await _called(self.model.batch_compute_rewards, batch)
            # A tensor or an array, as OpenClaw-RL's example returns one, becomes a list of numbers.
            return found.tolist() if hasattr(found, "tolist") else list(found)
        one = self.model.compute_reward
        return [await _called(one, *shown.values()) for _ in range(count)]


async def _called(method: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns, `async def` or not."""
    found = await _in_a_thread(partial(method, *arguments))
    return await found if inspect.isawaitable(found) else found


async def _in_a_thread(work: Callable[[], Any]) -> Any:
    """What it returns, from a thread that nothing else has to wait for.

    Nobody can end a call that hangs. In `asyncio.to_thread` a few of them would hold every thread
    there is, the trainer's too, and the process could not end before they do.
    """
    found: Future[Any] = Future()
    found.set_running_or_notify_cancel()  # who gives up waiting ends no call

    def run() -> None:
        try:
            found.set_result(work())
        except Exception as error:
            found.set_exception(error)
        except BaseException as error:  # such as sys.exit(), which is to end no more than the call
            found.set_exception(JudgeError(f"it ended with {error!r}"))

    threading.Thread(target=run, name="instar-judge", daemon=True).start()
    return await asyncio.wrap_future(found)


def to_vote(reward: object, *, dead_zone: float = 0.0) -> int | None:
    """The sign of a reward, or None for what is no number; a tensor of one number is that."""
    if hasattr(reward, "item"):
        reward = _number_in(reward)
    if isinstance(reward, bool) or not isinstance(reward, int | float) or math.isnan(reward):
        return None
    if abs(reward) <= dead_zone:
        return 0
    return 1 if reward > 0 else -1


def _number_in(reward: Any) -> object:
    """The number in a tensor or an array of one, or None in one of several."""
    try:
        return reward.item()
    except (TypeError, ValueError, RuntimeError):
        return None


def load_custom(settings: CustomJudge) -> CustomVoter:
    """Read `file.py:Class` and make one. Raises ConfigError that says what is missing."""
    path, colon, name = settings.path.rpartition(":")
    if not colon or not name.isidentifier():
        raise ConfigError(
            f"evaluation.judge.path is {settings.path!r}, expected FILE.py:Class, "
            "such as custom_reward.py:CustomRewardModel"
        )
    made = _class(Path(path).expanduser(), name)
    arguments = [settings.checkpoint_path] if settings.checkpoint_path else []
    try:
        model = made(*arguments)
    except Exception as error:  # somebody else's code
        wanted = ", ".join(_parameters(made)) or "nothing"
        raise ConfigError(
            f"{name} of {path} could not be made: {error!r}. It takes: {wanted}; "
            "evaluation.judge.checkpoint_path is handed to it as its first argument"
        ) from error
    if not (hasattr(model, "compute_reward") or hasattr(model, "batch_compute_rewards")):
        raise ConfigError(
            f"{name} of {path} has neither compute_reward(prompt, response, next_feedback) "
            "nor batch_compute_rewards(batch); add one of them"
        )
    return CustomVoter(model=model, dead_zone=settings.dead_zone)


def _class(file: Path, name: str) -> Any:
    if not file.is_file():
        raise ConfigError(f"evaluation.judge.path names {file}, which is not here")
    module = load_file(file)
    if not hasattr(module, name):
        classes = [one for one, _ in inspect.getmembers(module, inspect.isclass)]
        raise ConfigError(f"{file} has no class {name}; it has {', '.join(classes) or 'none'}")
    return getattr(module, name)


def _parameters(made: Any) -> Iterable[str]:
    try:
        return list(inspect.signature(made).parameters)
    except (TypeError, ValueError):
        return []
