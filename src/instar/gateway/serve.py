"""One call from start to end: stitch, generate, read, record.

Comes in: a Call and who makes it. Goes out: steps of the reply as they happen; the last one
carries the recorded Turn. The turn is on disk before that last step is given out, unless the call
asks that nothing be kept of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from instar.config import GatewayConfig
from instar.errors import BusyError, ContextError, EngineError, RequestError
from instar.gateway.call import Call, Hints, Step
from instar.gateway.history import anchors
from instar.gateway.images import images_of
from instar.gateway.metrics import Metrics
from instar.gateway.sessions import OpenSession, SessionBook, named_in
from instar.gateway.stitch import SessionTree, Stitched
from instar.gateway.turn_types import turn_type
from instar.ids import new_id
from instar.protocols import Engine, Renderer, ReplyReader, Store, Versions
from instar.types import BASE_VERSION, Delta, Finish, Kind, Message, Piece, Request, Sampling, Turn

log = logging.getLogger("instar.gateway")

_HOLD_STEP_S = 0.05

_LARGE = 200_000
"""Characters of history from which on rendering moves to a thread."""
_NEW = 2_000
"""Of those that were not rendered before: tokenising them lets other threads run meanwhile."""


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A turn under way."""

    id: str
    owner: str
    call: Call
    hints: Hints
    session: OpenSession
    stitched: Stitched
    sampling: Sampling
    reader: ReplyReader
    kind: Kind
    kind_reason: str
    started: float
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: str = BASE_VERSION
    """The owner's name of it, not the engine's."""
    cached: int = 0


