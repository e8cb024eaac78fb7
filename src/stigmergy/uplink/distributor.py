"""Receives from the uplinks of sites and publishes on a bus, to agents that many nodes share.

A collecting node keeps marks in its own log. If a fleet's shards are on many workers, no worker has all of them. So
each event is published as an input of its agent, under its original numbers: the owner of the agent accepts it once
and in order. The position is kept in a store, and written once the bus has everything up to there. Events that were
published but not yet recorded are published again, and the marks drop them.

Run one of these at a time for a fleet. Two at once would lose nothing, but gateways would get two answers. One that was
paused never overwrites a newer position.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.agents.codec import REASON_CHARS_MAX, printable, tag_of
from stigmergy.base.errors import LinkDown, NotRunning, PeerError, StigmergyError, StoreConflict
from stigmergy.bus.cloudevents import STRUCTURED as CONTENT_TYPE
from stigmergy.bus.cloudevents import CloudEvent, data_of, write_structured
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.quotas import PACE_LOOK_S, SECOND_NS, pace
from stigmergy.bus.subscriptions import COLLECT_ALL
from stigmergy.bus.topics import Channel, Topics
from stigmergy.node.declaration import Declaration
from stigmergy.store.port import KeyValue
from stigmergy.uplink.collector import MISSING, TELL_WITHIN_S
from stigmergy.uplink.messages import MARKS_COUNT_MAX, Batch, Inquiry, Told, UplinkMark, read_up, write_message
from stigmergy.uplink.names import UplinkRoutes, UplinkSource, sender_of

ANY_SITE = "+"
MARKS_PREFIX = "mark."
MARK_KEY_BYTES = 16
PREVIOUS_COUNT_MAX = 100_000
"""Streams whose last number is remembered. Without it a message has no `previous`."""
Key = tuple[str, int]
Item = tuple[int, str, bytes]


class KeptMark(Struct, frozen=True, array_like=True):
    """The position of a shard of an uplink, as it is kept in the store."""

    source: str
    shard: int
    incarnation: int
    epoch: int
    number: int


class DistributorCounters(Struct):
    """Counts of received and published events."""

    distributed_batches: int = 0
    distributed_events: int = 0
    distributed_repeated: int = 0
    """Batches that were published before."""
    distributed_early: int = 0
    distributed_refused: int = 0
    distributed_lost: int = 0
    """Ranges of sites' logs that were dropped there before they were sent."""


