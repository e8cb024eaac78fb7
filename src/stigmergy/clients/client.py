"""What a client of a fleet can do, whatever it is connected through, and what it gets back.

    async with stigmergy.connect("https://fleet.example", token=token) as far:
        answer = await far.send("Cart/c01", Drive(to="dock-1"))        # Accepted | Refused
        cart = await far.query("Cart/c01", Cart)
        async for heard in far.watch(kind=Cart, after=position):
            print(heard.agent, heard.event, heard.after)

A client runs no agents and keeps nothing. Commands carry an id and are sent again until they are answered: each is done
once. Every wait ends, with a sentence that says what is known. What a connection cannot do raises ConfigError.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import msgspec

from stigmergy.agents.agent import Agent
from stigmergy.agents.messages import Command, Event, is_number
from stigmergy.agents.view import View, ViewPlan
from stigmergy.base.errors import ConfigError, Malformed, NoAnswer, TooLarge, UnknownKind, UnknownTag
from stigmergy.bus.presence import Member
from stigmergy.control.protocol import AgentsRequest, ViewRequest
from stigmergy.control.replies import AgentsReply, ViewReply
from stigmergy.node.watching import ANY_TOPIC, Heard, Watching
from stigmergy.shard.inputs import Accepted, Refused, Verdict
from stigmergy.views.port import RowSelection, check_selection
from stigmergy.views.query import ViewPage, ViewQuery

WITHIN_S = 10.0
"""So long a call waits unless it is told otherwise."""
WITHIN_S_MAX = 3600.0
REFUSED = (Malformed, UnknownTag, UnknownKind, TooLarge)
"""What a node says of a command that no agent can take, instead of a verdict."""
PAGE_COUNT = 1_000
"""So many agents are asked for at a time."""
AgentT = TypeVar("AgentT", bound=Agent)
ViewT = TypeVar("ViewT", bound=View)


class Client(abc.ABC):
    """A connection to a fleet; made by `connect`, and opened by `async with`."""

    @abc.abstractmethod
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends the connection; pending calls raise NotRunning."""

    @abc.abstractmethod
    async def send(
        self,
        address: str,
        command: Command | str,
        fields: Mapping[str, Any] | None = None,
        *,
        command_id: str | None = None,
        within_s: float | None = None,
    ) -> Verdict:
        """Gives an agent a command, and waits for its durable answer. It is done once, however often it is sent.

        Without classes at hand name it and give its fields: `send("Cart/c01", "Drive", {"to": "dock-1"})`. Raises
        NoAnswer, with the id to send it again with, if nobody answers in time: then it may have been done, or be yet.
        A command that the agent has no handler for, or whose fields are wrong, is Refused, too.
        """

    @abc.abstractmethod
    async def observe(
        self,
        address: str,
        event: Event | str,
        fields: Mapping[str, Any] | None = None,
        *,
        within_s: float | None = None,
    ) -> None:
        """Tells an agent what was observed. Workers, HTTP and gRPC answer when it is kept as its type promises; over a
        bus see `BusClient.observe`. Raises NoAnswer if that takes too long, and what a node refuses it with:
        UnknownTag, Malformed."""

    @overload
    async def query(self, address: str, *, at: int | str | None = None, within_s: float | None = None) -> Any: ...

    @overload
    async def query(
        self, address: str, kind: type[AgentT], *, at: int | str | None = None, within_s: float | None = None
    ) -> AgentT: ...

    @abc.abstractmethod
    async def query(
        self,
        address: str,
        kind: type[Agent] | None = None,
        *,
        at: int | str | None = None,
        within_s: float | None = None,
    ) -> Any:
        """An agent's durable state, from the node that runs it: its fields, or, given the class, an agent of it.

        `at` is a position or a time, such as "2026-11-15T10:00:00Z"; a bus cannot be asked for the past. An agent that
        has had no input is in its first state. Raises NoAnswer if nobody answers in time, and what the node refuses
        with.
        """

    @abc.abstractmethod
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
        """What happens from now on, or behind the position `after`.

        Over a bus: what agents publish under a topic, such as `watch("Cart/+/place")`; also `since` a time, or with the
        `latest` event of each topic first. Over HTTP and gRPC: the events of agents' logs. Both without a gap or a
        double, also when the connection breaks, but for a bus that is watched from now on; `after` is the `after` of an
        event that was heard before, or "start". `kind` is an event class, whose events are then made from it, or an
        agent class; `agent` an address.
        """

    @abc.abstractmethod
    async def agents(
        self, kind: str | type[Agent] | None = None, *, where: Sequence[str] = (), within_s: float | None = None
    ) -> list[str]:
        """The addresses of all agents that are on disk, sorted; of one kind, if given, and of those only that fit all
        conditions on fields of their states: `where=["battery<20"]`. A bus cannot be asked for this; workers can."""

    def view(self, view: type[ViewT]) -> ViewQuery[ViewT]:
        """A question to a read model, as `live.view` asks it: `await far.view(ZoneLoad).where(zone="7").all()`. A bus
        cannot be asked for this."""
        return RemoteViewQuery(view, RemoteViews(self.ask_view))

    @abc.abstractmethod
    async def ask_view(self, request: ViewRequest) -> ViewReply:
        """A page of the rows of a view, as the control protocol has it: for views whose class is not at hand."""

    @abc.abstractmethod
    def members(self) -> list[Member]:
        """The nodes that say they are there, by name; on NATS those that were heard since this client was opened; none
        over HTTP and gRPC."""