class TurnServer:
    """Serves calls on one engine and records them in one store."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        name: str,
        engine: Engine,
        versions: Versions,
        renderer: Renderer,
        store: Store,
        sessions: SessionBook,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._name = name
        self._engine = engine
        self._versions = versions
        self._renderer = renderer
        self._store = store
        self._sessions = sessions
        self._metrics = metrics
        self._running = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        return self._running

    @property
    def sees(self) -> bool:
        """Whether a conversation may hold images."""
        return self._engine.info.sees

    def models(self, owner: str) -> list[str]:
        """Names this owner may ask for: the live model, its aliases, each loaded version."""
        versions = [f"{self._name}:{version}" for version in self._versions.names(owner)]
        return [self._name, *self._config.model_aliases, *versions]

    def no_model(self, owner: str, model: str) -> RequestError:
        """For a name that is none of these."""
        return RequestError(
            f"The model {model[:80]!r} does not exist here. Served are: "
            f"{', '.join(self.models(owner))}",
            status=404,
            param="model",
            code="model_not_found",
        )

    async def run(self, owner: str, call: Call, hints: Hints) -> AsyncGenerator[Step, None]:
        """The steps of one reply. Closing this early cancels it and records what there is."""
        version = self._version_of(owner, call.model)
        if self._running >= self._config.max_queue:
            raise BusyError(self._running, retry_after=self._wait_guess())
        self._running += 1
        self._quiet.clear()
        self._metrics.running.set(self._running)
        try:
            async with self._versions.use(owner, version) as (own, weights):
                draft = await self._draft(owner, call, hints)
                draft.version = own
                draft.session.busy += 1
                try:
                    async with aclosing(self._reply(draft, weights)) as steps:
                        async for step in steps:
                            yield step
                finally:
                    draft.session.busy -= 1
        finally:
            self._running -= 1
            self._metrics.running.set(self._running)
            if not self._running:
                self._quiet.set()

    async def count(self, owner: str, call: Call) -> int:
        """How many tokens the prompt of this call has, were it to start a session."""
        self._version_of(owner, call.model)
        return len((await self._stitch(_apart(owner), call)).prompt_ids)

    async def drain(self, timeout_s: float) -> None:
        """Wait for replies and recordings under way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._quiet.wait()
                while self._tasks:
                    await asyncio.wait(self._tasks)

    async def _draft(self, owner: str, call: Call, hints: Hints) -> _Draft:
        if hints.no_record:
            session = _apart(owner)
        else:
            name = hints.session or named_in(call.messages)
            session = await self._sessions.find(owner, name, call.messages)
        stitched = await self._stitch(session, call)
        if stitched.parent is not None and stitched.parent.no_train:
            # What was said in private is read in every reply that goes on from there.
            hints = replace(hints, no_train=True)
        room = self._engine.info.context - len(stitched.prompt_ids)
        if room < 1:
            raise ContextError(len(stitched.prompt_ids), self._engine.info.context)
        apart = stitched.parent is None and session.tree.has_tools and not call.tools
        kind, reason = turn_type(hints.kind, hints.errand, call.messages, apart=apart)
        # What a person says in private teaches nothing, not even about the turn before.
        heard = kind == "main" and not hints.no_train
        if heard and stitched.parent and stitched.next_state:
            await self._store.saw_next(stitched.parent.id, stitched.next_state)
        return _Draft(
            id=new_id("t"),
            owner=owner,
            call=call,
            hints=hints,
            session=session,
            stitched=stitched,
            sampling=self._sampling(call, room),
            reader=self._reader(call, stitched),
            kind=kind,
            kind_reason=reason,
            started=time.time(),
        )

    async def _stitch(self, session: OpenSession, call: Call) -> Stitched:
        def work() -> Stitched:
            if call.prompt is not None:
                return session.tree.stitch_raw(*self._renderer.raw(call.prompt))
            return session.tree.stitch(
                call.messages, renderer=self._renderer, tools=call.tools, options=call.options
            )

        size, new = _sizes(call, fresh=not len(session.tree))
        if new > _NEW or size > _LARGE or len(call.messages) > 500:
            return await asyncio.to_thread(work)
        return work()

    def _sampling(self, call: Call, room: int) -> Sampling:
        config = self._config
        wanted = call.max_tokens or config.default_max_tokens
        return Sampling(
            temperature=config.temperature if call.temperature is None else call.temperature,
            top_p=config.top_p if call.top_p is None else call.top_p,
            top_k=config.top_k if call.top_k is None else call.top_k,
            seed=call.seed,
            max_tokens=min(wanted, room),
            stop=call.stop,
            stop_ids=(*(() if call.ignore_eos else self._renderer.eos_ids), *call.stop_ids),
            top_logprobs=call.top_logprobs,
        )

    async def _reply(self, draft: _Draft, weights: str) -> AsyncGenerator[Step, None]:
        request = Request(
            id=draft.id,
            prompt_ids=draft.stitched.prompt_ids,
            sampling=draft.sampling,
            session=draft.session.id,
            version=weights,
            images=images_of(draft.stitched.messages),
            # What comes after the one call that is wanted is best not drawn at all.
            stream=draft.call.stream or draft.call.one_call,
        )
        finish: Finish | None = None
        ended = False
        try:
            async with aclosing(self._pieces(draft, request)) as pieces:
                async for piece in pieces:
                    deltas = self._take(draft, piece)
                    finish = piece.finish or ("stop" if draft.reader.done else None)
                    yield Step(
                        name=draft.id,
                        deltas=deltas,
                        piece=piece,
                        version=draft.version,
                        cached=draft.cached,
                        prompt_tokens=len(request.prompt_ids),
                    )
                    if finish:
                        break
            if finish is None:
                raise EngineError("the engine ended a reply without a finish reason")
            last, message = draft.reader.close()
            turn = self._turn(draft, finish, message)
            ended = True
            await self._record(draft, turn)
            yield Step(name=draft.id, deltas=last, turn=turn, cached=draft.cached)
        except EngineError:
            # An engine's failure is not the model's: nothing is recorded, the client is told.
            ended = True
            self._metrics.engine_errors.inc()
            raise
        finally:
            if not ended and draft.ids:
                self._record_cancelled(draft)

    async def _pieces(self, draft: _Draft, request: Request) -> AsyncGenerator[Piece, None]:
        """The engine's pieces. One that fails before the first is waited for and asked again."""
        until = time.monotonic() + self._config.hold_s
        for last in (False, True):
            await self._hold(until)
            try:
                async with aclosing(self._engine.generate(request)) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except EngineError as error:
                if draft.ids or last or time.monotonic() > until:
                    raise
                log.warning("reply %s is asked for again: %s", draft.id, error)
                # An engine needs a moment to see that it has to be started again.
                await asyncio.sleep(_HOLD_STEP_S)

    async def _hold(self, until: float) -> None:
        """Wait for an engine that is being started again: clients take a 503 worse than a wait."""
        while not self._engine.info.ready:
            if time.monotonic() > until:
                raise EngineError(
                    f"the engine is being started again and was not ready within "
                    f"{self._config.hold_s:g} s (gateway.hold_s)"
                )
            await asyncio.sleep(_HOLD_STEP_S)

    def _take(self, draft: _Draft, piece: Piece) -> list[Delta]:
        if not draft.ids:
            # An engine counts all tokens that an image takes; the prompt has one for it.
            draft.cached = min(max(draft.cached, piece.cached), len(draft.stitched.prompt_ids))
            self._metrics.first_token.observe(time.time() - draft.started)
        self._metrics.rate.add(len(piece.ids))
        deltas = draft.reader.push(_shown(piece.ids, draft.call.stop_ids))
        draft.ids.extend(piece.ids)
        draft.logprobs.extend(piece.logprobs)
        if draft.reader.done:
            # After the one call that is wanted nothing is kept: the next prompt goes on from there.
            kept = self._wanted(draft)
            del draft.ids[kept:], draft.logprobs[kept:]
        return deltas

    def _wanted(self, draft: _Draft) -> int:
        """How many of the reply's ids come before the one after which nothing matters."""
        reader = self._reader(draft.call, draft.stitched)
        for at, token in enumerate(draft.ids):
            reader.push([token])
            if reader.done:
                return at
        return len(draft.ids)

    def _reader(self, call: Call, stitched: Stitched) -> ReplyReader:
        return self._renderer.reader(
            tools=bool(call.tools),
            thinking=stitched.thinking,
            stop=call.stop,
            one_call=call.one_call,
            raw=call.prompt is not None,
        )

    def _turn(self, draft: _Draft, finish: Finish, reply: Message) -> Turn:
        call, stitched, info = draft.call, draft.stitched, self._engine.info
        if finish == "stop" and reply.get("tool_calls"):
            finish = "tool_calls"
        return Turn(
            id=draft.id,
            owner=draft.owner,
            session=draft.session.id,
            parent=stitched.parent.id if stitched.parent else None,
            extends=stitched.extends,
            kind=draft.kind,
            kind_reason=draft.kind_reason,
            prompt_ids=stitched.prompt_ids,
            sampled_ids=tuple(draft.ids),
            logprobs=tuple(draft.logprobs),
            settings=draft.sampling,
            version=draft.version,
            finish=finish,
            messages=stitched.messages,
            reply=reply,
            tools=call.tools,
            replies=stitched.replies,
            # A raw prompt is no history that a client could send again.
            anchors=() if call.prompt is not None else anchors(stitched.messages, reply),
            no_train=draft.hints.no_train,
            group=draft.hints.group,
            run=draft.hints.run,
            logprobs_scaled=info.logprobs_scaled or draft.sampling.temperature in (0.0, 1.0),
            created=draft.started,
        )

    async def _record(self, draft: _Draft, turn: Turn) -> None:
        metrics = self._metrics
        if draft.hints.no_record:
            metrics.unrecorded.inc()
        else:
            self._sessions.add(draft.session, turn)
            if not await self._store.record(turn):
                metrics.undurable.inc()
            metrics.turns.labels(turn.kind).inc()
            metrics.stitched.labels(draft.stitched.how).inc()
        metrics.sampled.inc(len(turn.sampled_ids))
        metrics.prompted.inc(len(turn.prompt_ids))
        metrics.cached.inc(draft.cached)

    def _record_cancelled(self, draft: _Draft) -> None:
        """The client hung up: keep what was sampled, in a task that outlives the request."""
        _, message = draft.reader.close()
        turn = self._turn(draft, "cancelled", message)
        task = asyncio.ensure_future(self._record(draft, turn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _version_of(self, owner: str, model: str) -> str | None:
        """None for the live one; `name:version` asks for one of the owner's by name."""
        if model == self._name or model in self._config.model_aliases:
            return None
        head, _, version = model.rpartition(":")
        if head == self._name and version:
            return version
        raise self.no_model(owner, model)

    def _wait_guess(self) -> int:
        """Seconds until a place is likely free: rough, but more than nothing."""
        rate = self._metrics.rate.value()
        return max(1, min(60, round(self._running * 64 / rate))) if rate else 5


def _apart(owner: str) -> OpenSession:
    """A session that is in no book, and in no store as long as its turn is not recorded."""
    return OpenSession(id=new_id("s"), owner=owner, tree=SessionTree(), used=0.0)


def _shown(ids: tuple[int, ...], stop_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Without the token that ended the reply, where the client chose it: it is no text."""
    return ids[:-1] if ids and ids[-1] in stop_ids else ids


def _sizes(call: Call, *, fresh: bool) -> tuple[int, int]:
    """Characters of all, and of what a session that is not fresh cannot have rendered before."""
    sizes = [_length(message) for message in call.messages]
    replies = [at for at, one in enumerate(call.messages) if one["role"] == "assistant"]
    known = 0 if fresh or not replies else replies[-1]
    raw = len(call.prompt or ())
    tools = len(orjson.dumps(call.tools))
    return sum(sizes) + tools + raw, sum(sizes[known:]) + (tools if fresh else 0) + raw


def _length(message: Message) -> int:
    """Characters of a message's content, whole or in parts, and of the calls that it makes."""
    content: Any = message.get("content")
    calls = len(orjson.dumps(message["tool_calls"])) if message.get("tool_calls") else 0
    if isinstance(content, list):
        return calls + sum(len(part.get("text") or "") for part in content)
    return calls + len(content or "")
