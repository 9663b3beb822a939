"""Wires the stages: the file to read first.

    client ─► gateway ─► engine
                 │
               store

`serve` opens the store, starts the engine, builds the gateway on both and answers until it is
told to stop. Everything is closed in the reverse order: no new requests, replies under way end,
their turns are written, then the engine goes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instar.backends import open_engine
from instar.batch.render import ChatRenderer
from instar.config import Config, check_bind, is_loopback, secret
from instar.errors import ConfigError, StoreError
from instar.gateway.app import Deps, create_app
from instar.gateway.attempts import AttemptDesk
from instar.gateway.auth import Access
from instar.gateway.idle import IdleSessions
from instar.gateway.metrics import Metrics
from instar.gateway.serve import TurnServer
from instar.gateway.sessions import SessionBook
from instar.judge.hints import told_outright
from instar.protocols import Engine
from instar.publish.swap import VersionFollower
from instar.publish.versions import VersionFiles
from instar.record.attempts import AttemptBook
from instar.record.feedback import give_feedback
from instar.record.keys import PREFIX as KEY_PREFIX
from instar.record.keys import Keys
from instar.record.store import TurnStore, open_store
from instar.record.versions import VersionBook
from instar.types import Hint, Turn, Verdict
from instar.web import address_of, listen, web_server

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger("instar")

_SWEEP_S = 5.0
_STATUS_S = 0.5
_COUNT_S = 2.0
"""How long the board waits for the store before it says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a person who watches wants to know."""

    state: str
    address: str = ""
    model: str = ""
    engine: str = ""
    version: str = ""
    sessions: int = 0
    turns: int = 0
    tokens_per_s: float = 0.0
    running: int = 0
    waiting: int = 0
    lost: int = 0
    late: int = 0
    lost_states: int = 0
    """Next states that were never written."""
    read_errors: int = 0
    """Histories that could not be looked up."""
    trouble: str = ""
    """Why the store cannot be read; sessions and turns are then those of before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The running parts."""

    app: FastAPI
    config: Config
    engine: Engine
    store: TurnStore
    server: TurnServer
    versions: VersionFollower
    sessions: SessionBook
    metrics: Metrics

    def status(
        self, state: str, address: str, *, counts: Mapping[str, int], trouble: str = ""
    ) -> Status:
        info = self.engine.info
        stats = engine_stats(self.engine)
        return Status(
            state=state,
            address=address,
            model=info.model,
            engine=f"{self.config.engine.type} on {info.device}",
            version=self.versions.summary(),
            sessions=counts.get("sessions", 0),
            turns=counts.get("turns", 0),
            tokens_per_s=self.metrics.rate.value(),
            running=self.server.running,
            waiting=int(stats.get("waiting", 0)),
            lost=self.store.lost,
            late=self.store.late,
            lost_states=self.store.lost_states,
            read_errors=self.store.read_errors,
            trouble=trouble,
        )


async def serve(
    config: Config,
    home: Path,
    *,
    stop: asyncio.Event,
    on_status: Callable[[Status], None],
) -> None:
    """Run everything until `stop` is set."""
    say = _sayer(on_status, config)
    async with AsyncExitStack() as stack:
        # The port is taken first: whoever finds it in use should not wait for a model.
        listener = stack.enter_context(listen(config.gateway.host, config.gateway.port))
        system = await stack.enter_async_context(open_system(config, home, say=say))
        address = address_of(listener, config.gateway.host)
        web = web_server(system.app, drain_s=config.gateway.drain_s)
        task = asyncio.ensure_future(web.serve(sockets=[listener]))
        watch = _Watch(system, address, on_status)
        watching = asyncio.ensure_future(watch.run())
        try:
            halt = asyncio.ensure_future(stop.wait())
            await asyncio.wait({task, halt}, return_when=asyncio.FIRST_COMPLETED)
            halt.cancel()
        finally:
            watching.cancel()
            web.should_exit = True
            await watch.show("stopping")
            await system.server.drain(config.gateway.drain_s)
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def open_system(
    config: Config, home: Path, *, say: Callable[[str], None] = log.info
) -> AsyncIterator[System]:
    """Everything but the socket; tests call its app in-process."""
    url = store_url(config, home)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            open_store(
                url,
                commit_timeout_s=config.store.commit_timeout_s,
                backlog=config.store.backlog,
            )
        )
        keys = Keys(store)
        valid = [key for key in await keys.keys() if key.revoked is None]
        check_bind(config.gateway.host, bool(valid or secret("INSTAR_API_KEY")))
        folder = await asyncio.to_thread(model_folder, config, home, say)
        renderer = _renderer(config, folder)
        say(f"starting the engine ({config.engine.type})")
        engine = await stack.enter_async_context(
            open_engine(config.engine, model=folder, name=config.model.name)
        )
        follower = _follower(config, engine, store, home)
        # Before the first request, so that it is not served by an older version.
        await follower.step()
        system = _assemble(
            config, engine=engine, versions=follower, renderer=renderer, store=store, keys=keys
        )
        tasks = [asyncio.ensure_future(one) for one in (_sweep(system), follower.run())]
        try:
            yield system
        finally:
            for task in tasks:
                task.cancel()
            await system.server.drain(config.gateway.drain_s)


def model_folder(config: Config, home: Path, say: Callable[[str], None]) -> Path | None:
    """The folder of the model to serve; None for an engine that needs none."""
    given = config.model.checkpoint_path
    if given is not None:
        if not (given / "config.json").exists():
            raise ConfigError(
                f"model.checkpoint_path is {given}, which has no config.json; "
                "it must be a Hugging Face model folder"
            )
        return given
    if config.engine.type == "fake":
        return None
    from instar.backends.embedded import embedded_model

    return embedded_model(home, say=say)


def engine_stats(engine: Engine) -> dict[str, Any]:
    """Counters that an engine offers beyond the protocol, if it does."""
    stats = getattr(engine, "stats", None)
    return dict(stats()) if callable(stats) else {}


def _renderer(config: Config, folder: Path | None) -> ChatRenderer:
    if folder is None:
        return ChatRenderer.for_bytes(tool_parser=config.gateway.tool_parser)
    return ChatRenderer.from_folder(
        folder, tokenizer=config.model.tokenizer_path, tool_parser=config.gateway.tool_parser
    )


def store_url(config: Config, home: Path) -> str:
    """The store's address: the one that is set, or a file in home."""
    return config.store.url or f"sqlite:///{home / 'instar.db'}"