class RemoteViews:
    """Whoever has the rows of views, elsewhere."""

    def __init__(self, ask: Callable[[ViewRequest], Awaitable[ViewReply]]) -> None:
        self.ask = ask

    def position_name(self, address: str) -> str:
        """The server knows the shard of an agent."""
        return address

    async def page(self, plan: ViewPlan, wanted: RowSelection, after: Mapping[str, int], within_s: float) -> ViewPage:
        """Rows are asked for as texts, by RemoteViewQuery."""
        raise NotImplementedError


class RemoteViewQuery(ViewQuery[ViewT]):
    """A question to a view that another process has."""

    _views: RemoteViews

    async def page(self, cursor: str = "") -> tuple[list[ViewT], str]:
        check_selection(self._plan, self._where, self._order, self._limit)
        reply = await self._views.ask(
            ViewRequest(
                view=self._plan.name,
                where=[f"{one.field}{one.op}{_text_of(one.value)}" for one in self._where],
                order=[f"{'-' * descending}{name}" for name, descending in self._order],
                limit=self._limit,
                cursor=cursor,
                after=[f"{name}:{position}" for name, position in self._after.items()],
                within_s=self._within_s,
            )
        )
        try:
            rows = [msgspec.json.decode(msgspec.json.encode(row), type=self._view) for row in reply.rows]
        except msgspec.MsgspecError as error:
            raise Malformed(f"a row is no {self._plan.name} of this program ({error}); update one of them") from None
        return rows, reply.next or ""

    def _with(self, **changed: Any) -> ViewQuery[ViewT]:
        copy: RemoteViewQuery[ViewT] = RemoteViewQuery(self._view, self._views)
        vars(copy).update({**vars(self), **changed})
        return copy


def _text_of(value: Any) -> str:
    """A value as `read_value` reads it."""
    plain = msgspec.to_builtins(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


def checked_within(within_s: float) -> float:
    """Refuses what cannot be a time to wait."""
    if not is_number(within_s) or not 0 < within_s <= WITHIN_S_MAX:
        raise ConfigError(f"within_s={within_s!r}: give more than 0 and at most {WITHIN_S_MAX:g} seconds")
    return float(within_s)


def check_kind(address: str, kind: type[Agent] | None) -> None:
    """Refuses a class that is not that of the agent."""
    if kind is not None and address.partition("/")[0] != kind.__agent_kind__:
        raise Malformed(f"{address} is no {kind.__agent_kind__}; ask with its own class, or without one")


def kind_name(kind: str | type[Agent] | None) -> str | None:
    """The name of an agent kind."""
    return kind if kind is None or isinstance(kind, str) else kind.__agent_kind__


async def all_agents(
    ask: Callable[[AgentsRequest], Awaitable[AgentsReply]], kind: str | type[Agent] | None, where: Sequence[str]
) -> list[str]:
    """The addresses of all agents, page by page. Raises NoAnswer where some of them are not known."""
    found: list[str] = []
    after = ""
    while True:
        page = await ask(AgentsRequest(kind=kind_name(kind), where=list(where), limit=PAGE_COUNT, after=after))
        if page.missing:
            raise NoAnswer(f"agents(): {page.missing[0].why}; without these the list is not whole: ask again")
        found += [one.agent for one in page.agents]
        if page.next is None:
            return found
        after = page.next


def verdict_of(accepted: bool, position: int | None, reason: str | None) -> Verdict:
    """What became of a command."""
    return Accepted(int(position or 0)) if accepted else Refused(str(reason))


def typed_state(address: str, state: Any, kind: type[AgentT]) -> AgentT:
    """An agent of this class, from its fields. Raises Malformed."""
    try:
        return msgspec.json.decode(msgspec.json.encode(state), type=kind)
    except (msgspec.MsgspecError, TypeError) as error:
        raise Malformed(
            f"{address}: its state is no {kind.__agent_kind__} of this program ({error}); windows and shared fields "
            "are told as plain values: ask without the class"
        ) from None


__all__ = [
    "ANY_TOPIC",
    "REFUSED",
    "WITHIN_S",
    "WITHIN_S_MAX",
    "AgentT",
    "Client",
    "Heard",
    "Watching",
    "all_agents",
    "check_kind",
    "checked_within",
    "kind_name",
    "typed_state",
    "verdict_of",
]
