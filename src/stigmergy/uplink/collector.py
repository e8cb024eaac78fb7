"""Receives from the uplinks of other nodes, once and in order, and tells each how far it is.

A sender is told what is durable here, for all shards of this node: its marks, in the same commits as the results of the
events. So whatever breaks on either side, the sender resumes at the right place. A batch is accepted if it follows the
one before; else the sender must check again. An event for an unknown agent or of an unknown type becomes a dead letter
and delays nothing. Commands are refused: an uplink carries past events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from stigmergy.agents.codec import ENVELOPE_FORMAT, REASON_CHARS_MAX, Envelope, printable, tag_of
from stigmergy.base.errors import LinkDown, NotRunning, Overloaded, PeerError, StaleEpoch, StigmergyError
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.bus.quotas import Quotas
from stigmergy.bus.replies import Responder
from stigmergy.bus.subscriptions import Collect
from stigmergy.node.host import Host
from stigmergy.node.ingress import UPLINK_SOURCES
from stigmergy.node.intake import AwaitedTicket
from stigmergy.node.mailbox import Queued
from stigmergy.node.settings import BusSettings
from stigmergy.shard.draft import OVERHEAD_BYTES
from stigmergy.shard.gaps import Accept
from stigmergy.shard.inputs import ELSEWHERE, SequencesSkipped
from stigmergy.uplink.messages import MARKS_COUNT_MAX, Batch, Inquiry, Told, UplinkMark, read_up, write_message
from stigmergy.uplink.names import CollectedBus, UplinkRoutes, UplinkSource, sender_of

HOLE_MAX = 64
"""Up to this many numbers without an event, between two of a commit, are skipped one by one; more of them at once."""
TELL_WITHIN_S = 15.0
"""How long an answer waits for a broker that does not accept it."""
MISSING = "a batch before it is missing"
Key = tuple[str, int]


class CollectorCounters(Struct):
    """Counts of received batches and events."""

    collected_batches: int = 0
    collected_events: int = 0
    collected_repeated: int = 0
    """Batches that had arrived before."""
    collected_early: int = 0
    collected_refused: int = 0
    collected_shed: int = 0
    collected_lost: int = 0
    """Ranges of other nodes' logs that were dropped there before they were sent."""


