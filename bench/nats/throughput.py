"""Events per second through a worker whose shards' logs are on three servers, and what the servers alone make of it.

A window of the worker is followed by one of the raw engine: the very messages that the worker has written, published
into streams of the same configuration, as many at a time as there are shards, by the same client in the same process,
without agents, chains, signatures, marks or fences. The median of the ratios is what counts.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque

from msgspec import Struct

from bench.nats.rig import HeardLink, Owned, declare, feeds, open_heard
from bench.workload import Feed
from stigmergy.nats.link import NatsLink
from stigmergy.node.host import Host
from stigmergy.node.settings import Settings

ENVELOPES_IN_FLIGHT = 2
"""Both are stepped while the message before them is on its way, and written as one."""
BATCH_EVENTS = 100
WARM_UP_ENVELOPES = 10
WITHIN_S = 20.0


class Throughput(Struct, frozen=True):
    """Medians over the windows."""

    events_per_s: float
    limit_events_per_s: float
    ratio: float
    ratios: list[float]
    messages_per_s: float
    limit_messages_per_s: float
    events_per_message: float
    bytes_per_message: float
    cpu_us_per_event: float
    limit_cpu_us_per_event: float


class _Window(Struct):
    """One window of either."""

    events: int
    messages: int
    size_bytes: int
    took_s: float
    cpu_s: float


class Raw:
    """Streams like those of the logs, and nothing but messages in them."""

    def __init__(self, link: NatsLink, shards: int, name: str = "RAW") -> None:
        self._link = link
        self._shards = shards
        self._name = name

    async def make(self, like: str) -> None:
        """Makes them after the example of a stream."""
        config = (await self._link.api(f"STREAM.INFO.{like}"))["config"]
        for shard in range(self._shards):
            name = f"{self._name}_{shard}"
            own = {**config, "name": name, "subjects": [f"raw.{name}"], "metadata": {}}
            await self._link.api(f"STREAM.CREATE.{name}", own, within_s=WITHIN_S)

    async def publish(self, shard: int, payload: bytes) -> None:
        """One message; returns when the servers have it."""
        await self._link.publish(f"raw.{self._name}_{shard}", payload, within_s=WITHIN_S)

    async def run(self, written: list[list[bytes]], events: int) -> _Window:
        """Publishes messages, those of each shard one after the other."""

        async def publish_all(shard: int, payloads: list[bytes]) -> None:
            for payload in payloads:
                await self.publish(shard, payload)

        cpu_s, began_s = time.process_time(), time.perf_counter()
        await asyncio.gather(*(publish_all(shard, payloads) for shard, payloads in enumerate(written)))
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        sizes = [len(payload) for payloads in written for payload in payloads]
        return _Window(events, len(sizes), sum(sizes), took_s, cpu_s)


async def measure_throughput(
    url: str,
    windows: int,
    envelopes: int,
    shards: int,
    batch_events: int = BATCH_EVENTS,
    settings: Settings | None = None,
) -> Throughput:
    """So many windows of so many envelopes for each shard, each followed by one of the raw engine."""
    link = await open_heard(url, "bench")
    fleet = declare(lambda _: None, shards)
    owned, raw = Owned(link, fleet), Raw(link, shards)
    try:
        await owned.start(settings)
        await raw.make(f"STIG_LOG_{fleet.name}_0_0")
        sources = feeds(fleet, batch_events)
        await _run(owned.hosts, sources, WARM_UP_ENVELOPES, link)
        pairs: list[tuple[_Window, _Window]] = []
        for _ in range(windows):
            own, written = await _run(owned.hosts, sources, envelopes, link)
            pairs.append((own, await raw.run(written, own.events)))
    finally:
        await owned.stop()
        await link.close()
    return _summed(pairs)


async def _run(
    hosts: list[Host], sources: list[Feed], envelopes: int, link: HeardLink
) -> tuple[_Window, list[list[bytes]]]:
    """One window of the worker, and what it has written, by shard."""
    prepared = [source.envelopes(envelopes) for source in sources]
    before = sum(shard.state.events_count for host in hosts for shard in host.shards)
    link.written = []
    cpu_s, began_s = time.process_time(), time.perf_counter()
    await asyncio.gather(*(push(host, own) for host, own in zip(hosts, prepared, strict=True)))
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    written, link.written = link.written, None
    events = sum(shard.state.events_count for host in hosts for shard in host.shards) - before
    by_shard: list[list[bytes]] = [[] for _ in hosts]
    for subject, payload in written:
        by_shard[int(subject.split(".log.")[1].partition("-")[0])].append(payload)
    sizes = [len(payload) for _, payload in written]
    return _Window(events, len(sizes), sum(sizes), took_s, cpu_s), by_shard


async def push(host: Host, envelopes: list[bytes]) -> None:
    """Delivers envelopes to a host, and returns when all are durable."""
    waiting: deque[asyncio.Future[None]] = deque()
    for data in envelopes:
        if len(waiting) >= ENVELOPES_IN_FLIGHT:
            await waiting.popleft()
        waiting.append(host.intake.deliver(data))
    for one in waiting:
        await one


def _summed(pairs: list[tuple[_Window, _Window]]) -> Throughput:
    own, bare = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratios = [two.took_s / one.took_s for one, two in pairs]

    def median(windows: list[_Window], figure: str, per: str) -> float:
        return float(statistics.median(getattr(window, figure) / getattr(window, per) for window in windows))

    return Throughput(
        events_per_s=median(own, "events", "took_s"),
        limit_events_per_s=median(bare, "events", "took_s"),
        ratio=statistics.median(ratios),
        ratios=ratios,
        messages_per_s=median(own, "messages", "took_s"),
        limit_messages_per_s=median(bare, "messages", "took_s"),
        events_per_message=median(own, "events", "messages"),
        bytes_per_message=median(own, "size_bytes", "messages"),
        cpu_us_per_event=1e6 * median(own, "cpu_s", "events"),
        limit_cpu_us_per_event=1e6 * median(bare, "cpu_s", "events"),
    )