def _follower(config: Config, engine: Engine, store: TurnStore, home: Path) -> VersionFollower:
    book, files = VersionBook(store), VersionFiles.of_home(home)
    hold_s = config.gateway.hold_s
    return VersionFollower(engine, files, live=book.live, find=book.get, hold_s=hold_s)


def _assemble(
    config: Config,
    *,
    engine: Engine,
    versions: VersionFollower,
    renderer: ChatRenderer,
    store: TurnStore,
    keys: Keys,
) -> System:
    metrics = Metrics()
    collection = config.rollout_config
    sessions = SessionBook(
        store, timeout_s=collection.session_timeout, limit=collection.max_concurrent_sessions
    )
    server = TurnServer(
        config=config.gateway,
        name=config.model.name,
        engine=engine,
        versions=versions,
        renderer=renderer,
        store=store,
        sessions=sessions,
        metrics=metrics,
    )

    async def close_session(owner: str, name: str) -> bool:
        sessions.drop(owner, name)
        return await store.close_session(owner, name, time.time())

    deps = Deps(
        config=config.gateway,
        name=config.model.name,
        server=server,
        renderer=renderer,
        access=_access(config, keys),
        metrics=metrics,
        ready=lambda: _not_ready(engine),
        close_session=close_session,
        turn=store.turn,
        feedback=partial(_feedback, store),
        attempts=_desk(AttemptBook(store)),
        refresh=partial(_refresh, metrics, store, sessions, versions),
    )
    return System(
        app=create_app(deps),
        config=config,
        engine=engine,
        store=store,
        server=server,
        versions=versions,
        sessions=sessions,
        metrics=metrics,
    )


