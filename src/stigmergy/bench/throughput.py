"""Events per second through the whole host, and what a bare loop without any promise but the disk's gets for them.

Both take the same envelopes, in the same batches, one window after the other, so that what else the machine does hits
both. The ratio of neighbouring windows is the figure; the speeds alone say more about the machine than about us.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from stigmergy.bench.rig import SHARED_LOOP, make_host, open_file, open_folder
from stigmergy.bench.workload import BATCH_EVENTS, BatteryMeasured, Feed, OrderAcknowledged, Positioned, reports
from stigmergy.core.codec import encode, open_envelope
from stigmergy.core.effects import Order
from stigmergy.runtime.host import Host

ENVELOPES_IN_FLIGHT = 3
"""One on its way to the disk, one stepped, one waiting: more only cools down the caches."""
STOCK_EVENTS = 50_000


class Throughput(Struct, frozen=True):
    """What the windows gave."""

    events_per_s: float
    limit_events_per_s: float
    ratio: float
    ratios: list[float]
    cpu_us_per_event: float
    limit_cpu_us_per_event: float
    """Processor time, all threads together: what is left of the difference when the disk is not counted."""
    nested_limit_events_per_s: float
    """The bare loop where one call decodes a whole batch: quicker than anything that keeps events apart."""
    nested_ratio: float
    """The host against that one."""
    segments_events_per_s: float
    """The host on a journal in segments, in windows of the same run."""
    segments_ratio: float
    segments_cpu_us_per_event: float
    actions: int


class _BareEnvelope(Struct, array_like=True):
    """An envelope as a program without an agent runtime would read it."""

    format: int
    source: str
    incarnation: int
    epoch: int
    sequence: int
    items: list[tuple[str, bytes]]


class _NestedEnvelope(Struct, array_like=True):
    """The same with its events as plain nested values: one call of the decoder reads them all."""

    format: int
    source: str
    incarnation: int
    epoch: int
    sequence: int
    items: list[tuple[str, Positioned | BatteryMeasured | OrderAcknowledged]]


def nested(data: bytes) -> bytes:
    """An envelope's bytes with its events nested: not what is sent, but the quickest thing there is to decode."""
    envelope = open_envelope(data)
    head = (envelope.format, envelope.source, envelope.incarnation, envelope.epoch, envelope.sequence)
    return encode((*head, [(address, Raw(body)) for address, body in envelope.items]))


class Limit:
    """The bare loop on the very bytes that the host gets: decode each event into its type, put it into a dict, append
    the batch to a file, sync. No chain, signature, mark or effect."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._open = msgspec.msgpack.Decoder(_BareEnvelope).decode
        self._decode = msgspec.msgpack.Decoder(Positioned | BatteryMeasured | OrderAcknowledged).decode
        self._decode_nested = msgspec.msgpack.Decoder(_NestedEnvelope).decode
        self.state: dict[str, Any] = {}

    def run(self, envelopes: list[bytes]) -> None:
        """Takes the envelopes."""
        open_bare, decode, state = self._open, self._decode, self.state
        for data in envelopes:
            for address, body in open_bare(data).items:
                state[address] = decode(body)
            self._write(data)

    def run_nested(self, envelopes: list[bytes]) -> None:
        """Takes envelopes whose events are nested."""
        decode, state = self._decode_nested, self.state
        for data in envelopes:
            for address, event in decode(data).items:
                state[address] = event
            self._write(data)

    def _write(self, data: bytes) -> None:
        os.write(self._file, data)
        os.fdatasync(self._file)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


class _Counter:
    """Counts the actions that a host carries out."""

    def __init__(self) -> None:
        self.actions = 0

    def act(self, _: Order[Any]) -> None:
        self.actions += 1


async def measure_throughput(folder: Path, windows: int, envelopes: int) -> Throughput:
    """Runs host and limit in turn, so many windows of each with so many envelopes."""
    feed = Feed("ground", reports(1, STOCK_EVENTS))
    acted, acted_on_segments = _Counter(), _Counter()
    host = make_host(open_file(folder / "throughput.db"), acted.act, SHARED_LOOP)
    on_segments = make_host(open_folder(folder / "throughput"), acted_on_segments.act, SHARED_LOOP)
    await host.start()
    await on_segments.start()
    limit = Limit(folder / "limit.log")
    warm_up = feed.envelopes(max(10, envelopes // 10))
    await run_host(host, warm_up)
    await run_host(on_segments, warm_up)
    limit.run(warm_up)
    limit.run_nested([nested(data) for data in warm_up])
    own: list[_Window] = []
    segmented: list[_Window] = []
    bare: list[_Window] = []
    quickest: list[_Window] = []
    for _ in range(windows):
        batch = feed.envelopes(envelopes)
        nested_batch = [nested(data) for data in batch]
        clock = _Clock(envelopes * BATCH_EVENTS)
        await run_host(host, batch)
        own.append(clock.read())
        clock = _Clock(envelopes * BATCH_EVENTS)
        limit.run(batch)
        bare.append(clock.read())
        clock = _Clock(envelopes * BATCH_EVENTS)
        await run_host(on_segments, batch)
        segmented.append(clock.read())
        clock = _Clock(envelopes * BATCH_EVENTS)
        limit.run_nested(nested_batch)
        quickest.append(clock.read())
    await host.stop()
    await on_segments.stop()
    limit.close()
    for done in (acted, acted_on_segments):
        if done.actions != feed.acting:
            raise RuntimeError(f"{feed.acting} events cause an action, {done.actions} actions were carried out")
    ratios = [mine.events_per_s / other.events_per_s for mine, other in zip(own, bare, strict=True)]
    return Throughput(
        events_per_s=statistics.median(window.events_per_s for window in own),
        limit_events_per_s=statistics.median(window.events_per_s for window in bare),
        ratio=statistics.median(ratios),
        ratios=ratios,
        cpu_us_per_event=statistics.median(window.cpu_us_per_event for window in own),
        limit_cpu_us_per_event=statistics.median(window.cpu_us_per_event for window in bare),
        nested_limit_events_per_s=statistics.median(window.events_per_s for window in quickest),
        nested_ratio=statistics.median(
            mine.events_per_s / other.events_per_s for mine, other in zip(own, quickest, strict=True)
        ),
        segments_events_per_s=statistics.median(window.events_per_s for window in segmented),
        segments_ratio=statistics.median(
            mine.events_per_s / other.events_per_s for mine, other in zip(segmented, bare, strict=True)
        ),
        segments_cpu_us_per_event=statistics.median(window.cpu_us_per_event for window in segmented),
        actions=acted.actions,
    )


class _Window(Struct, frozen=True):
    """One window's speed and cost."""

    events_per_s: float
    cpu_us_per_event: float


class _Clock:
    """Runs from its making until it is read."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._cpu_s = time.process_time()
        self._begin_s = time.perf_counter()

    def read(self) -> _Window:
        wall_s = time.perf_counter() - self._begin_s
        cpu_s = time.process_time() - self._cpu_s
        return _Window(self._events / wall_s, cpu_s / self._events * 1e6)


async def run_host(host: Host, envelopes: list[bytes]) -> None:
    """Delivers envelopes with a bounded number of them not yet acknowledged; returns when all are durable."""
    waiting: deque[asyncio.Future[None]] = deque()
    for data in envelopes:
        if len(waiting) >= ENVELOPES_IN_FLIGHT:
            await waiting.popleft()
        waiting.append(host.intake.deliver(data))
    while waiting:
        await waiting.popleft()
