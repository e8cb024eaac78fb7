"""From an event to its action where the log is on three servers, in open loop, next to a message on the engine alone.

The events come at fixed times, whether we keep up or not, one envelope each; so a stall is counted for every event that
it delays. So do the bare messages. Then how fast a log is replayed by somebody who takes it over.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from bench.nats.rig import Owned, declare, feeds, open_heard, open_log, standby_of
from bench.nats.throughput import BATCH_EVENTS, Raw, push
from bench.rig import NO_SNAPSHOTS
from bench.sender import percentile
from bench.workload import Report, reports
from stigmergy.agents.codec import ENVELOPE_FORMAT, Envelope, encode
from stigmergy.agents.effects import Order
from stigmergy.node.declaration import Declaration

EVENTS_PER_S = 200
SETTLE_S_MAX = 30.0
PAYLOAD = bytes(300)
"""About what a commit of one event weighs."""
MILLISECOND_NS = 1_000_000


class Latency(Struct, frozen=True):
    """What was measured."""

    p50_ms: float
    p99_ms: float
    raw_p50_ms: float
    raw_p99_ms: float
    actions: int


class CatchUp(Struct, frozen=True):
    """A log that was replayed."""

    events: int
    events_per_s: float


class _Watch:
    """Knows when each event was due, and notes how long after that its action was carried out."""

    def __init__(self) -> None:
        self._due: dict[str, deque[int]] = {}
        self._wanted = 0
        self._done = asyncio.Event()
        self.taken_ns: list[int] = []

    def expect(self, address: str, due_ns: int) -> None:
        self._due.setdefault(address, deque()).append(due_ns)

    def act(self, order: Order[Any]) -> None:
        self.taken_ns.append(time.monotonic_ns() - self._due[order.agent].popleft())
        if len(self.taken_ns) >= self._wanted:
            self._done.set()

    async def settle(self, count: int) -> None:
        """Waits until so many actions were carried out."""
        self._wanted = count
        self._done.clear()
        if len(self.taken_ns) < count:
            async with asyncio.timeout(SETTLE_S_MAX):
                await self._done.wait()


async def measure_latency(url: str, seconds: float, shards: int) -> Latency:
    """Events that cause an action at a fixed rate, then bare messages at the same rate."""
    link, watch = await open_heard(url, "bench latency"), _Watch()
    fleet = declare(watch.act, shards, "bench-latency")
    owned, raw = Owned(link, fleet), Raw(link, shards, "LATENCY")
    try:
        await owned.start()
        await raw.make(f"STIG_LOG_{fleet.name}_0_0")
        sending = _Sending(fleet, owned, watch)
        acting = [report for report in reports(3, 20 * int(seconds * EVENTS_PER_S) + 1_000, acting=0.3) if report.acts]
        await _at_fixed_times(acting[: int(EVENTS_PER_S / 2)], sending.send)
        await watch.settle(int(EVENTS_PER_S / 2))
        watch.taken_ns.clear()
        wanted = acting[-int(seconds * EVENTS_PER_S) :]
        await _at_fixed_times(wanted, sending.send)
        await watch.settle(len(wanted))
        taken_ns: list[int] = []

        async def publish(report: Report, due_ns: int) -> None:
            await raw.publish(fleet.homes.of(report.address), PAYLOAD)
            taken_ns.append(time.monotonic_ns() - due_ns)

        await _at_fixed_times(wanted, publish)
    finally:
        await owned.stop()
        await link.close()
    return Latency(
        p50_ms=percentile(watch.taken_ns, 0.5) / MILLISECOND_NS,
        p99_ms=percentile(watch.taken_ns, 0.99) / MILLISECOND_NS,
        raw_p50_ms=percentile(taken_ns, 0.5) / MILLISECOND_NS,
        raw_p99_ms=percentile(taken_ns, 0.99) / MILLISECOND_NS,
        actions=len(watch.taken_ns),
    )


class _Sending:
    """Sends single events, each from a source of its shard."""

    def __init__(self, fleet: Declaration, owned: Owned, watch: _Watch) -> None:
        self._fleet = fleet
        self._owned = owned
        self._watch = watch
        self._sequences = [0] * fleet.shards

    async def send(self, report: Report, due_ns: int) -> None:
        shard = self._fleet.homes.of(report.address)
        self._sequences[shard] += 1
        self._watch.expect(report.address, due_ns)
        items = [(report.address, report.body)]
        envelope = Envelope(ENVELOPE_FORMAT, f"one/{shard}", 1, 0, self._sequences[shard], items)
        await self._owned.hosts[shard].intake.deliver(encode(envelope))


async def _at_fixed_times(wanted: list[Report], send: Callable[[Report, int], Awaitable[None]]) -> None:
    """Sends each at its time, without waiting for the one before."""
    began_ns = time.monotonic_ns()
    sent: list[asyncio.Future[None]] = []
    for number, report in enumerate(wanted):
        due_ns = began_ns + number * 1_000_000_000 // EVENTS_PER_S
        early_ns = due_ns - time.monotonic_ns()
        if early_ns > 0:
            await asyncio.sleep(early_ns / 1e9)
        sent.append(asyncio.ensure_future(send(report, due_ns)))
    await asyncio.gather(*sent)


async def measure_catch_up(url: str, envelopes: int) -> CatchUp:
    """How fast somebody who is to own a shard replays its log from the beginning."""
    link = await open_heard(url, "bench catch-up")
    fleet = declare(lambda _: None, 1, "bench-catch-up")
    owned = Owned(link, fleet)
    try:
        await owned.start(NO_SNAPSHOTS)
        (source,) = feeds(fleet, BATCH_EVENTS)
        await push(owned.hosts[0], source.envelopes(envelopes))
        await owned.stop()
        log = await open_log(link, fleet, 0)
        began_s = time.perf_counter()
        await standby_of(log, fleet).warm()
        took_s = time.perf_counter() - began_s
        await log.close()
    finally:
        await link.close()
    return CatchUp(envelopes * BATCH_EVENTS, envelopes * BATCH_EVENTS / took_s)