class Distributor:
    """Publishes the uplinks of sites on a bus. `start`, `stop`."""

    def __init__(
        self, below: Bus, bus: Bus, keys: KeyValue, declaration: Declaration, me: UplinkSource, run: str
    ) -> None:
        self._below = below
        self._bus = bus
        self._keys = keys
        self._me = me
        self._run = run
        self._topics = Topics(me.fleet, me.site)
        self._sorting = UplinkRoutes(declaration, (*declaration.collects, COLLECT_ALL))
        self._marks: dict[Key, KeptMark] = {}
        self._revisions: dict[str, int] = {}
        """Of the marks in the store, as we know them."""
        self._turns: dict[str, asyncio.Lock] = {}
        """One batch of an uplink at a time: the next must follow the last one."""
        self._previous: dict[tuple[str, str, int], int] = {}
        self._pace = pace(declaration.settings.bus.messages_per_s, declaration.settings.bus.burst)
        """Keeps the owners of the agents from shedding a site's backlog as a flood."""
        self.counters = DistributorCounters()
        self.last_refusal = ""

    async def start(self) -> None:
        """Reads the positions, and begins. Raises like the store."""
        for name in await self._keys.keys(MARKS_PREFIX):
            await self._read_mark(name)
        for pattern in self._sorting.patterns(ANY_SITE):
            await self._below.subscribe(pattern, self._take)
        await self._bus.open()
        await self._below.open()

    async def stop(self) -> None:
        """Ends it; work under way is finished, within the bounds of both buses."""
        await self._below.close()
        await self._bus.close()

    def counted(self) -> dict[str, int]:
        return structs.asdict(self.counters)

    # ------------------------------------------------------------------ incoming

    async def _take(self, message: BusMessage) -> None:
        sender = sender_of(message.topic)
        try:
            said = read_up(message.payload)
        except PeerError as error:
            self.counters.distributed_refused += 1
            await self._tell(sender, "", [], str(error))
            return
        if isinstance(said, Inquiry):
            await self._tell(sender, said.nonce, self._marks_of(sender), "")
            return
        source = sender.source(said.shard)
        async with self._turns.setdefault(source, asyncio.Lock()):
            refused = await self._hand_out(said, source)
        if refused:
            self.last_refusal = f"{source}: {refused}"
        known = self._marks.get((source, said.incarnation))
        marks = [] if known is None else [UplinkMark(known.shard, known.incarnation, known.epoch, known.number)]
        await self._tell(sender, "", marks, refused)

    async def _hand_out(self, batch: Batch, source: str) -> str:
        """Publishes a batch and records it; returns the reason if it could not."""
        key = (source, batch.incarnation)
        known = self._marks.get(key) or KeptMark(source, batch.shard, batch.incarnation, 0, 0)
        if batch.upto <= known.number:
            self.counters.distributed_repeated += 1
            return ""
        if batch.epoch < known.epoch:
            return f"epoch {batch.epoch} is over, {known.epoch} has begun; stop, another owner has taken over"
        if batch.after > known.number:
            self.counters.distributed_early += 1
            return MISSING
        items = [item for item in batch.items if item[0] > known.number]
        mark = KeptMark(source, batch.shard, batch.incarnation, batch.epoch, batch.upto)
        try:
            await self._publish(batch, source, items)
            await self._write_down(mark)
        except StigmergyError as error:
            # Whether all of it is on the bus is unknown: it comes again, and is published again.
            self.counters.distributed_refused += 1
            return str(error)
        self._marks[key] = mark
        self.counters.distributed_batches += 1
        self.counters.distributed_lost += bool(batch.lost)
        return ""

    async def _write_down(self, mark: KeptMark) -> None:
        """Raises StoreConflict if another distributor has written since: we know its position then."""
        name = _key_of(mark)
        try:
            known = self._revisions.get(name, 0)
            self._revisions[name] = await self._keys.put(name, msgspec.msgpack.encode(mark), known)
        except StoreConflict:
            await self._read_mark(name)
            raise

    async def _read_mark(self, name: str) -> None:
        entry = await self._keys.get(name)
        if entry is not None:
            mark = msgspec.msgpack.decode(entry.value, type=KeptMark)
            self._marks[(mark.source, mark.incarnation)] = mark
        self._revisions[name] = 0 if entry is None else entry.revision

    async def _publish(self, batch: Batch, source: str, items: Sequence[Item]) -> None:
        """Publishes the events of one agent in order, of different agents concurrently."""
        of_agents: dict[str, list[tuple[int, bytes]]] = {}
        for number, address, body in items:
            to = self._sorting.address(address)
            if self._sorting.unwanted(to, tag_of(body).partition("@")[0]):
                self.counters.distributed_refused += 1
            else:
                of_agents.setdefault(to, []).append((number, body))
        ways = [self._publish_to(to, batch, source, events) for to, events in of_agents.items()]
        for outcome in await asyncio.gather(*ways, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _publish_to(self, to: str, batch: Batch, source: str, events: Sequence[tuple[int, bytes]]) -> None:
        topic = self._topics.of_agent(to, Channel.INPUTS)
        stream = (topic, source, batch.incarnation)
        for number, body in events:
            while not self._pace.admit(topic, _now_ns()):  # noqa: ASYNC110 - only time brings more tokens
                await asyncio.sleep(PACE_LOOK_S)
            before = self._previous.get(stream, 0)
            try:
                event = _event(to, batch, source, number, before if before < number else 0, body)
                await self._bus.publish(BusMessage(topic, event, content_type=CONTENT_TYPE))
            except PeerError:
                # It can never be published, and later events must not wait for it.
                self.counters.distributed_refused += 1
                continue
            self.counters.distributed_events += 1
            if len(self._previous) >= PREVIOUS_COUNT_MAX and stream not in self._previous:
                del self._previous[next(iter(self._previous))]
            self._previous[stream] = number

    # ------------------------------------------------------------------ answers

    def _marks_of(self, sender: UplinkSource) -> list[UplinkMark]:
        found = [
            UplinkMark(mark.shard, mark.incarnation, mark.epoch, mark.number)
            for mark in self._marks.values()
            if mark.source.startswith(sender.prefix)
        ]
        return found[-MARKS_COUNT_MAX:]

    async def _tell(self, sender: UplinkSource, nonce: str, marks: list[UplinkMark], refused: str) -> None:
        """A sender that does not get this asks again."""
        told = Told(self._me.node, self._run, nonce, marks, printable(refused, REASON_CHARS_MAX))
        with contextlib.suppress(LinkDown, NotRunning, TimeoutError):
            async with asyncio.timeout(TELL_WITHIN_S):
                await self._below.publish(BusMessage(sender.marks_topic, write_message(told)))


def _event(to: str, batch: Batch, source: str, number: int, previous: int, body: bytes) -> bytes:
    """An event as an input of its agent, with its original numbers. Raises Malformed."""
    tag, content_type, data = data_of(body)
    numbers = {"sequence": number, "incarnation": batch.incarnation, "epoch": batch.epoch}
    numbers |= {"previous": previous} if previous else {}
    return write_structured(
        CloudEvent(
            id=f"{batch.incarnation}.{batch.shard}.{number}",
            source=f"/{source}",
            type=tag,
            subject=to,
            datacontenttype=content_type,
            data=data,
            extensions={name: str(value) for name, value in numbers.items()},
        )
    )


def _key_of(mark: KeptMark) -> str:
    """One key for each shard of an uplink and incarnation, however long the names are."""
    digest = blake3(mark.source.encode()).hexdigest(length=MARK_KEY_BYTES)
    return f"{MARKS_PREFIX}{digest}.{mark.incarnation}"


def _now_ns() -> int:
    return int(asyncio.get_running_loop().time() * SECOND_NS)