class Collector:
    """The gateway's side. `start` before the bus opens; after `close` everything stays with the broker."""

    def __init__(
        self,
        buses: Sequence[CollectedBus],
        host: Host,
        me: UplinkSource,
        run: str,
        teller: Responder,
        collects: Sequence[Collect],
        settings: BusSettings,
    ) -> None:
        self._buses = tuple(buses)
        self._host = host
        self._me = me
        self._run = run
        self._teller = teller
        self._sorting = UplinkRoutes(host.declaration, collects, host.assignment.runs)
        self._quotas = Quotas(settings.messages_per_s, settings.burst)
        self._confirmed: dict[Key, int] = {}
        """By source and incarnation: what is durable in all shards."""
        self._digests: dict[Key, bytes] = {}
        """The senders' digests of the commits there, by which they recognise their own log. Of this run only."""
        self._reached: dict[Key, tuple[int, int]] = {}
        """What was posted and is not durable yet: the epoch of its owner, and the last number."""
        self._closed = False
        self.counters = CollectorCounters()

    async def start(self) -> None:
        """Reads the marks, which are all durable before the first input, and subscribes."""
        shards = [
            {(mark.source, mark.incarnation): mark.sequence for mark in shard.state.marks.all()}
            for shard in self._host.shards
        ]
        for key in shards[0]:
            if key[0].startswith(UPLINK_SOURCES):
                self._confirmed[key] = min(marks.get(key, 0) for marks in shards)
        for collected in self._buses:
            for pattern in self._sorting.patterns(collected.site):
                await collected.bus.subscribe(pattern, partial(self._take, collected.bus))

    def close(self) -> None:
        """Accepts nothing more."""
        self._closed = True

    async def _take(self, bus: Bus, message: BusMessage) -> None:
        if self._closed:
            raise NotRunning("the node is stopping; nothing was taken")
        sender = sender_of(message.topic)
        if sender == self._me:
            return
        if not self._quotas.admit(message.topic, self._host.clock.monotonic_ns()):
            self.counters.collected_shed += 1
            return
        try:
            said = read_up(message.payload)
        except PeerError as error:
            self._refuse(message, error)
            await self._tell(bus, sender, "", [], str(error))
            return
        if isinstance(said, Inquiry):
            await self._tell(bus, sender, said.nonce, self._marks_of(sender), "")
            return
        source = sender.source(said.shard)
        refused = await self._collect(said, source, message)
        await self._tell(bus, sender, "", [self._mark(said.shard, (source, said.incarnation))], refused)

    async def _collect(self, batch: Batch, source: str, message: BusMessage) -> str:
        """Accepts a batch; returns the reason if it does not. Calls are in order up to their first wait."""
        key = (source, batch.incarnation)
        confirmed = self._confirmed.get(key, 0)
        if batch.upto <= confirmed:
            self.counters.collected_repeated += 1
            return ""
        try:
            if batch.after > self._handed_over(key, batch.epoch, confirmed):
                self.counters.collected_early += 1
                return MISSING
            taken = self._hand_over(batch, source, message)
            if not taken[-1].done():
                self._reached[key] = (batch.epoch, max(batch.upto, self._handed_over(key, batch.epoch, confirmed)))
            await _all_of(taken)
        except NotRunning:
            raise
        except StigmergyError as error:
            # An older owner of that journal, or no room here: the sender waits, and asks again.
            self._reached.pop(key, None)
            self.counters.collected_refused += 1
            return str(error)
        if batch.upto > self._confirmed.get(key, 0):
            self._confirmed[key], self._digests[key] = batch.upto, batch.digest
        self.counters.collected_batches += 1
        self.counters.collected_lost += bool(batch.lost)
        return ""

    def _handed_over(self, key: Key, epoch: int, confirmed: int) -> int:
        """The last number posted for this owner's batches; the next one must follow it.

        A new owner begins after its confirmed number, whatever the one before it had in flight.
        """
        known, number = self._reached.get(key, (0, 0))
        known = max(known, *(shard.state.marks.epoch(*key) for shard in self._host.shards), 0)
        if epoch < known:
            raise StaleEpoch(f"epoch {epoch} is over, {known} has begun; stop, another owner has taken over")
        return max(number, confirmed) if key in self._reached and self._reached[key][0] == epoch else confirmed

    def _hand_over(self, batch: Batch, source: str, message: BusMessage) -> list[asyncio.Future[None]]:
        """Posts the events to the shards; the last future is done when all is durable, with the mark behind it."""
        self._host.intake.check_open()
        taken: list[asyncio.Future[None]] = []
        stretches = self._stretches(batch, message)
        try:
            if batch.lost:
                # The log says once that a range will never come: nobody knows how many events it had.
                self._pass(batch, source, batch.upto - 1)
                self._pass(batch, source, batch.upto, printable(f"lost: {batch.lost}", REASON_CHARS_MAX))
            for number, items in (*stretches, (batch.upto + 1, [])):
                self._pass(batch, source, number - 1)
                taken.append(self._post(batch, source, number, items))
                if taken[-1].done():
                    # After a post without room nothing may be posted: the mark would skip the missing numbers.
                    break
        except Overloaded as error:
            taken.append(asyncio.get_running_loop().create_future())
            taken[-1].set_exception(error)
        return taken

    def _pass(self, batch: Batch, source: str, last: int, because: str = "") -> None:
        """Skips numbers up to here: left out by the rule, or lost, and then `because` says why."""
        policy = self._host.declaration.policy_of(source)
        for shard in self._host.shards:
            passed = SequencesSkipped(source, batch.incarnation, batch.epoch, last, because)
            self._host.mailbox.put_note(Queued(shard=shard.state.shard, input=passed, items=0), policy)

    def _post(self, batch: Batch, source: str, number: int, items: list[tuple[str, bytes]]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        size_bytes = sum(len(body) + 4 * len(address) + OVERHEAD_BYTES for address, body in items)
        envelope = Envelope(ENVELOPE_FORMAT, source, batch.incarnation, batch.epoch, number, items)
        self._host.intake.post([Accept(envelope, size_bytes, (AwaitedTicket(done),))])
        return done

    def _stretches(self, batch: Batch, message: BusMessage) -> list[tuple[int, list[tuple[str, bytes]]]]:
        """The events as ranges without large gaps, each with the number of its first."""
        stretches: list[tuple[int, list[tuple[str, bytes]]]] = []
        before = -HOLE_MAX
        for number, address, body in batch.items:
            if number - before > HOLE_MAX:
                stretches.append((number, []))
            else:
                stretches[-1][1].extend([("", ELSEWHERE)] * (number - before - 1))
            to = self._sorting.address(address)
            if why := self._sorting.unwanted(to, tag_of(body).partition("@")[0]):
                self._refuse(message, PeerError(why))
                stretches[-1][1].append(("", ELSEWHERE))
            else:
                stretches[-1][1].append((to, body))
                self.counters.collected_events += 1
            before = number
        return stretches

    def _refuse(self, message: BusMessage, error: PeerError) -> None:
        self.counters.collected_refused += 1
        self._teller.refused(message, error)

    # ------------------------------------------------------------------ answers

    def _marks_of(self, sender: UplinkSource) -> list[UplinkMark]:
        found = [
            self._mark(int(key[0].removeprefix(sender.prefix)), key)
            for key in self._confirmed
            if key[0].startswith(sender.prefix)
        ]
        return found[-MARKS_COUNT_MAX:]

    def _mark(self, shard: int, key: Key) -> UplinkMark:
        epoch = max(one.state.marks.epoch(*key) for one in self._host.shards)
        return UplinkMark(shard, key[1], epoch, self._confirmed.get(key, 0), self._digests.get(key, b""))

    async def _tell(self, bus: Bus, sender: UplinkSource, nonce: str, marks: list[UplinkMark], refused: str) -> None:
        """On the bus of the sender. A sender that does not get this asks again."""
        told = Told(self._me.node, self._run, nonce, marks, printable(refused, REASON_CHARS_MAX))
        with contextlib.suppress(LinkDown, NotRunning, TimeoutError):
            async with asyncio.timeout(TELL_WITHIN_S):
                await bus.publish(BusMessage(sender.marks_topic, write_message(told)))


async def _all_of(futures: Sequence[asyncio.Future[None]]) -> None:
    """Waits for all, and raises the first error."""
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
