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
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import msgspec

from stigmergy.agents.agent import Agent
from stigmergy.agents.assignment import BEYOND_FLEET, is_foreign
from stigmergy.agents.messages import Command, Event, Message, is_number, spec_of
from stigmergy.agents.view import plan_of
from stigmergy.base.command_ids import RANDOM_BYTES, new_command_id
from stigmergy.base.errors import ConfigError, Malformed, NoAnswer, NotAssigned, TooLarge, UnknownKind, UnknownTag
from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.bus.presence import Member
from stigmergy.control.protocol import (
    AgentsRequest,
    LedgerRequest,
    ObserveRequest,
    Request,
    SendRequest,
    StateRequest,
    UnreadableReply,
    ViewRequest,
)
from stigmergy.control.replies import ViewReply
from stigmergy.diagnostics.logger import Log
from stigmergy.ledgers.records import ShownLedger
from stigmergy.node.intake import checked_address, written
from stigmergy.node.tracer import active_context
from stigmergy.node.watching import ANY_TOPIC, Watching
from stigmergy.shard.homes import is_remote_address
from stigmergy.shard.inputs import Accepted, Refused, Verdict
from stigmergy.views.port import check_selection
from stigmergy.views.query import V, ViewQuery, ViewQuestion

WITHIN_S = 10.0
"""So long a call waits unless it is told otherwise."""
WITHIN_S_MAX = 3600.0
REFUSED = (Malformed, UnknownTag, UnknownKind, TooLarge)
"""What a node says of a command that no agent can take, instead of a verdict."""
PAGE_COUNT = 1_000
"""So many agents are asked for at a time."""
AgentT = TypeVar("AgentT", bound=Agent)
R = TypeVar("R")


log = Log("client")


class Wanted(msgspec.Struct, frozen=True):
    """What `watch` was called with."""

    topic: str
    kind: type[Event] | type[Agent] | None
    agent: str | None
    after: str | None
    since: datetime | str | None
    latest: bool
    node: str
    area: tuple[float, float, float, float] | None


