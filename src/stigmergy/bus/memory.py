"""An in-process broker and the bus to it, for tests, simulations and fleets in one program.

`memory:NAME` is the broker of that name. It works like an MQTT broker at QoS 1: a session for each client id holds
messages while the client is away, and there are retained messages and wills. Nothing here uses a clock, randomness or
threads, so it runs in virtual time and every run repeats. A test can make links fail:

    broker = memory_broker("fleet")       # call its methods while the event loop runs
    broker.cut("drone-7")                 # the link is lost: the will goes out, the broker holds what comes
    broker.restore("drone-7")             # and comes back: what was not acknowledged comes again, then the rest
    broker.drop_acknowledgements("drone-7")    # until the next cut messages pass and acknowledgements do not

Everything is lost with the process, and with `forget_broker`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from stigmergy.base.clock import Entropy
from stigmergy.base.errors import Bug, ConfigError, LinkDown, StigmergyError
from stigmergy.bus.inbox import Arrival, Receipts, Reception
from stigmergy.bus.port import BusMessage, Handler, LinkHeard, check_message, check_pattern, matches, tell_link

SCHEME = "memory:"
HELD_COUNT_MAX = 100_000
"""A session's default bound while its client is away; later messages are dropped and counted, as brokers do."""
WINDOW_COUNT_MAX = 1_000
"""Messages on their way to one client, not acknowledged yet."""
ROUTES_COUNT_MAX = 10_000
"""Bound of a broker's cache of topics and their receivers; beyond it the cache starts again."""
CLOSE_S_MAX = 5.0
"""The limit at `close` for handlers under way."""

_brokers: dict[str, MemoryBroker] = {}


def memory_broker(name: str) -> MemoryBroker:
    """The broker of this name; made if there is none."""
    return _brokers.setdefault(name, MemoryBroker())


def forget_broker(name: str) -> None:
    """The next use of this name gets a new, empty broker."""
    _brokers.pop(name, None)


class _Session:
    """What the broker keeps for a client id, connected or not."""

    def __init__(self) -> None:
        self.patterns: dict[str, None] = {}
        self.under_way: dict[int, BusMessage] = {}
        self.held: deque[tuple[int, BusMessage]] = deque()
        self.client: MemoryBus | None = None
        self.is_cut = False
        self.acknowledges = True


