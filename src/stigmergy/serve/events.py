"""The event stream of a fleet, for any number of clients: each event is read once and encoded once.

One reader follows the log and puts batches of encoded events into a ring in memory. Each client has a place in the
ring and takes what its filter lets through; what equal filters let through is joined once. A client that begins
earlier first reads by itself, and joins the ring without a gap or a double. A client that falls out of the ring is
told so, with the id to go on from, and is left. Nobody waits for a client: neither the reader nor the node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import UNSET, Struct, structs

from stigmergy.agents.assignment import shown_nodes
from stigmergy.agents.messages import Event, loaded_events, spec_of
from stigmergy.agents.plans import AgentPlan
from stigmergy.agents.text import messages_of
from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError, LogCut, NotRunning, Overloaded, StigmergyError, UnknownKind, UnknownTag
from stigmergy.base.tasks import end_tasks
from stigmergy.control import protocol
from stigmergy.control.protocol import PLACES
from stigmergy.control.replies import EventReply, EventsReply
from stigmergy.node.feed import FeedPosition, read_key, read_positions, write_positions
from stigmergy.serve.access import DeniedRequest
from stigmergy.serve.asker import Asker
from stigmergy.serve.pump import DroppedReader
from stigmergy.shard.homes import plan_at

RING_EVENTS_MAX = 50_000
RING_BYTES_MAX = 32 * 1024 * 1024
"""So much is kept for clients that are behind; whoever is further behind is dropped."""
READ_COUNT = 2_000
READ_WITHIN_S = 20.0
"""A page of the reader, and how long it waits for one."""
PAUSE_S_PER_CLIENT = 0.0005
PAUSE_S_MAX = 0.1
"""Between two batches: with many clients larger batches are sent less often."""
AGAIN_S = 0.2
AGAIN_S_MAX = 5.0
"""The reader asks again after so long when nobody answers; the wait doubles up to the larger."""
CHUNK_BYTES = 256 * 1024
"""So much is sent to a client at once, unless one batch is larger."""
LEVEL_PAUSE_S = 0.05
"""A client that reads by itself and has read everything looks again after so long."""
STREAMS_MAX = 500
"""One more is refused."""
FILTERS_CACHED_MAX = 64
"""Different filters for which a batch is joined once."""

Positions = dict[str, FeedPosition]
"""By shard and log: `0@5f3a9c1e`."""
START = FeedPosition(0)


class StreamFilter(Struct, frozen=True):
    """Which events a client wants; an empty part lets everything through."""

    kinds: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    area: tuple[float, float, float, float] | None = None
    """A box, from its least to its largest corner: two values that stand for latitude and longitude, or x and y."""

    def lets_through(self, event: EventReply) -> bool:
        """Whether this event is wanted."""
        if self.agents and event.agent not in self.agents:
            return False
        if self.kinds and event.agent.partition("/")[0] not in self.kinds:
            return False
        if self.types and event.type not in self.types and event.type.partition("@")[0] not in self.types:
            return False
        if self.area is None:
            return True
        if not event.place:
            return False
        low_a, low_b, high_a, high_b = self.area
        return low_a <= event.place[0] <= high_a and low_b <= event.place[1] <= high_b


def read_area(numbers: Sequence[float]) -> tuple[float, float, float, float]:
    """The box of a filter. Raises ConfigError."""
    shown = f"area={','.join(f'{one:g}' for one in numbers[:8])}"
    if len(numbers) != 4:
        raise ConfigError(f"{shown}: give four numbers, the least corner of a box and its largest")
    low_a, low_b, high_a, high_b = numbers
    if not (low_a <= high_a and low_b <= high_b):
        raise ConfigError(f"{shown}: the first corner must be the least one, without NaN")
    return (low_a, low_b, high_a, high_b)


def make_filter(
    plans: Mapping[str, AgentPlan],
    kinds: Sequence[str] = (),
    types: Sequence[str] = (),
    agents: Sequence[str] = (),
    area: tuple[float, float, float, float] | None = None,
) -> StreamFilter:
    """A filter for the events of a fleet. Raises UnknownKind, UnknownTag and ConfigError for one that nothing could
    ever pass: a misspelt filter would look like a fleet in which nothing happens."""
    for kind in kinds:
        if kind not in plans:
            raise UnknownKind(f"{kind[:100]!r} is no agent kind here; there are {', '.join(plans)}")
    for agent in agents:
        plan_at(plans, agent)
    # An agent may yield what none handles, and a log has what the runtime adds: all that is loaded counts.
    loaded = list(loaded_events(Event))
    for one in types:
        if all(one not in (spec_of(cls).name, spec_of(cls).tag) for cls in loaded):
            handled = {spec_of(event).name: None for plan in plans.values() for event in messages_of(plan, Event)}
            raise UnknownTag(f"{one[:100]!r} is no event here; agents handle {', '.join(handled)}")
    if area is not None:
        fields = [cls.__struct_fields__ for cls in (*loaded, *(plan.cls for plan in plans.values()))]
        if not any(all(name in names for name in pair) for names in fields for pair in PLACES):
            pairs = ", ".join(" and ".join(pair) for pair in PLACES)
            raise ConfigError(f"area: no event and no agent here has fields that say where it is ({pairs})")
    return StreamFilter(tuple(kinds), tuple(types), tuple(agents), area)


class StreamedEvent(Struct, frozen=True, omit_defaults=True):
    """An event as clients get it."""

    agent: str
    type: str
    time: str
    fields: Any
    shard: int
    position: int
    index: int
    id: str
    """Where to go on behind this event."""


class EncodedEvent(Struct, frozen=True):
    """An event of the ring."""

    event: EventReply
    key: str
    """Of its shard in positions."""
    json: bytes
    id: bytes

    @property
    def sse(self) -> bytes:
        """As a Server-Sent Event."""
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (self.id, self.event.type.encode(), self.json)


class EventBatch(Struct, frozen=True):
    """Events that were read at once. `end` is how far all shards were read then."""

    number: int
    events: list[EncodedEvent]
    end: Positions
    joined: dict[tuple[StreamFilter, bool], bytes]

    def chunk(self, wanted: StreamFilter, *, as_sse: bool) -> bytes:
        """What a filter lets through, as Server-Sent Events or as JSON objects with commas between; made once."""
        key = (wanted, as_sse)
        found = self.joined.get(key)
        if found is None:
            chosen = [one for one in self.events if wanted.lets_through(one.event)]
            found = joined(chosen, as_sse=as_sse)
            if len(self.joined) < FILTERS_CACHED_MAX:
                self.joined[key] = found
        return found


def joined(events: Sequence[EncodedEvent], *, as_sse: bool) -> bytes:
    """Events as one piece."""
    return b"".join(one.sse for one in events) if as_sse else b",".join(one.json for one in events)


def encoded(events: Sequence[EventReply], at: Positions, end: Positions) -> Iterator[EncodedEvent]:
    """Events with their ids: the positions of all shards when each of them was read. Moves `at` on. `end` are the
    positions behind these events, which name their logs."""
    keys = {read_key(key)[0]: key for key in end}
    others = ""
    last = -1
    for event in events:
        if event.shard != last:
            last = event.shard
            others = write_positions({key: one for key, one in at.items() if key != keys[last]})
            others = f",{others}" if others else ""
        key = keys[last]
        at[key] = FeedPosition(event.position, event.index)
        text = f"{key}:{event.position}.{event.index}{others}"
        streamed = StreamedEvent(
            event.agent,
            event.type,
            readable_time(event.time_ns),
            event.fields,
            event.shard,
            event.position,
            event.index,
            text,
        )
        yield EncodedEvent(event, key, msgspec.json.encode(streamed), text.encode())


class EventHub:
    """Follows the log while somebody listens. `shards` are asked one by one, or all together for None. `node` is the
    one whose log it is, if not the one that is asked; `of_node` gives the hub of another one."""

    def __init__(self, asker: Asker, shards: Sequence[int | None], node: str = "") -> None:
        self._asker = asker
        self._shards = shards
        self._node = node
        self._of_nodes: dict[str, EventHub] = {}
        self.missing: list[str] = []
        """Nodes with logs of their own, whose events are not here."""
        self._batches: deque[EventBatch] = deque()
        self._next = 0
        self._events = 0
        self._bytes = 0
        self._at: Positions = {}
        """How far the reader is; empty before it has begun."""
        self._begin: Positions = {}
        """What was read before the first batch of the ring."""
        self._grown = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()
        self._clients = 0
        self._epoch = 0
        """Counts the gaps: who listened before one is dropped."""
        self.trouble = ""
        """Why nothing comes at present; empty if all is well."""
        self.is_closed = False

    def of_node(self, node: str) -> EventHub:
        """The hub of a node on the bus of the one that is asked. Raises Overloaded."""
        if not node:
            return self
        if node not in self._of_nodes:
            idle = [name for name, hub in self._of_nodes.items() if not hub._clients]
            if len(self._of_nodes) >= self._asker.waits_max and not idle:
                raise Overloaded(f"{len(self._of_nodes)} other nodes are followed here already; connect to that node")
            for name in idle:
                del self._of_nodes[name]
            self._of_nodes[node] = EventHub(self._asker, (None,), node)
        return self._of_nodes[node]

    async def of_agents(self, agents: Sequence[str]) -> EventHub:
        """The hub of the node that runs these agents. Raises ConfigError if several do."""
        nodes: dict[str, str] = {}
        for agent in agents:
            with contextlib.suppress(UnknownKind):
                where = await self._asker.ask(protocol.WhereRequest(agent=agent))
                nodes["" if where.here else where.node or ""] = agent
        if len(nodes) > 1:
            apart = " and ".join(nodes.values())
            raise ConfigError(f"{apart} run on different nodes, and a stream is of the log of one; open one for each")
        return self.of_node(next(iter(nodes), ""))

    async def ask(self, request: protocol.EventsRequest) -> EventsReply:
        """Asks the node whose log this is."""
        reply = await self._asker.ask(structs.replace(request, node=self._node) if self._node else request)
        self.missing = [one.node for one in reply.missing if one.node is not UNSET]
        return reply

    async def join(self) -> None:
        """One more listens; the first one starts the reader. Raises what the node refuses with."""
        self._clients += 1
        try:
            async with self._starting:
                if not self._at:
                    await self._start()
                elif self._node:
                    await self.ask(
                        protocol.EventsRequest()
                    )  # A node that went away meanwhile is told to who comes now.
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """One less listens; with the last one the reader ends."""
        self._clients -= 1
        if self._clients == 0:
            tasks, self._tasks = self._tasks, []
            self._batches.clear()
            self._events = self._bytes = 0
            self._at = {}
            await end_tasks(*tasks)

    async def close(self) -> None:
        """Ends all streams."""
        self.is_closed = True
        for hub in self._of_nodes.values():
            await hub.close()
        self._wake()
        tasks, self._tasks = self._tasks, []
        await end_tasks(*tasks)

    @property
    def positions(self) -> Positions:
        """How far the reader is."""
        return dict(self._at)

    def has_all_behind(self, at: Positions) -> bool:
        """Whether everything behind these positions that was read is in the ring."""
        return all(at.get(shard, START) >= begin for shard, begin in self._begin.items())

    def place(self, *, at_end: bool) -> RingPlace:
        """A place in the ring for a client that has joined."""
        first = self._batches[0].number if self._batches else self._next
        return RingPlace(self._epoch, self._next if at_end else first)

    async def take(self, place: RingPlace, within_s: float) -> list[EventBatch]:
        """The next batches for a client; none if there are none within this time. Raises DroppedReader."""
        if place.next >= self._next and place.epoch == self._epoch and not self.is_closed:
            grown = self._grown
            try:
                async with asyncio.timeout(within_s):
                    await grown.wait()
            except TimeoutError:
                return []
        if self.is_closed:
            raise NotRunning("the server ends")
        first = self._batches[0].number if self._batches else self._next
        if place.epoch != self._epoch or place.next < first:
            raise DroppedReader("this client was too slow, or the server has lost the log for a while")
        found: list[EventBatch] = []
        size = 0
        for number in range(place.next, self._next):
            batch = self._batches[number - first]
            size += sum(len(one.json) for one in batch.events)
            if found and size > CHUNK_BYTES:
                break
            found.append(batch)
        place.next += len(found)
        return found

    # ------------------------------------------------------------------ the reader

    async def _start(self) -> None:
        reply = await self.ask(protocol.EventsRequest())
        self._at = read_positions(reply.positions)
        self._begin = dict(self._at)
        self._tasks = [asyncio.ensure_future(self._follow(shard)) for shard in self._shards]

    async def _follow(self, shard: int | None) -> None:
        """Reads one shard, or all, for as long as somebody listens."""
        again_s = AGAIN_S
        while True:
            mine = {key: at for key, at in self._at.items() if shard in (None, read_key(key)[0])}
            request = protocol.EventsRequest(
                after=write_positions(mine), shard=shard, limit=READ_COUNT, within_s=READ_WITHIN_S
            )
            try:
                reply = await self.ask(request)
            except (LogCut, ConfigError) as error:
                # What we have not read is gone, or the log is another one: clients must not miss it unawares.
                self.trouble = str(error)
                await self._begin_again()
                continue
            except StigmergyError as error:
                self.trouble = str(error)
                await asyncio.sleep(again_s)
                again_s = min(AGAIN_S_MAX, 2 * again_s)
                continue
            again_s, self.trouble = AGAIN_S, ""
            self._add(reply.events, read_positions(reply.positions))
            await asyncio.sleep(min(PAUSE_S_MAX, PAUSE_S_PER_CLIENT * self._clients))

    async def _begin_again(self) -> None:
        """Drops all clients, and begins where the log ends now."""
        await asyncio.sleep(AGAIN_S)
        try:
            reply = await self.ask(protocol.EventsRequest())
        except StigmergyError:
            await asyncio.sleep(AGAIN_S_MAX)
            return
        self._epoch += 1
        self._batches.clear()
        self._events = self._bytes = 0
        self._at = read_positions(reply.positions)
        self._begin = dict(self._at)
        self._wake()

    def _add(self, events: Sequence[EventReply], end: Positions) -> None:
        """A batch. Nobody waits for anybody: what is too old leaves the ring."""
        found = list(encoded(events, self._at, end))
        self._at.update(end)
        if not found:
            return
        self._batches.append(EventBatch(self._next, found, dict(self._at), {}))
        self._next += 1
        self._events += len(found)
        self._bytes += sum(len(one.json) for one in found)
        while len(self._batches) > 1 and (self._events > RING_EVENTS_MAX or self._bytes > RING_BYTES_MAX):
            oldest = self._batches.popleft()
            self._begin = oldest.end
            self._events -= len(oldest.events)
            self._bytes -= sum(len(one.json) for one in oldest.events)
        self._wake()

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()


class RingPlace(Struct):
    """Where a client is in the ring."""

    epoch: int
    next: int


class EventStreams:
    """The streams of a server that are open, a bounded number."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub
        self._count = 0

    @asynccontextmanager
    async def open(
        self, wanted: StreamFilter, after: str, since_ns: int | None, node: str, *, as_sse: bool
    ) -> AsyncIterator[EventStream]:
        """A stream that begins now, behind an id, or at a time; of the log of this node, if it is named. Raises
        DeniedRequest for one too many, and what the node refuses with."""
        if after and since_ns is not None:
            raise ConfigError("give an id to go on behind, or a time, not both")
        if self._count >= STREAMS_MAX:
            raise DeniedRequest(429, f"{STREAMS_MAX} streams are open already; try again later", retry_after_s=5)
        self._count += 1  # before it waits: others may begin meanwhile
        try:
            hub = self._hub.of_node(node) if node else await self._hub.of_agents(wanted.agents)
            stream = EventStream(hub, wanted, as_sse=as_sse)
            positions = None if not after else read_positions("0:0" if after == "start" else after)
            await hub.join()
            try:
                await stream.begin(positions, since_ns)
                yield stream
            finally:
                await hub.leave()
        finally:
            self._count -= 1


