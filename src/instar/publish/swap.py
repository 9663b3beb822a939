"""Follows the store: each owner's live version is loaded, serves, and is dropped when it is over.

Comes in: which version of each owner is live (asked ten times a second) and where its files are.
Goes out: for each reply, the name under which the engine has that owner's weights. A swap
pauses nothing: the new version is loaded while the old one serves, new replies begin on the
new one, and the old one goes once its last reply is done. Where the engine is full of versions
that are all in use, a call waits until one is not.

Versions are an owner's own. The engine sees names such as `anna/v3` and is always asked for
one by name, so owners never share a live version; `base` belongs to everybody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from instar.errors import EngineError, InstarError, ModelError, RequestError, StoreError
from instar.protocols import Engine
from instar.publish.versions import VersionFiles, engine_name
from instar.types import BASE_VERSION, Version

log = logging.getLogger("instar.publish")

POLL_S = 0.1
"""A look at the store takes less than a millisecond; a person who teaches waits for the swap."""
RETRY_S = 30.0
"""A version that could not be loaded is tried again after this long: someone may repair it."""
ROOM_S = 2.0
"""The same for one that the engine had no room for."""
IDLE_S = 60.0
"""A version that was asked for by name stays loaded this long after its last reply."""

Live = Callable[[], Awaitable[Mapping[str, Version]]]
Find = Callable[[str, str], Awaitable[Version | None]]


@dataclass(slots=True)
class _Resident:
    """A version in the engine."""

    owner: str
    name: str
    used: float
    replies: int = 0
    until: float = 0.0
    """Asked for by name, so it stays until then though it is not live."""


class VersionFollower:
    """Satisfies `protocols.Versions`; `run` follows the store until it is cancelled."""

    def __init__(
        self,
        engine: Engine,
        files: VersionFiles,
        *,
        live: Live,
        find: Find,
        hold_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = 0
        """How often a version could not be loaded."""
        self.problems: dict[str, str] = {}
        """Per owner why the version that should be live does not serve."""
        self._engine, self._files = engine, files
        self._read_live, self._find = live, find
        self._hold_s = hold_s
        self._clock = clock
        self._freed = asyncio.Event()
        self._wanted: dict[str, Version] = {}
        self._serving: dict[str, Version] = {}
        self._resident: dict[str, _Resident] = {}
        self._failed: dict[str, float] = {}
        self._changing = asyncio.Lock()

    def live(self, owner: str) -> str:
        """The version that this owner's next reply begins on."""
        serving = self._serving.get(owner)
        return BASE_VERSION if serving is None else serving.name

    def names(self, owner: str) -> list[str]:
        """Versions that this owner may ask for and that are loaded now."""
        return [BASE_VERSION, *(r.name for r in self._resident.values() if r.owner == owner)]

    def summary(self) -> str:
        """Who is served by what, in a few words."""
        named = sorted(self._serving.items(), key=lambda pair: pair[0])
        if len(named) <= 1:
            text = named[0][1].name if named else BASE_VERSION
        else:
            text = ", ".join(f"{owner}: {one.name}" for owner, one in named[:3])
            text += f" and {len(named) - 3} more" if len(named) > 3 else ""
        if self.problems:
            broken = ", ".join(sorted(self.problems)[:3])
            text += f" (the live version of {broken} cannot be loaded)"
        return text

    @asynccontextmanager
    async def use(self, owner: str, name: str | None) -> AsyncIterator[tuple[str, str]]:
        """For one reply: the owner's name of a version, and the engine's."""
        own, resident = await self._enter(owner, name)
        if resident is None:
            yield own, BASE_VERSION
            return
        try:
            yield own, engine_name(owner, own)
        finally:
            resident.replies -= 1
            resident.used = self._clock()
            if not resident.replies:
                self._freed.set()

    async def run(self) -> None:
        """Follow the store until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(POLL_S)

    async def step(self) -> None:
        """Look at the store once, and bring the engine in line."""
        try:
            self._wanted = dict(await self._read_live())
        except StoreError as error:
            log.warning("which versions are live cannot be read; all stay as they are: %s", error)
            return
        for owner in (self._serving.keys() | self.problems.keys()) - self._wanted.keys():
            log.info("%s is served by the base again", owner)
            self._serving.pop(owner, None)
            self.problems.pop(owner, None)
        for owner, version in self._wanted.items():
            if self.live(owner) != version.name:
                await self._advance(owner, version)
        await self._drop_unused()

    async def _enter(self, owner: str, name: str | None) -> tuple[str, _Resident | None]:
        """Choose a version and count the reply in; from here on it will not be dropped."""
        if name is None:
            await self._ready(owner)
        elif name != BASE_VERSION:
            await self._load_named(owner, name)
        own = self.live(owner) if name is None else name
        resident = None if own == BASE_VERSION else self._resident.get(engine_name(owner, own))
        if resident is None:
            return BASE_VERSION, None
        resident.replies += 1
        if name is not None:
            resident.until = self._clock() + IDLE_S
        return own, resident

    async def _ready(self, owner: str) -> None:
        """Bring a live version back that had to make room, or that the engine lost."""
        # Another one may be live, or have made room again, by the time that this one is loaded.
        while (serving := self._serving.get(owner)) and not self._loaded(owner, serving.name):
            try:
                await self._load_held(serving)
            except ModelError as error:
                await self._note_failure(serving, error)

    async def _load_held(self, version: Version) -> None:
        """Load a version that a call waits for: clients take an error worse than a wait."""
        until = self._clock() + self._hold_s
        if not self._loaded(version.owner, version.name):
            await self._check(version)
        while not self._loaded(version.owner, version.name):
            try:
                await self._put(version)
            except (RequestError, EngineError) as error:
                if self._clock() >= until:
                    raise EngineError(
                        f"no room for version {version.name} within {self._hold_s:g} s "
                        f"(gateway.hold_s): {error}"
                    ) from error
                self._freed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._freed.wait(), POLL_S)

    def _loaded(self, owner: str, name: str) -> bool:
        key = engine_name(owner, name)
        return key in self._resident and key in self._engine.info.versions

    async def _load_named(self, owner: str, name: str) -> None:
        version = await self._find(owner, name)
        if version is None or version.pruned or version.tainted:
            have = ", ".join(self.names(owner))
            raise _no_such(name, f"There is no such version here. Loaded now: {have}.")
        try:
            await self._load_held(version)
        except ModelError as error:
            raise _no_such(name, str(error)) from error

    async def _advance(self, owner: str, version: Version) -> None:
        """Load the version that should be live; if that fails, the last good one stays."""
        key = engine_name(owner, version.name)
        if self._clock() < self._failed.get(key, 0.0):
            return
        try:
            await self._load(version)
        except InstarError as error:
            await self._note_failure(version, error)
            return
        log.info("%s goes from %s to %s", owner, self.live(owner), version.name)
        self._failed.pop(key, None)
        self.problems.pop(owner, None)
        self._serving[owner] = version

    async def _note_failure(self, version: Version, error: InstarError) -> None:
        owner = version.owner
        self.failures += 1
        self.problems[owner] = str(error)
        # A full or dying engine is soon another one; a damaged file stays damaged.
        pause = RETRY_S if isinstance(error, ModelError) else ROOM_S
        self._failed[engine_name(owner, version.name)] = self._clock() + pause
        # One that only made room for others comes back with its owner's next call.
        comes_back = owner in self._serving and not isinstance(error, ModelError)
        if not comes_back and not self._loaded(owner, self.live(owner)):
            self._serving.pop(owner, None)
            await self._fall_back(owner, version)
        log.error("%s stays on %s: %s", owner, self.live(owner), error)

    async def _fall_back(self, owner: str, version: Version) -> None:
        """Nothing of this owner is loaded yet: take the nearest ancestor that can be."""
        seen = {version.name}
        while version.parent != BASE_VERSION and version.parent not in seen:
            seen.add(version.parent)
            before = await self._find(owner, version.parent)
            if before is None:
                return
            version = before
            if version.tainted or version.pruned or version.state == "rejected":
                continue
            try:
                await self._load(version)
            except InstarError as error:
                log.error("%s cannot fall back to %s: %s", owner, version.name, error)
                continue
            self._serving[owner] = version
            return

    async def _load(self, version: Version) -> None:
        """Check a version's files and make it resident, if there is room now."""
        if not self._loaded(version.owner, version.name):
            await self._check(version)
            await self._put(version)

    async def _check(self, version: Version) -> None:
        await asyncio.to_thread(self._files.read, version.owner, version.name)

    async def _put(self, version: Version) -> None:
        owner, key = version.owner, engine_name(version.owner, version.name)
        folder = self._files.folder(owner, version.name)
        async with self._changing:
            if self._loaded(owner, version.name):
                return
            try:
                await self._engine.load(key, folder)
            except RequestError:
                # The engine is full. What nobody uses makes room; without any, this is the error.
                if not await self._make_room():
                    raise
                await self._engine.load(key, folder)
            self._resident[key] = _Resident(owner, version.name, used=self._clock())

    async def _make_room(self) -> bool:
        """Drop what was unused for longest; a live one comes back with its owner's next call."""
        idle = [(r.used, key) for key, r in self._resident.items() if not r.replies]
        if not idle:
            return False
        await self._drop(min(idle)[1])
        return True

    async def _drop_unused(self) -> None:
        """Drop what is live for nobody, once its replies are done and nobody asks for it."""
        for key, one in list(self._resident.items()):
            if self.live(one.owner) == one.name or self._clock() < one.until:
                continue
            async with self._changing:
                if not one.replies:
                    await self._drop(key)

    async def _drop(self, key: str) -> None:
        self._resident.pop(key, None)
        try:
            if key in self._engine.info.versions:
                await self._engine.drop(key)
        except InstarError as error:
            log.warning("version %s could not be dropped: %s", key, error)


def _no_such(name: str, why: str) -> RequestError:
    return RequestError(
        f"The version {name[:80]!r} cannot be served. {why}",
        status=404,
        param="model",
        code="model_not_found",
    )