class Client(abc.ABC):
    """A connection to a fleet; made by `connect`, and opened by `async with`.

    All calls are requests of the control protocol. Their arguments are checked here; what carries them is a subclass.
    """

    def __init__(self, within_s: float, fleet: str = "") -> None:
        """`fleet` is its name; empty if it is not known here, and then the server knows it."""
        self._within_s = checked_within(within_s)
        self._fleet = fleet
        self._clock, self._entropy = SystemClock(), SystemEntropy()

    @abc.abstractmethod
    async def _ask(
        self, request: Request[R], within_s: float | None, about: str, doubt: str, body: bytes | None = None
    ) -> R:
        """The answer to a request. Raises what the fleet refuses with, NoAnswer with `doubt` if nobody answers in time,
        and ConfigError for what cannot be asked over this connection. `body` is the message, if its class was given."""

    @abc.abstractmethod
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends the connection; pending calls raise NotRunning."""

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
        A command that the agent has no handler for, or whose fields are wrong, is Refused, too. In a span of
        OpenTelemetry the command belongs to its trace.
        """
        address = self._own(address)
        named, given, body = _message(command, fields, Command)
        command_id = command_id or self._fresh_id()
        parent, state = active_context()
        request = SendRequest(
            agent=address, command=named, fields=given, command_id=command_id, traceparent=parent, tracestate=state
        )
        doubt = f"whether it is done is not known: send it again with command_id={command_id!r}"
        try:
            reply = await self._ask(request, within_s, address, doubt, body)
        except UnreadableReply:
            raise
        except REFUSED as error:
            return Refused(str(error))
        return Accepted(reply.position or 0, reply.after or "") if reply.accepted else Refused(str(reply.reason))

    async def observe(
        self,
        address: str,
        event: Event | str,
        fields: Mapping[str, Any] | None = None,
        *,
        within_s: float | None = None,
    ) -> None:
        """Tells an agent what was observed. Workers, HTTP and gRPC answer when it is kept as its type promises.

        Over a bus no message says that it was taken: this waits until a node says that it runs the agent, and returns
        when the broker has it. Raises NoAnswer if that takes too long, and what a node refuses it with: UnknownTag,
        Malformed. A refusal is waited for a quarter of a second, each time for an event that is named by a text, and
        once for each kind of agent and event class.
        """
        address = self._own(address)
        named, given, body = _message(event, fields, Event)
        parent, state = active_context()
        request = ObserveRequest(agent=address, event=named, fields=given, traceparent=parent, tracestate=state)
        await self._ask(request, within_s, address, "whether it was taken is not known", body)

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
        """An agent's durable state, from the node that runs it: its fields, or, given the class, an agent of it.

        `at` is a position or a time, such as "2026-11-15T10:00:00Z"; a bus cannot be asked for the past. An agent that
        has had no input is in its first state. Raises NoAnswer if nobody answers in time, and what the node refuses
        with.
        """
        address = self._own(address)
        if kind is not None and address.split("/")[-2] != kind.__agent_kind__:
            raise Malformed(f"{address} is no {kind.__agent_kind__}; ask with its own class, or without one")
        request = StateRequest(agent=address, at=None if at is None else str(at))
        state = (await self._ask(request, within_s, address, "ask again")).state
        return state if kind is None else _typed_state(address, state, kind)

    def watch(
        self,
        topic: str = ANY_TOPIC,
        *,
        kind: type[Event] | type[Agent] | None = None,
        agent: str | None = None,
        after: str | None = None,
        since: datetime | str | None = None,
        latest: bool = False,
        node: str = "",
        area: tuple[float, float, float, float] | None = None,
    ) -> Watching:
        """What happens from now on, or behind the position `after`: `async for heard in far.watch("Cart/+/place")`.

        Over a bus: what agents publish under a topic, which is the agent's kind, its name and what it calls the topic,
        `+` for any of them, `#` for all that follow. Also `since` a time, or with the `latest` event of each topic
        first. From now on, at most 1,000 events wait to be taken; of more the oldest are dropped, and counted in
        `dropped`. With history nothing is: nodes are asked for their logs, and NoAnswer is raised if none answers in
        time. What retention has dropped is said: LogCut is raised once, or, without `after`, the node is in
        `truncated`. On workers without a bus nobody could be heard: ConfigError is raised where the first event is
        waited for.

        Over HTTP and gRPC: the events of agents' logs, of one log: of the node that is asked, of that of `agent`, or of
        `node`. `missing` of what is returned names the others. `area` is a box, from its least corner to its largest:
        the events that are in it, or whose agent is.

        Both without a gap or a double, also when the connection breaks, but for a bus that is watched from now on;
        `after` is the `after` of an event that was heard before, or "start". `kind` is an event class, whose events are
        then made from it, or an agent class; `agent` an address.
        """
        return self._watch(Wanted(topic, kind, agent and self._own(agent), after, since, latest, node, area))

    @abc.abstractmethod
    def _watch(self, wanted: Wanted) -> Watching:
        """Begins to watch. Raises ConfigError for what this connection cannot tell, NotRunning before it is open."""

    async def agents(
        self,
        kind: str | type[Agent] | None = None,
        *,
        where: Sequence[str] = (),
        within_s: float | None = None,
        partial: bool = False,
    ) -> list[str]:
        """The addresses of all agents that are on disk, sorted; of one kind, if given, and of those only that fit all
        conditions on fields of their states: `where=["battery<20"]`. A bus cannot be asked for this; workers can.

        Raises NoAnswer if a shard or a node does not answer or is away; with `partial` its agents are left out."""
        found: list[str] = []
        after = ""
        while True:
            request = AgentsRequest(kind=kind_name(kind), where=list(where), limit=PAGE_COUNT, after=after)
            page = await self._ask(request, within_s, "agents()", "ask again")
            if page.missing and not partial:
                why = page.missing[0].why
                raise NoAnswer(f"agents(): {why}; without these the list is not whole: ask again, or with partial=True")
            found += [one.agent for one in page.agents]
            if page.next is None:
                return found
            after = page.next

    def view(self, view: type[V], *, node: str = "") -> ViewQuery[V]:
        """A question to a read model, as `live.view` asks it: `await far.view(ZoneLoad).where(zone="7").all()`. A bus
        cannot be asked for this. Of several nodes on a broker each has the events of its own agents: `node` says whose
        rows; without it they are those of the node that is asked, and a warning is logged."""
        return ViewQuery(view, RemoteViews(self.ask_view, node))

    async def ask_view(self, request: ViewRequest) -> ViewReply:
        """A page of the rows of a view, as the control protocol has it: for views whose class is not at hand."""
        return await self._ask(request, None, f"view {request.view}", "ask again")

    async def ledger_entries(
        self, ledger: str, *, after: int = 0, limit: int = 100, latest: bool = False, fresh: bool = False
    ) -> ShownLedger:
        """Entries of a ledger of the fleet's own behind a position, or the latest. A bus cannot be asked for this."""
        request = LedgerRequest(ledger=ledger, after=after, limit=limit, latest=latest, fresh=fresh)
        return await self._ask(request, None, f"ledger {ledger}", "ask again")

    def members(self) -> list[Member]:
        """The nodes that say they are there, by name; on NATS those that were heard since this client was opened; none
        over HTTP and gRPC."""
        return []

    def _own(self, address: str) -> str:
        """An address as nodes of the fleet write it. Raises Malformed for what is none, NotAssigned for one of another
        fleet."""
        own = checked_address(address, self._fleet)
        if not is_remote_address(own):
            raise Malformed(f"{own[:200]!r} is no address; write the kind and the name of an agent, like Cart/c01")
        if self._fleet and is_foreign(own):
            raise NotAssigned(f"{own} is an agent of another fleet than {self._fleet!r}; {BEYOND_FLEET}")
        return own

    def _fresh_id(self) -> str:
        return new_command_id(self._clock.wall_ns(), self._entropy.token(RANDOM_BYTES))

    def _checked(self, within_s: float | None) -> float:
        return self._within_s if within_s is None else checked_within(within_s)