class MemoryBroker:
    """Gives messages to subscribers. Its methods are for tests; clients use MemoryBus.

    After a broken link, `redeliver_after_s=None` redelivers unacknowledged messages first, as Mosquitto does. A number
    redelivers them this many seconds after the link is back, after newer ones, as NATS does.
    """

    def __init__(self, *, held_count_max: int = HELD_COUNT_MAX, redeliver_after_s: float | None = None) -> None:
        self.held_count_max = held_count_max
        self.redeliver_after_s = redeliver_after_s
        self.dropped = 0
        self.retained: dict[str, BusMessage] = {}
        self._sessions: dict[str, _Session] = {}
        self._routes: dict[str, list[_Session]] = {}
        """By topic: its receivers. Most topics repeat."""
        self._count = 0

    # For tests: faults of links.

    def cut(self, client_id: str) -> None:
        """Breaks the client's link, and prevents a new one until `restore`. Its will is published."""
        session = self._session(client_id)
        session.is_cut = True
        self._lose(session)

    def restore(self, client_id: str) -> None:
        """Lets the client reconnect, which it does at once. Acknowledgements pass again."""
        session = self._session(client_id)
        session.is_cut = False
        session.acknowledges = True
        if session.client is not None:
            session.client._connect_soon()

    def vanish(self, client_id: str) -> None:
        """The client's process dies. Its will is published; another client with its id may come."""
        self._lose(self._session(client_id))

    def cut_all(self) -> None:
        for client_id in list(self._sessions):
            self.cut(client_id)

    def restore_all(self) -> None:
        for client_id in list(self._sessions):
            self.restore(client_id)

    def drop_acknowledgements(self, client_id: str) -> None:
        """Until `restore`, acknowledgements on this link are lost: its messages will come twice."""
        self._session(client_id).acknowledges = False

    def held_count(self, client_id: str) -> int:
        """How many messages the session holds, those under way included."""
        session = self._session(client_id)
        return len(session.under_way) + len(session.held)

    # For clients.

    def _session(self, client_id: str) -> _Session:
        return self._sessions.setdefault(client_id, _Session())

    def _attach(self, client: MemoryBus) -> None:
        """A client connects; an earlier one with the same id is disconnected for good."""
        session = self._session(client.client_id)
        if session.client is not None and session.client is not client:
            session.client._lost()
        session.client = client

    def _lose(self, session: _Session) -> None:
        client = session.client
        if client is not None and client.is_up:
            client._lost()
            if client.will is not None:
                self._take(client.will)

    def _leave(self, client: MemoryBus) -> None:
        session = self._session(client.client_id)
        if session.client is client:
            session.client = None

    def _subscribe(self, client: MemoryBus, pattern: str) -> None:
        session = self._session(client.client_id)
        session.patterns[pattern] = None
        self._routes.clear()
        for topic in sorted(self.retained):
            if matches(pattern, topic):
                self._line_up(session, self.retained[topic])
        self._send(session)

    def _resume(self, client: MemoryBus) -> None:
        """The link is up: first unacknowledged messages, then held ones; or the other way round."""
        session = self._session(client.client_id)
        again = list(session.under_way.items())
        if self.redeliver_after_s is None:
            session.under_way.clear()
            session.held.extendleft(reversed(again))
        elif again:
            link = client._link
            asyncio.get_running_loop().call_later(self.redeliver_after_s, self._send_again, client, link, again)
        self._send(session)

    def _send_again(self, client: MemoryBus, link: int, again: list[tuple[int, BusMessage]]) -> None:
        session = self._session(client.client_id)
        if client.is_up and client._link == link:
            for number, message in again:
                if number in session.under_way:
                    client._receive(number, message)

    def _take(self, message: BusMessage) -> None:
        """A message has arrived: retains it if asked, and gives it to all matching sessions."""
        if message.retained:
            if message.payload:
                self.retained[message.topic] = message
            else:
                self.retained.pop(message.topic, None)
            message = msgspec.structs.replace(message, retained=False)
        for session in self._route(message.topic):
            self._line_up(session, message)
            self._send(session)

    def _route(self, topic: str) -> list[_Session]:
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= ROUTES_COUNT_MAX:
                self._routes.clear()
            sessions = self._sessions.values()
            route = [one for one in sessions if any(matches(pattern, topic) for pattern in one.patterns)]
            self._routes[topic] = route
        return route

    def _line_up(self, session: _Session, message: BusMessage) -> None:
        if len(session.held) >= self.held_count_max:
            self.dropped += 1
            return
        self._count += 1
        session.held.append((self._count, message))

    def _send(self, session: _Session) -> None:
        client = session.client
        while client is not None and client.is_up and session.held and len(session.under_way) < WINDOW_COUNT_MAX:
            number, message = session.held.popleft()
            session.under_way[number] = message
            client._receive(number, message)

    def _acknowledge(self, client: MemoryBus, number: int) -> None:
        session = self._session(client.client_id)
        if session.acknowledges:
            session.under_way.pop(number, None)
            self._send(session)