def _refresh(
    metrics: Metrics, store: TurnStore, sessions: SessionBook, versions: VersionFollower
) -> None:
    metrics.lost.set(store.lost)
    metrics.lost_states.set(store.lost_states)
    metrics.read_errors.set(store.read_errors)
    metrics.backlog.set(float(store.health()["backlog"] or 0))
    metrics.sessions.set(len(sessions))
    metrics.load_failures.set(versions.failures)


def _access(config: Config, keys: Keys) -> Access:
    return Access(
        keys.owner_of,
        key_required=not is_loopback(config.gateway.host),
        local_key=secret("INSTAR_API_KEY"),
        made_here=KEY_PREFIX,
        origins=config.gateway.allowed_origins,
    )


def _desk(book: AttemptBook) -> AttemptDesk:
    return AttemptDesk(add=book.add, of_run=book.of_run, waiting=book.waiting)


async def _feedback(
    store: TurnStore,
    owner: str,
    turn: str | None,
    session: str | None,
    verdict: Verdict,
    hint: Hint | None,
) -> Turn | None:
    if hint is not None:
        told = await asyncio.to_thread(told_outright, hint.text)
        hint = None if told is None else replace(hint, text=told)
    return await give_feedback(store, owner, turn=turn, session=session, verdict=verdict, hint=hint)


def _not_ready(engine: Engine) -> str | None:
    return None if engine.info.ready else "the engine is starting again"


async def _sweep(system: System) -> None:
    """Close sessions that nobody used for a while; they leave memory, the store has them."""
    timeout_s = system.config.rollout_config.session_timeout
    idle = IdleSessions(system.sessions, system.store, timeout_s=timeout_s)
    while True:
        try:
            await idle.sweep()
        except StoreError as error:
            log.warning("idle sessions are not closed yet: %s", error)
        await asyncio.sleep(min(_SWEEP_S, timeout_s / 4))


class _Watch:
    """Shows how the system fares, also while its store cannot be read."""

    def __init__(self, system: System, address: str, on_status: Callable[[Status], None]) -> None:
        self._system = system
        self._address = address
        self._on_status = on_status
        self._counts: dict[str, int] = {}
        self._asked: asyncio.Task[dict[str, int]] | None = None
        self._trouble = ""

    async def run(self) -> None:
        while True:
            not_ready = _not_ready(self._system.engine)
            await self.show("engine restarting" if not_ready else "serving")
            await asyncio.sleep(_STATUS_S)

    async def show(self, state: str) -> None:
        trouble = await self._count()
        if trouble and not self._trouble:
            log.error("the totals are those of before: %s", trouble)
        self._trouble = trouble
        status = self._system.status(state, self._address, counts=self._counts, trouble=trouble)
        self._on_status(status)

    async def _count(self) -> str:
        """Bring the totals up to date; returns why that failed, where it did."""
        # One question at a time: a store that hangs must not collect them.
        self._asked = self._asked or asyncio.ensure_future(self._system.store.counts())
        done, _ = await asyncio.wait({self._asked}, timeout=_COUNT_S)
        if not done:
            return f"The store has not answered within {_COUNT_S:g} s."
        asked, self._asked = self._asked, None
        try:
            self._counts = asked.result()
        except StoreError as error:
            return str(error)
        return ""


def _sayer(on_status: Callable[[Status], None], config: Config) -> Callable[[str], None]:
    def say(text: str) -> None:
        log.info(text)
        on_status(Status(state=text, model=config.model.name, engine=config.engine.type))

    return say
