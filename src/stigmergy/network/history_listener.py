"""Listening with history: gives agents here what others have published, from the logs of their nodes, each once.

The events of one topic for one agent are numbered as on the topic, so the same marks hold, whichever way they came: an
event is not given again that the agent has had. How far each log was read is a mark, too, moved when everything before
is durable; a restart goes on there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Protocol

from blake3 import blake3
from msgspec import Struct

from stigmergy.base.errors import LogCut, Overloaded, PeerError, StaleEpoch, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.bus.cloudevents import CloudEvent, data_of
from stigmergy.bus.history import WHOLE, LogPosition, Published, WatchPosition, read_topics
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.presence import Member
from stigmergy.bus.subscriptions import Listen
from stigmergy.bus.topics import Topics, fill_address
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.network.watching import HistoryClient, NodesWatching
from stigmergy.node.host import Host
from stigmergy.node.ingress import BUS_SOURCES, bus_source
from stigmergy.node.intake import Stream
from stigmergy.shard.inputs import SequencesSkipped

WAIT_S = 60.0
"""So long without any node that answers is a trouble."""
PAUSE_S = 0.05
"""Between two tries to put an event into a full mailbox."""
TROUBLE_PAUSE_S = 1.0
TAKEN_COUNT_MAX = 500
"""Events that are not durable yet; then they are waited for."""
NOTED_POSITIONS = 10_000
"""How far a log was read is noted with the next event, or when it has grown by so much."""
SECOND_NS = 1_000_000_000
HISTORY_SOURCES = f"{BUS_SOURCES}history/"


class ListenerCounters(Struct):
    """What came from the logs of others."""

    history_taken: int = 0
    """Repetitions included."""
    history_unfit: int = 0
    """Refused: of an unknown type, or malformed."""


class EventChecks(Protocol):
    """The checks of events that come over the bus: those of the node's subscriber."""

    def is_here(self, address: str) -> bool: ...

    def check_event(self, event: CloudEvent, to: str) -> bytes: ...

    def refuse(self, message: BusMessage, error: PeerError) -> None: ...


class _Listening(Struct, eq=False):
    """One listen, and what it has come to."""

    listen: Listen
    source: str
    """Of the marks for how far logs were read; the node and the shard follow."""
    topics: Topics
    watching: NodesWatching
    task: asyncio.Task[None] | None = None
    taken: list[asyncio.Future[None]] = []
    """Given to agents, perhaps not durable yet."""
    noted: dict[tuple[str, int], int] = {}
    """The positions that were noted last."""
    lost: str = ""
    """What retention dropped before it was read."""
    trouble: str = ""