class MemoryBus:
    """The Bus port to a MemoryBroker. A message takes a turn of the loop to the broker, and another to the receiver."""

    def __init__(self, broker: MemoryBroker, client_id: str) -> None:
        self.client_id = client_id
        self.will: BusMessage | None = None
        self._broker = broker
        self._link = 0
        """Counts the links; 0 while there is none."""
        self._links = 0
        self._is_open = False
        self._is_closed = False
        self._listeners: list[LinkHeard] = []
        self._reception = Reception()
        self._pending: dict[int, None] = {}
        self._outgoing: deque[tuple[BusMessage, asyncio.Future[None]]] = deque()
        self._unanswered: dict[asyncio.Future[None], None] = {}

    @property
    def is_up(self) -> bool:
        return self._link > 0

    @property
    def receipts(self) -> Receipts:
        """How received messages have ended."""
        return self._reception.receipts

    @property
    def last_error(self) -> StigmergyError | None:
        return None if self.is_up else LinkDown(f"{self.client_id}: the link is cut, or was never made")

    def on_link(self, heard: LinkHeard) -> None:
        self._listeners.append(heard)

    async def open(self, will: BusMessage | None = None) -> None:
        if self._is_open or self._is_closed:
            raise Bug("a bus is opened once; make another one")
        if will is not None:
            check_message(will)
        self.will = will
        self._is_open = True
        self._reception.begin()
        self._broker._attach(self)
        self._connect_soon()

    async def publish(self, message: BusMessage) -> None:
        check_message(message)
        if not self.is_up:
            raise LinkDown(f"{message.topic}: the link is down, nothing was sent; publish it when the link is up")
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outgoing.append((message, answered))
        self._send_soon()
        await answered

    async def subscribe(self, pattern: str, handler: Handler) -> None:
        check_pattern(pattern)
        if self._is_closed:
            raise Bug("the bus is closed; open another one")
        self._reception.subscribe(pattern, handler)
        if self.is_up:
            self._broker._subscribe(self, pattern)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self._reception.close(CLOSE_S_MAX)
        self._broker._leave(self)
        self._lost()

    # Called by the broker.

    def _connect_soon(self) -> None:
        if self._is_open and not self._is_closed and not self.is_up:
            asyncio.get_running_loop().call_soon(self._connect)

    def _connect(self) -> None:
        session = self._broker._session(self.client_id)
        if session.client is not self or session.is_cut or self.is_up or self._is_closed:
            return
        self._links += 1
        self._link = self._links
        self._broker._resume(self)
        for pattern in self._reception.patterns:
            self._broker._subscribe(self, pattern)
        tell_link(self._listeners, True, self.client_id)

    def _lost(self) -> None:
        """The link is gone, and with it the answers to pending publishes."""
        if not self.is_up:
            return
        self._link = 0
        for answered in self._unanswered:
            _fail(answered)
        self._unanswered.clear()
        for _, answered in self._outgoing:
            _fail(answered)
        self._outgoing.clear()
        tell_link(self._listeners, False, self.client_id)

    def _send_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """One message reaches the broker; its publisher gets the answer a turn later, if the link lasts."""
        if not self._outgoing:
            return
        message, answered = self._outgoing.popleft()
        self._unanswered[answered] = None
        self._broker._take(message)
        if self._broker._session(self.client_id).acknowledges:
            asyncio.get_running_loop().call_soon(self._answer, answered)

    def _answer(self, answered: asyncio.Future[None]) -> None:
        self._unanswered.pop(answered, None)
        if not answered.done():
            answered.set_result(None)

    def _receive(self, number: int, message: BusMessage) -> None:
        asyncio.get_running_loop().call_soon(self._arrive, self._link, number, message)

    def _arrive(self, link: int, number: int, message: BusMessage) -> None:
        """A message on its way when its link breaks never arrives; the broker keeps it."""
        if link != self._link:
            return
        if number in self._pending:
            self.receipts.repeated += 1
            return
        self._pending[number] = None
        self._reception.take(Arrival(message, self._taken(number)))

    def _taken(self, number: int) -> Callable[[], None]:
        """Acknowledges, also on a later link than the message came on: the session goes on."""

        def tell() -> None:
            self._pending.pop(number, None)
            if self.is_up:
                self._broker._acknowledge(self, number)

        return tell


def _fail(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_exception(
            LinkDown("the link broke under way: whether the broker has it is unknown, publish again")
        )


def open_bus(url: str, client_id: str, entropy: Entropy) -> MemoryBus:  # noqa: ARG001 - the signature of all adapters
    """A bus to the broker `memory:NAME`; it uses no entropy."""
    name = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME) or not name:
        raise ConfigError(f"bus {url!r}: write memory:NAME, for example memory:fleet")
    return MemoryBus(memory_broker(name), client_id)
