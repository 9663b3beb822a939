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
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
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
from instar.gateway.metrics import Metrics
from instar.gateway.serve import TurnServer
from instar.gateway.sessions import SessionBook
from instar.protocols import Engine
from instar.publish.swap import VersionFollower
from instar.publish.versions import VersionFiles
from instar.record.attempts import AttemptBook
from instar.record.feedback import give_feedback
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

    async def status(self, state: str, address: str) -> Status:
        info = self.engine.info
        counts = await self.store.counts()
        stats = engine_stats(self.engine)
        return Status(
            state=state,
            address=address,
            model=info.model,
            engine=f"{self.config.engine.type} on {info.device}",
            version=self.versions.summary(),
            sessions=counts["sessions"],
            turns=counts["turns"],
            tokens_per_s=self.metrics.rate.value(),
            running=self.server.running,
            waiting=int(stats.get("waiting", 0)),
            lost=self.store.lost,
            late=self.store.late,
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
        watch = asyncio.ensure_future(_watch(system, address, on_status))
        try:
            halt = asyncio.ensure_future(stop.wait())
            await asyncio.wait({task, halt}, return_when=asyncio.FIRST_COMPLETED)
            halt.cancel()
        finally:
            watch.cancel()
            web.should_exit = True
            with suppress(StoreError):
                on_status(await system.status("stopping", address))
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

    def refresh() -> None:
        metrics.lost.set(store.lost)
        metrics.backlog.set(float(store.health()["backlog"] or 0))
        metrics.sessions.set(len(sessions))
        metrics.load_failures.set(versions.failures)

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
        refresh=refresh,
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


def _access(config: Config, keys: Keys) -> Access:
    return Access(
        keys.owner_of,
        key_required=not is_loopback(config.gateway.host),
        local_key=secret("INSTAR_API_KEY"),
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
    return await give_feedback(store, owner, turn=turn, session=session, verdict=verdict, hint=hint)


def _not_ready(engine: Engine) -> str | None:
    return None if engine.info.ready else "the engine is starting again"


async def _sweep(system: System) -> None:
    """Close sessions that nobody used for a while; they leave memory, the store has them."""
    pause = min(_SWEEP_S, system.config.rollout_config.session_timeout / 4)
    while True:
        for session in system.sessions.idle():
            system.sessions.drop(session.owner, session.id)
            try:
                await system.store.close_session(session.owner, session.id, time.time())
            except StoreError as error:
                log.warning("session %s is not closed yet: %s", session.id, error)
        await asyncio.sleep(pause)


async def _watch(system: System, address: str, on_status: Callable[[Status], None]) -> None:
    while True:
        state = "serving" if _not_ready(system.engine) is None else "engine restarting"
        try:
            on_status(await system.status(state, address))
        except StoreError as error:
            log.error("the store cannot be read, so there is no status: %s", error)
        await asyncio.sleep(_STATUS_S)


def _sayer(on_status: Callable[[Status], None], config: Config) -> Callable[[str], None]:
    def say(text: str) -> None:
        log.info(text)
        on_status(Status(state=text, model=config.model.name, engine=config.engine.type))

    return say