class EventStream:
    """What one client of a hub that it has joined gets: `begin`, then `next` until it raises."""

    def __init__(self, hub: EventHub, wanted: StreamFilter, *, as_sse: bool) -> None:
        self._hub = hub
        self._wanted = wanted
        self._as_sse = as_sse
        self._at: Positions | None = None
        """How far this client is, until it is level with the ring."""
        self._place: RingPlace | None = None
        self.last_id = ""
        """Where the client goes on after an interruption."""

    async def begin(self, positions: Positions | None, since_ns: int | None) -> None:
        """Reads nothing yet. Raises what the node refuses with, such as LogCut for positions that are gone."""
        if positions is None and since_ns is None:
            self.last_id = write_positions(self._hub.positions)
            self._place = self._hub.place(at_end=True)
            return
        after = None if positions is None else self._filled(positions)
        first = await self._hub.ask(protocol.EventsRequest(after=after, since_ns=since_ns, limit=1))
        if positions is None:
            # The first page only says where the time is: what is on it is read again with the next.
            self._at = positions_before(first.events, read_positions(first.positions))
        else:
            given = {read_key(key)[0]: one for key, one in positions.items()}
            self._at = {key: given.get(read_key(key)[0], START) for key in self._hub.positions}
        self.last_id = write_positions(self._at)

    def _filled(self, positions: Positions) -> str:
        """What a client gives, as it came, with the shards that it lacks. Raises ConfigError."""
        known = dict(map(read_key, self._hub.positions))
        given = dict(map(read_key, positions))
        unknown = [shard for shard in given if shard not in known]
        if unknown or len(given) < len(positions):
            wrong = f"shard {unknown[0]} is none of this fleet" if unknown else "one shard is there twice"
            raise ConfigError(f"{wrong}; give the id of an event of it")
        rest = {key: START for key in self._hub.positions if read_key(key)[0] not in given}
        return write_positions({**positions, **rest})

    @property
    def missing(self) -> list[str]:
        """Nodes whose events are not in this stream."""
        return self._hub.missing

    @property
    def trouble(self) -> str:
        """Why nothing comes at present, if so, and whose events do not come here."""
        lacks = f"not in this stream are events of {shown_nodes(self.missing)}: see of_node" if self.missing else ""
        return "; ".join(filter(None, (self._hub.trouble, lacks)))

    async def next(self, within_s: float) -> bytes:
        """The next piece; empty if nothing comes within this time. Raises DroppedReader with nothing lost before
        `last_id`."""
        if self._place is None:
            assert self._at is not None
            if not self._hub.has_all_behind(self._at):
                return await self._catch_up(self._at)
            self._place = self._hub.place(at_end=False)
        batches = await self._hub.take(self._place, within_s)
        if not batches:
            self.last_id = write_positions(self._hub.positions) if self._at is None else self.last_id
            return b""
        pieces = [self._piece(batch) for batch in batches]
        self.last_id = write_positions(batches[-1].end if self._at is None else self._at)
        joint = b"" if self._as_sse else b","
        return joint.join(piece for piece in pieces if piece)

    async def _catch_up(self, at: Positions) -> bytes:
        reply = await self._hub.ask(protocol.EventsRequest(after=write_positions(at), limit=READ_COUNT))
        end = read_positions(reply.positions)
        found = [one for one in encoded(reply.events, at, end) if self._wanted.lets_through(one.event)]
        at.update(end)
        self.last_id = write_positions(at)
        if not reply.events:
            await asyncio.sleep(LEVEL_PAUSE_S)  # The reader of the ring is a moment ahead of what we were told.
        return joined(found, as_sse=self._as_sse)

    def _piece(self, batch: EventBatch) -> bytes:
        if self._at is None:
            return batch.chunk(self._wanted, as_sse=self._as_sse)
        at = self._at
        is_level = all(at[key] <= end for key, end in batch.end.items())
        # Of some shards this client may have more than the ring had then: it gets ids of its own.
        new = [one.event for one in batch.events if FeedPosition(one.event.position, one.event.index) > at[one.key]]
        found = [one for one in encoded(new, at, batch.end) if self._wanted.lets_through(one.event)]
        for key, end in batch.end.items():
            at[key] = max(at[key], end)
        if is_level:
            self._at = None  # From here on the ring is ahead of this client.
        return joined(found, as_sse=self._as_sse)


def positions_before(events: Sequence[EventReply], end: Positions) -> Positions:
    """The positions before these events."""
    found = dict(end)
    keys = {read_key(key)[0]: key for key in end}
    for event in reversed(events):
        before = FeedPosition(event.position, event.index - 1) if event.index else FeedPosition(event.position - 1)
        found[keys[event.shard]] = before
    return found
