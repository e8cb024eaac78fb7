"""The client of a fleet's API, over HTTP or gRPC: both carry requests of the control protocol, and answer alike.

A transport sends one request and reads its answer. Here is what is the same for both: what is asked again and for how
long, what is raised in the end, and that a watch goes on where the connection broke.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, Self, TypeVar, overload

import msgspec
from msgspec import Struct, structs

from stigmergy.agents.agent import Agent
from stigmergy.agents.messages import Command, Event, Message, spec_of
from stigmergy.base import errors
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import ConfigError, Malformed, NoAnswer, NotRunning, Overloaded, StigmergyError
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.presence import Member
from stigmergy.clients.client import (
    ANY_TOPIC,
    REFUSED,
    AgentT,
    Client,
    Heard,
    Watching,
    all_agents,
    check_kind,
    checked_within,
    kind_name,
    typed_state,
    verdict_of,
)
from stigmergy.control import protocol, replies
from stigmergy.node.intake import check_address, written
from stigmergy.shard.homes import is_address
from stigmergy.shard.inputs import Refused, Verdict

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


class ToldEvent(Struct, frozen=True):
    """An event of a log, or, without an agent, only how far the log was read."""

    after: str
    agent: str = ""
    type: str = ""
    time: str = ""
    fields: Any = None


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

    def __init__(self, transport: Transport, url: str, within_s: float) -> None:
        """`url` is for people."""
        self._transport = transport
        self._url = url
        self._within_s = checked_within(within_s)
        self._clock, self._entropy = SystemClock(), SystemEntropy()
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

    # ------------------------------------------------------------------ calls

    async def send(
        self,
        address: str,
        command: Command | str,
        fields: Mapping[str, Any] | None = None,
        *,
        command_id: str | None = None,
        within_s: float | None = None,
    ) -> Verdict:
        _check_address(address)
        named, given = _fields_of(command, fields, Command)
        command_id = command_id or new_command_id(self._clock.wall_ns(), self._entropy.token(RANDOM_BYTES))
        request = protocol.SendRequest(agent=address, command=named, fields=given, command_id=command_id)
        doubt = f"whether it is done is not known: send it again with command_id={command_id!r}"
        try:
            reply = await self._ask(request, within_s, address, doubt, command_id)
        except protocol.UnreadableReply:
            raise
        except REFUSED as error:
            return Refused(str(error))
        return verdict_of(reply.accepted, reply.position, reply.reason)

    async def observe(
        self,
        address: str,
        event: Event | str,
        fields: Mapping[str, Any] | None = None,
        *,
        within_s: float | None = None,
    ) -> None:
        _check_address(address)
        named, given = _fields_of(event, fields, Event)
        request = protocol.ObserveRequest(agent=address, event=named, fields=given)
        await self._ask(request, within_s, address, "whether it was taken is not known")

    @overload
    async def query(self, address: str, *, at: int | str | None = None, within_s: float | None = None) -> Any: ...

    @overload
    async def query(
        self, address: str, kind: type[AgentT], *, at: int | str | None = None, within_s: float | None = None
    ) -> AgentT: ...

    async def query(
        self,
        address: str,
        kind: type[Agent] | None = None,
        *,
        at: int | str | None = None,
        within_s: float | None = None,
    ) -> Any:
        _check_address(address)
        check_kind(address, kind)
        request = protocol.StateRequest(agent=address, at=None if at is None else str(at))
        state = (await self._ask(request, within_s, address, "ask again")).state
        return state if kind is None else typed_state(address, state, kind)

    async def agents(
        self, kind: str | type[Agent] | None = None, *, where: Sequence[str] = (), within_s: float | None = None
    ) -> list[str]:
        return await all_agents(lambda request: self._ask(request, within_s, "agents()", "ask again"), kind, where)

    def watch(
        self,
        topic: str = ANY_TOPIC,
        *,
        kind: type[Event] | type[Agent] | None = None,
        agent: str | None = None,
        after: str | None = None,
        since: datetime | str | None = None,
        latest: bool = False,
    ) -> Watching:
        if not self._is_open:
            raise NotRunning("the client is not open; use it inside async with")
        if topic != ANY_TOPIC:
            raise ConfigError(f"watch({topic!r}): topics are those of a bus; give kind=, agent= or neither")
        if latest:
            raise ConfigError("watch(latest=True): the API tells events, not topics; ask for states with query()")
        if since is not None and after is not None:
            raise ConfigError("watch(after=…, since=…): give a position or a time, not both")
        event = kind if isinstance(kind, type) and issubclass(kind, Event) else None
        wanted = WantedEvents(
            () if kind is None or event is not None else (str(kind_name(kind)),),  # type: ignore[arg-type]
            () if event is None else (spec_of(event).tag,),
            () if agent is None else (agent,),
            START if after == "start" else after or "",
            since.isoformat() if isinstance(since, datetime) else since or "",
        )
        watching = RemoteWatching(self._transport, wanted, event, self._within_s)
        self._watching.append(watching)
        return watching

    async def ask_view(self, request: protocol.ViewRequest) -> replies.ViewReply:
        return await self._ask(request, None, f"view {request.view}", "ask again")

    def members(self) -> list[Member]:
        return []

    # ------------------------------------------------------------------ asking

    async def _ask(
        self, request: protocol.Request[R], within_s: float | None, about: str, doubt: str, command_id: str = ""
    ) -> R:
        """Asks until there is an answer that says more than to ask later."""
        within_s = self._within_s if within_s is None else checked_within(within_s)
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
            raise NoAnswer(f"{about}: {error}; {doubt}", command_id=command_id) from None
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
            if told.agent:
                return told
            if until_ready:
                return None

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


def _check_address(address: str) -> None:
    check_address(address)
    if not is_address(address):
        raise Malformed(f"{address[:200]!r} is no address; write the kind and the name of an agent, like Cart/c01")


def _fields_of(
    message: Message | str, fields: Mapping[str, Any] | None, wanted: type[Command] | type[Event]
) -> tuple[str, dict[str, Any]]:
    """The name or tag of a message, and its fields as JSON has them."""
    if isinstance(message, str):
        return message, msgspec.to_builtins(dict(fields or {}), str_keys=True)
    if fields is not None:
        raise Malformed("fields=… are for a message that is named by a text; a message has its own")
    written(message, wanted)  # refuses what is none, and what would not be read back
    found = msgspec.to_builtins(message, str_keys=True)
    del found["type"]
    return spec_of(type(message)).tag, found