class HistoryListener:
    """All listens of a node that want history. `start` it before the bus opens, `stop` it before the host."""

    def __init__(
        self, bus: Bus, topics: Topics, node: str, host: Host, subscriber: EventChecks, fresh_id: Callable[[], str]
    ) -> None:
        self._bus = bus
        self._own = topics
        self._node = node
        self._host = host
        self._subscriber = subscriber
        self._fresh_id = fresh_id
        self._runs: dict[str, str] = {}
        """The members of our fleet and site, and their runs."""
        self._clients: dict[Topics, HistoryClient] = {}
        self._listenings: list[_Listening] = []
        self.counters = ListenerCounters()

    def start(self) -> None:
        """Begins to ask. Nothing is sent before the link is up."""
        for listen in self._host.declaration.listens:
            if listen.history is None:
                continue
            where = Topics(listen.fleet or self._own.fleet, listen.site or self._own.site)
            if where not in self._clients:
                known: Callable[[], Iterable[str]] = (lambda: self._runs) if where == self._own else tuple
                self._clients[where] = HistoryClient(self._bus, where, self._node, known)
            name = f"{where.root} {listen.what.text} {listen.to}"
            source = f"{HISTORY_SOURCES}{blake3(name.encode()).hexdigest(length=8)}/"
            watching = NodesWatching(
                self._clients[where],
                self._fresh_id(),
                read_topics(listen.what.pattern),
                None,
                self._start_of(listen.history, source),
                WAIT_S,
                _no_check,
                lambda: ", ".join(self._runs) or "none",
            )
            listening = _Listening(listen, source, where, watching)
            listening.task = asyncio.ensure_future(self._follow(listening))
            self._listenings.append(listening)

    async def stop(self) -> None:
        """Takes nothing more."""
        for listening in self._listenings:
            await listening.watching.aclose()
            await end_tasks(listening.task)

    def link(self, up: bool) -> None:
        """The link came or went."""
        for client in self._clients.values():
            client.link(up)

    def look(self, members: Iterable[Member]) -> None:
        """Somebody has joined our fleet, or left."""
        before, self._runs = self._runs, {member.node: member.run for member in members}
        client = self._clients.get(self._own)
        if client is not None:
            for node, run in self._runs.items():
                client.found(node, is_new=before.get(node) != run)

    @property
    def troubles(self) -> list[Trouble]:
        """What is missing, and what keeps it from coming."""
        said = [(one.listen.what.text, why) for one in self._listenings for why in (one.lost, one.trouble) if why]
        return coded("history-missing", (f"listen({what!r}, history=…): {why}" for what, why in said))

    # ------------------------------------------------------------------ events

    async def _follow(self, listening: _Listening) -> None:
        while True:
            try:
                node, shard, at, one = await listening.watching.step()
            except StopAsyncIteration:
                return
            except LogCut as cut:
                listening.lost = str(cut)
                continue
            except StigmergyError as error:
                listening.trouble = str(error)
                await asyncio.sleep(TROUBLE_PAUSE_S)
                continue
            listening.trouble = ""
            try:
                if one is not None:
                    await self._give(listening, one)
                elif at.index == WHOLE and not at.latest:
                    await self._note(listening, node, shard, at)
            except StigmergyError as error:
                # What comes behind it must not be taken before it: the next start goes on at the last noted position.
                listening.lost = f"it has ended: {error}; start the node again"
                return

    async def _give(self, listening: _Listening, one: Published) -> None:
        """Puts it into the mailbox, in the order of the log; without room it waits."""
        topic = listening.topics.events(one.agent, one.topic)
        places = listening.listen.template(self._own.fleet, self._own.site).match(topic)
        to = fill_address(listening.listen.to, places or {})
        if not self._subscriber.is_here(to):
            return
        try:
            tag, content_type, data = data_of(one.body)
            event = CloudEvent("", "", tag, one.agent, datacontenttype=content_type, data=data)
            body = self._subscriber.check_event(event, to)
        except PeerError as error:
            self.counters.history_unfit += 1
            self._subscriber.refuse(BusMessage(topic, b""), error)
            return
        stream = Stream(bus_source(f"{topic} {to}"), one.incarnation, one.epoch)
        is_put = False
        while not is_put:
            try:
                taken = self._host.intake.take_numbered(stream, one.sequence, to, body, missing=False)
                taken.add_done_callback(_look_at)
                listening.taken.append(taken)
                is_put = True
            except Overloaded:
                await asyncio.sleep(PAUSE_S)
        self.counters.history_taken += 1
        if len(listening.taken) >= TAKEN_COUNT_MAX:
            await self._wait_durable(listening)

    async def _wait_durable(self, listening: _Listening) -> None:
        taken, listening.taken = listening.taken, []
        for one in taken:
            with contextlib.suppress(StaleEpoch):  # it was had before, from a later owner
                await one

    async def _note(self, listening: _Listening, node: str, shard: int, at: LogPosition) -> None:
        """Moves the mark of a log. Nothing is written for a log that has nothing for us, but now and then."""
        moved = at.position - listening.noted.get((node, shard), 0)
        if listening.taken or moved >= NOTED_POSITIONS:
            await self._wait_durable(listening)
            listening.noted[node, shard] = at.position
            source = f"{listening.source}{node}/{shard}"
            first = self._host.shards.first.state.shard
            self._host.intake.put_inside(first, SequencesSkipped(source, at.incarnation, 0, at.position, ""))

    def _start_of(self, history: str | float, source: str) -> WatchPosition:
        """Where the marks say that an earlier run has come to; other nodes begin as `history` says."""
        at: dict[str, dict[int, LogPosition]] = {}
        for mark in self._host.shards.first.state.marks.all():
            if mark.source.startswith(source):
                node, _, shard = mark.source[len(source) :].rpartition("/")
                before = at.setdefault(node, {}).get(int(shard))
                if before is None or before.position < mark.sequence:
                    at[node][int(shard)] = LogPosition(mark.incarnation, mark.sequence)
        if isinstance(history, str):
            return WatchPosition(at, latest=history == "latest")
        return WatchPosition(at, since_ns=max(0, self._host.clock.wall_ns() - int(history * SECOND_NS)))


def _look_at(done: asyncio.Future[None]) -> None:
    """What ends the host is not for the listener to report."""
    if not done.cancelled():
        done.exception()


async def _no_check() -> None:
    """Whoever listens waits for nodes to come."""
