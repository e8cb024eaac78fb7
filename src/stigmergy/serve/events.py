"""The event stream of a fleet, for any number of clients: each event is read once and encoded once.

One reader follows the log and puts batches of encoded events into a ring in memory. Each client has a place in the
ring and takes what its filter lets through; what equal filters let through is joined once. A client that begins
earlier first reads by itself, and joins the ring without a gap or a double. A client that falls out of the ring is
told so, with the id to go on from, and is left. Nobody waits for a client: neither the reader nor the node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from stigmergy.audit.listing import readable_time
from stigmergy.base.errors import ConfigError, LogCut, NotRunning, StigmergyError
from stigmergy.base.tasks import end_tasks
from stigmergy.control import protocol
from stigmergy.control.replies import EventReply
from stigmergy.node.feed import FeedPosition, read_positions, write_positions
from stigmergy.serve.asker import Asker

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
FILTERS_CACHED_MAX = 64
"""Different filters for which a batch is joined once."""

Positions = dict[int, FeedPosition]
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


def encoded(events: Sequence[EventReply], at: Positions) -> Iterator[EncodedEvent]:
    """Events with their ids: the positions of all shards when each of them was read. Moves `at` on."""
    others = ""
    last = -1
    for event in events:
        if event.shard != last:
            last = event.shard
            others = write_positions({shard: one for shard, one in at.items() if shard != last})
            others = f",{others}" if others else ""
        at[last] = FeedPosition(event.position, event.index)
        text = f"{last}:{event.position}.{event.index}{others}"
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
        yield EncodedEvent(event, msgspec.json.encode(streamed), text.encode())


class DroppedReader(StigmergyError):
    """A client was too slow for the stream, or the stream has a gap. It goes on from the last id that it has."""


class EventHub:
    """Follows the log while somebody listens. `shards` are asked one by one, or all together for None."""

    def __init__(self, asker: Asker, shards: Sequence[int | None]) -> None:
        self._asker = asker
        self._shards = shards
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

    async def join(self) -> None:
        """One more listens; the first one starts the reader. Raises what the node refuses with."""
        self._clients += 1
        try:
            async with self._starting:
                if not self._at:
                    await self._start()
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
        reply = await self._asker.ask(protocol.EventsRequest())
        self._at = read_positions(reply.positions)
        self._begin = dict(self._at)
        self._tasks = [asyncio.ensure_future(self._follow(shard)) for shard in self._shards]

    async def _follow(self, shard: int | None) -> None:
        """Reads one shard, or all, for as long as somebody listens."""
        again_s = AGAIN_S
        while True:
            mine = self._at if shard is None else {shard: self._at[shard]}
            request = protocol.EventsRequest(
                after=write_positions(mine), shard=shard, limit=READ_COUNT, within_s=READ_WITHIN_S
            )
            try:
                reply = await self._asker.ask(request)
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
            reply = await self._asker.ask(protocol.EventsRequest())
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
        found = list(encoded(events, self._at))
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


class EventStream:
    """What one client gets: `begin`, then `next` until it raises; `leave` at the end."""

    def __init__(self, hub: EventHub, asker: Asker, wanted: StreamFilter, *, as_sse: bool) -> None:
        self._hub = hub
        self._asker = asker
        self._wanted = wanted
        self._as_sse = as_sse
        self._at: Positions | None = None
        """How far this client is, until it is level with the ring."""
        self._place: RingPlace | None = None
        self.last_id = ""
        """Where the client goes on after an interruption."""

    async def begin(self, after: str | None, since_ns: int | None) -> None:
        """Joins; reads nothing yet. Raises what the node refuses with, such as LogCut for positions that are gone."""
        positions = None if after is None else read_positions(after)
        await self._hub.join()
        try:
            if positions is None and since_ns is None:
                self.last_id = write_positions(self._hub.positions)
                self._place = self._hub.place(at_end=True)
                return
            if positions is not None:
                unknown = [shard for shard in positions if shard not in self._hub.positions]
                if unknown:
                    raise ConfigError(f"shard {unknown[0]} is none of this fleet; give the id of an event of it")
                positions = {shard: positions.get(shard, START) for shard in self._hub.positions}
            first = await self._asker.ask(
                protocol.EventsRequest(
                    after=None if positions is None else write_positions(positions), since_ns=since_ns, limit=1
                )
            )
            if positions is None:
                # The first page only says where the time is: what is on it is read again with the next.
                positions = _before(first.events, read_positions(first.positions))
            self._at, self.last_id = positions, write_positions(positions)
        except BaseException:
            await self._hub.leave()
            raise

    async def leave(self) -> None:
        """Wants no more."""
        await self._hub.leave()

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
        reply = await self._asker.ask(protocol.EventsRequest(after=write_positions(at), limit=READ_COUNT))
        found = [one for one in encoded(reply.events, at) if self._wanted.lets_through(one.event)]
        at.update(read_positions(reply.positions))
        self.last_id = write_positions(at)
        if not reply.events:
            await asyncio.sleep(LEVEL_PAUSE_S)  # The reader of the ring is a moment ahead of what we were told.
        return joined(found, as_sse=self._as_sse)

    def _piece(self, batch: EventBatch) -> bytes:
        if self._at is None:
            return batch.chunk(self._wanted, as_sse=self._as_sse)
        at = self._at
        is_level = all(at[shard] <= end for shard, end in batch.end.items())
        events = [one.event for one in batch.events]
        # Of some shards this client may have more than the ring had then: it gets ids of its own.
        new = [one for one in events if FeedPosition(one.position, one.index) > at[one.shard]]
        found = [one for one in encoded(new, at) if self._wanted.lets_through(one.event)]
        for shard, end in batch.end.items():
            at[shard] = max(at[shard], end)
        if is_level:
            self._at = None  # From here on the ring is ahead of this client.
        return joined(found, as_sse=self._as_sse)


def _before(events: Sequence[EventReply], end: Positions) -> Positions:
    """The positions before these events."""
    found = dict(end)
    for event in reversed(events):
        before = FeedPosition(event.position, event.index - 1) if event.index else FeedPosition(event.position - 1)
        found[event.shard] = before
    return found