class RemoteViews:
    """The views of a fleet, as AnswersViews: the rows are asked for over a client."""

    def __init__(self, ask: Callable[[ViewRequest], Awaitable[ViewReply]], node: str = "") -> None:
        """`node` is whose rows; empty for those of whoever is asked, and then it is logged whose are missing."""
        self._ask = ask
        self._node = node

    async def ask(self, view: type[V], question: ViewQuestion) -> tuple[list[V], str]:
        """The rows that are asked for. What is wrong with the question is said here; the cursor is the server's."""
        plan = plan_of(view)
        check_selection(plan, question.where, question.order, question.limit)
        reply = await self._ask(
            ViewRequest(
                view=plan.name,
                where=[f"{one.field}{one.op}{_text_of(one.value)}" for one in question.where],
                order=[f"{'-' * descending}{name}" for name, descending in question.order],
                limit=question.limit,
                cursor=question.cursor,
                after=[f"{name}:{position}" for name, position in question.after.items()],
                within_s=question.within_s,
                node=self._node,
            )
        )
        if reply.missing and not self._node:
            log.say("answer-incomplete", f"view {plan.name}: {'; '.join(part.why for part in reply.missing[:5])}")
        try:
            rows = [msgspec.json.decode(msgspec.json.encode(row), type=view) for row in reply.rows]
        except msgspec.MsgspecError as error:
            raise Malformed(f"a row is no {plan.name} of this program ({error}); update one of them") from None
        return rows, reply.next or ""

    def position_name(self, address: str) -> str:
        """The server knows the shard of an agent."""
        return address


def _text_of(value: Any) -> str:
    """A value as `read_value` reads it."""
    plain = msgspec.to_builtins(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


def checked_within(within_s: float) -> float:
    """Refuses what cannot be a time to wait."""
    if not is_number(within_s) or not 0 < within_s <= WITHIN_S_MAX:
        raise ConfigError(f"within_s={within_s!r}: give more than 0 and at most {WITHIN_S_MAX:g} seconds")
    return float(within_s)


def command_id_of(request: object) -> str:
    """What a command may be sent again with; empty for other requests."""
    return getattr(request, "command_id", None) or ""


def kind_name(kind: str | type[Agent] | None) -> str | None:
    """The name of an agent kind."""
    return kind if kind is None or isinstance(kind, str) else kind.__agent_kind__


def _message(
    message: Message | str, fields: Mapping[str, Any] | None, wanted: type[Command] | type[Event]
) -> tuple[str, dict[str, Any], bytes | None]:
    """The name or tag of a message, its fields as JSON has them, and its bytes, if it is one."""
    if isinstance(message, str):
        given = msgspec.to_builtins(dict(fields or {}), str_keys=True)
        check_json(message, given)
        return message, given, None
    if fields is not None:
        raise Malformed("fields=… are for a message that is named by a text; a message has its own")
    body = written(message, wanted)  # refuses what is none, and what would not be read back
    found = msgspec.to_builtins(message, str_keys=True)
    del found["type"]
    return spec_of(type(message)).tag, found, body


def check_json(name: str, value: Any) -> None:
    """Refuses numbers that JSON cannot say: an encoder makes null of them, which an optional field would take."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Malformed(
            f"{name} has a field that is {value}: JSON cannot say it; use None, or a connection over the bus"
        )
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_json(name, item)


def _typed_state(address: str, state: Any, kind: type[AgentT]) -> AgentT:
    """An agent of this class, from its fields. Raises Malformed."""
    try:
        return msgspec.json.decode(msgspec.json.encode(state), type=kind)
    except (msgspec.MsgspecError, TypeError) as error:
        raise Malformed(
            f"{address}: its state is no {kind.__agent_kind__} of this program ({error}); windows and shared fields "
            "are told as plain values: ask without the class"
        ) from None
