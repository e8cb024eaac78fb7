"""The client of a fleet's API, over HTTP or gRPC: both carry requests of the control protocol, and answer alike.

A transport sends one request and reads its answer. Here is what is the same for both: what is asked again and for how
long, what is raised in the end, and that a watch goes on where the connection broke.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any, Protocol, Self, TypeVar

import msgspec
from msgspec import Struct, structs

from stigmergy.agents.assignment import shown_nodes
from stigmergy.agents.messages import Event, spec_of
from stigmergy.base import errors
from stigmergy.base.errors import ConfigError, NoAnswer, NotRunning, Overloaded, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.clients.client import Client, Wanted, check_json, command_id_of, kind_name, log
from stigmergy.control import protocol
from stigmergy.node.watching import ANY_TOPIC, Heard, Watching

R = TypeVar("R")
AGAIN_S = 0.1
AGAIN_S_MAX = 2.0
"""An unanswered request is sent again after so long; the wait doubles up to the larger."""
WAITING_MAX = 1_000
"""Requests of one client that wait for their answers at once."""
SILENT_S_MAX = 60.0
"""A server says every 15 s how far it is; a stream that is silent for so long is broken."""
START = "0:0"
"""Before the first event of every shard."""


KINDS: dict[str, type[StigmergyError]] = {
    "wrong-fields": errors.Malformed,
    "unknown-message": errors.UnknownTag,
    "unknown-agent": errors.UnknownKind,
    "runs-elsewhere": errors.NotAssigned,
    "unreachable": errors.Unreachable,
    "read-only": errors.ReadOnlyLog,
    "too-large": errors.TooLarge,
    "overloaded": errors.Overloaded,
    "too-often": errors.Overloaded,
    "too-many-connections": errors.Overloaded,
    "not-running": NotRunning,
    "journal-full": errors.JournalFull,
    "log-cut": errors.LogCut,
    "view-behind": errors.ViewBehind,
    "view-failed": errors.ViewFailed,
    "in-doubt": NoAnswer,
    "no-token": errors.TrustError,
    "forbidden": errors.TrustError,
    "bug": errors.Bug,
}
"""What is raised for a problem of the server, by its type; ConfigError for all others."""


def error_of(kind: str, text: str) -> StigmergyError:
    """What to raise for a problem: `kind` is its type, with or without what comes before the last colon."""
    return KINDS.get(kind.rpartition(":")[2], ConfigError)(text)


class WantedEvents(Struct, frozen=True):
    """Which events of a log, and from where; an empty part lets everything through."""

    kinds: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    after: str = ""
    """Positions; empty: from now on, or from `since` on."""
    since: str = ""
    node: str = ""
    """Whose log it is; empty: that of the node that is asked."""
    area: tuple[float, ...] = ()


class ToldEvent(Struct, frozen=True):
    """An event of a log, or, without an agent, only how far the log was read."""

    after: str
    agent: str = ""
    type: str = ""
    time: str = ""
    fields: Any = None
    missing: tuple[str, ...] | None = None
    """Nodes whose events are not in the stream, where it says so."""


class Transport(Protocol):
    """Carries requests to a server, and answers back. It keeps nothing and repeats nothing."""

    async def open(self) -> None:
        """Connects. Raises NotRunning if nobody answers, and what the server refuses with."""
        ...

    async def ask(self, request: protocol.Request[R]) -> R:
        """The one answer to a request. Raises what the server refuses with: Overloaded and NotRunning where nobody took
        it, NoAnswer where somebody may have."""
        ...

    def events(self, wanted: WantedEvents) -> AsyncGenerator[ToldEvent, None]:
        """Events as they become durable; first, and in silence from time to time, how far the log was read. Raises as
        `ask` does, and NoAnswer where the stream ends."""
        ...

    async def close(self) -> None:
        """Ends the connection."""
        ...


class RemoteClient(Client):
    """A client over a transport."""

    def __init__(self, transport: Transport, url: str, within_s: float, fleet: str = "") -> None:
        """`url` is for people."""
        super().__init__(within_s, fleet)
        self._transport = transport
        self._url = url
        self._calls: dict[asyncio.Future[Any], None] = {}
        self._watching: list[RemoteWatching] = []
        self._is_open = self._is_closed = False

    async def __aenter__(self) -> Self:
        if self._is_open or self._is_closed:
            raise ConfigError("a client is opened once; make another one with connect(…)")
        try:
            await self._until_answered(self._transport.open, self._within_s, is_repeatable=True)
        except BaseException as error:
            await self.close()
            if isinstance(error, NoAnswer):
                raise NotRunning(f"{self._url}: {error}") from None
            raise
        self._is_open = True
        return self

    async def close(self) -> None:
        self._is_open, self._is_closed = False, True
        for watching in self._watching:
            await watching.aclose()
        for call in list(self._calls):
            call.cancel()
        await self._transport.close()

    def _watch(self, wanted: Wanted) -> Watching:
        if not self._is_open:
            raise NotRunning("the client is not open; use it inside async with")
        if wanted.topic != ANY_TOPIC:
            raise ConfigError(f"watch({wanted.topic!r}): topics are those of a bus; give kind=, agent= or neither")
        if wanted.latest:
            raise ConfigError("watch(latest=True): the API tells events, not topics; ask for states with query()")
        if wanted.since is not None and wanted.after is not None:
            raise ConfigError("watch(after=…, since=…): give a position or a time, not both")
        kind, agent, after, since = wanted.kind, wanted.agent, wanted.after, wanted.since
        event = kind if isinstance(kind, type) and issubclass(kind, Event) else None
        events = WantedEvents(
            () if kind is None or event is not None else (str(kind_name(kind)),),  # type: ignore[arg-type]
            () if event is None else (spec_of(event).tag,),
            () if agent is None else (agent,),
            START if after == "start" else after or "",
            since.isoformat() if isinstance(since, datetime) else since or "",
            wanted.node,
            tuple(map(float, wanted.area or ())),
        )
        watching = RemoteWatching(self._transport, events, event, self._within_s)
        self._watching.append(watching)
        return watching

    # ------------------------------------------------------------------ asking

    async def _ask(
        self, request: protocol.Request[R], within_s: float | None, about: str, doubt: str, body: bytes | None = None
    ) -> R:
        """Asks until there is an answer that says more than to ask later."""
        if isinstance(request, protocol.SendRequest | protocol.ObserveRequest):
            check_json(about, request.fields)
        within_s = self._checked(within_s)
        if not self._is_open:
            raise NotRunning("the client is not open; use it inside async with")
        if len(self._calls) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} requests of this client wait for answers already; wait for some of them")
        is_repeatable = not isinstance(request, protocol.ObserveRequest)
        # A task of our own, so that closing the client ends the call and not the task of the caller.
        call = asyncio.ensure_future(
            self._until_answered(lambda: self._transport.ask(request), within_s, is_repeatable=is_repeatable)
        )
        self._calls[call] = None
        try:
            return await call
        except NoAnswer as error:
            raise NoAnswer(f"{about}: {error}; {doubt}", command_id=command_id_of(request)) from None
        except asyncio.CancelledError:
            if self._is_closed and call.cancelled():
                raise NotRunning("the client was closed") from None
            raise
        finally:
            del self._calls[call]

    async def _until_answered(self, ask: Callable[[], Awaitable[R]], within_s: float, *, is_repeatable: bool) -> R:
        """Repeats a call while the server takes nothing, and, where that is harmless, where it may have."""
        again_s, last = AGAIN_S, ""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        return await ask()
                    except (Overloaded, NotRunning) as error:
                        last = str(error)
                    except NoAnswer as error:
                        last = str(error)
                        if not is_repeatable:
                            raise
                    await asyncio.sleep(again_s)
                    again_s = min(AGAIN_S_MAX, 2 * again_s)
        except TimeoutError:
            why = f"; the last that was said: {last}" if last else ""
            raise NoAnswer(f"no answer within {within_s:g} s{why}") from None


class RemoteWatching(Watching):
    """Events of logs, in order for each agent, without a gap or a double: it goes on where the connection broke."""

    def __init__(self, transport: Transport, wanted: WantedEvents, event: type[Event] | None, within_s: float) -> None:
        self._transport = transport
        self._wanted = wanted
        self._event = event
        self._within_s = within_s
        self._stream: AsyncGenerator[ToldEvent, None] | None = None
        self._ready = False
        self._ended = False
        self._waiting: asyncio.Task[ToldEvent | None] | None = None

    async def wait_ready(self) -> None:
        """Returns when the server has said where the stream begins: what happens from now on is heard."""
        if not self._ready:
            await self._alone(self._told(until_ready=True))

    async def __anext__(self) -> Heard:
        while not self._ended:
            told = await self._alone(self._told(until_ready=False))
            if told is not None and (heard := self._heard(told)) is not None:
                return heard
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._ended = True
        if self._waiting is not None:
            await end_tasks(self._waiting)
        await self._drop_stream()

    async def _alone(self, work: Coroutine[Any, Any, ToldEvent | None]) -> ToldEvent | None:
        """A task of our own, so that closing ends the wait and not the task of the caller."""
        waiting = self._waiting = asyncio.ensure_future(work)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._ended and waiting.cancelled():
                return None
            raise
        finally:
            self._waiting = None

    async def _told(self, *, until_ready: bool) -> ToldEvent | None:
        """The next event; or None, once it is known where the stream begins. Connects again as often as it takes, but
        gives up if that takes too long."""
        again_s = AGAIN_S
        until_s: float | None = None
        now_s = asyncio.get_running_loop().time
        while True:
            if self._stream is None:
                self._stream = self._transport.events(self._wanted)
            try:
                async with asyncio.timeout(SILENT_S_MAX):
                    told = await anext(self._stream)
            except (Overloaded, NotRunning, NoAnswer, TimeoutError, StopAsyncIteration) as error:
                await self._drop_stream()
                until_s = now_s() + self._within_s if until_s is None else until_s
                if now_s() + again_s > until_s:
                    at = f"watch(after={self._wanted.after!r})" if self._wanted.after else "watch()"
                    why = str(error) or "the stream ended"
                    raise NoAnswer(f"no connection for {self._within_s:g} s ({why}); go on with {at}") from None
                await asyncio.sleep(again_s)
                again_s = min(AGAIN_S_MAX, 2 * again_s)
                continue
            except BaseException:
                await self._drop_stream()
                raise
            again_s, until_s = AGAIN_S, None
            self._ready = True
            self._wanted = structs.replace(self._wanted, after=told.after, since="")
            self._note_missing(told.missing)
            if told.agent:
                return told
            if until_ready:
                return None

    def _note_missing(self, missing: tuple[str, ...] | None) -> None:
        """Whoever has not said whose events it wants may think that it gets all: that is logged, once."""
        if missing and not self.missing and not self._wanted.node and not self._wanted.agents:
            what = f"watch(): the events of {shown_nodes(missing[:5])} are not in it; watch each with node="
            log.say("answer-incomplete", what)
        self.missing = self.missing if missing is None else missing

    def _heard(self, told: ToldEvent) -> Heard | None:
        event = told.fields
        if self._event is not None:
            try:
                event = msgspec.json.decode(msgspec.json.encode(told.fields), type=self._event)
            except msgspec.MsgspecError:
                self.refused += 1
                return None
        return Heard(told.agent, "", told.type, event, told.time, told.after)

    async def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()
