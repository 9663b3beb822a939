"""Several vLLM servers on one GPU, as one.

With hundreds of replies at once a step of vLLM is mostly Python, in one process, and a small model
leaves the GPU idle meanwhile. Another server beside it uses that time. Each has its own copy of
the weights and its own prefix cache, so a session stays with the server that it began with.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

from instar.backends.vllm_process import Process
from instar.backends.vllm_wire import Ask, Part, Ready
from instar.config import VllmEngine
from instar.errors import EngineError

SESSIONS = 65_536
"""Whose server is remembered; the longest unheard of is forgotten first."""


class Replicas:
    """The link to all of them. Use `open` and, in the end, `close`."""

    def __init__(self, links: Sequence[Process]) -> None:
        self._links = links
        self._busy = [0] * len(links)
        self._places: OrderedDict[str, int] = OrderedDict()
        self._dropping: set[asyncio.Task[None]] = set()
        self.on_lost: Callable[[int], None] = lambda number: None
        """Told of an adapter that a restarted server could not load again."""
        for at, link in enumerate(links):
            link.on_lost = lambda number, at=at: self._lost(at, number)  # type: ignore[misc]

    @classmethod
    async def open(cls, config: VllmEngine, *, model: Path) -> Replicas:
        share = config.model_copy(update={"gpu_memory": config.gpu_memory / config.replicas})
        links: list[Process] = []
        try:
            # One after the other: a starting vLLM measures what memory is free.
            for _ in range(config.replicas):
                links.append(await Process.open(share, model=model))
        except BaseException:
            await _all(link.close() for link in links)
            raise
        return cls(links)

    async def close(self) -> None:
        _raise_first(await _all(link.close() for link in self._links))

    @property
    def ready(self) -> Ready:
        return self._links[0].ready

    @property
    def pid(self) -> int:
        return self._links[0].pid

    async def ask(self, ask: Ask) -> AsyncGenerator[Part]:
        """Parts of a reply; closing the iterator aborts it."""
        at = self._place(ask.session)
        self._busy[at] += 1
        try:
            async with aclosing(self._links[at].ask(ask)) as parts:
                async for part in parts:
                    yield part
        finally:
            self._busy[at] -= 1

    async def load(self, lora: int, *, name: str, folder: Path) -> None:
        """Make an adapter resident in all, or in none."""
        found = await _all(link.load(lora, name=name, folder=folder) for link in self._links)
        if any(found):
            took = [link for link, one in zip(self._links, found, strict=True) if one is None]
            await _all(link.drop(lora, name=name) for link in took)
        _raise_first(found)

    async def drop(self, lora: int, *, name: str) -> None:
        _raise_first(await _all(link.drop(lora, name=name) for link in self._links))

    def _place(self, session: str) -> int:
        """Where a session's prefix cache is; a new one goes where least is under way.

        One whose server has died has lost its cache too, and need not wait for the next start.
        """
        up = [at for at, link in enumerate(self._links) if link.up] or range(len(self._links))
        at = self._places.get(session, -1)
        if at not in up:
            at = min(up, key=lambda one: self._busy[one])
        if session:
            self._places[session] = at
            self._places.move_to_end(session)
            if len(self._places) > SESSIONS:
                self._places.popitem(last=False)
        return at

    def _lost(self, at: int, number: int) -> None:
        """One server could not load an adapter again: the others need not keep it."""
        self.on_lost(number)
        for other in [link for place, link in enumerate(self._links) if place != at]:
            task = asyncio.create_task(_forget(other, number))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)


async def _forget(link: Process, number: int) -> None:
    # It may have died, or lost the adapter, as well.
    with suppress(EngineError, KeyError):
        await link.drop(number, name=f"number {number}")


async def _all(jobs: Iterable[Awaitable[None]]) -> list[BaseException | None]:
    """Do all of them; for each, what went wrong."""
    return await asyncio.gather(*jobs, return_exceptions=True)


def _raise_first(found: Sequence[BaseException | None]) -> None:
    for error in found:
        if error is not None:
            raise error
