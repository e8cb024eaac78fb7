"""Events per second through the whole host, and what a bare loop without any promise but the disk's gets for them.

Both take the same envelopes, in the same batches, one window after the other, so that what else the machine does hits
both. The ratio of neighbouring windows is the figure; the speeds alone say more about the machine than about us.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from bench.rig import SHARED_LOOP, in_process, make_host, open_file, open_folder
from bench.workload import BATCH_EVENTS, BatteryMeasured, Feed, OrderAcknowledged, Positioned, reports
from stigmergy.agents.codec import encode, open_envelope
from stigmergy.agents.effects import Order
from stigmergy.base.system import make_process_ours
from stigmergy.journal.port import Journal
from stigmergy.node.host import Host

ENVELOPES_IN_FLIGHT = 3
"""One on its way to the disk, one stepped, one waiting: more only cools down the caches."""
STOCK_EVENTS = 50_000
SQLITE, SEGMENTS = "sqlite", "segments"


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
    """The host on a journal in segments, next to windows of the limit of its own."""
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


def measure_throughput(folder: Path, windows: int, envelopes: int) -> Throughput:
    """Measures the host on SQLite, then the host in segments, each next to its own windows of the limit.

    Each in a process of its own: what one leaves behind in memory and caches would weigh on the other.
    """
    on_sqlite = in_process(_Measured, "bench.throughput", SQLITE, folder, windows, envelopes)
    in_segments = in_process(_Measured, "bench.throughput", SEGMENTS, folder, windows, envelopes)
    return Throughput(
        events_per_s=_speed(on_sqlite.own),
        limit_events_per_s=_speed(on_sqlite.bare),
        ratio=statistics.median(on_sqlite.ratios),
        ratios=on_sqlite.ratios,
        cpu_us_per_event=_cost(on_sqlite.own),
        limit_cpu_us_per_event=_cost(on_sqlite.bare),
        nested_limit_events_per_s=_speed(on_sqlite.nested),
        nested_ratio=statistics.median(
            mine.events_per_s / other.events_per_s for mine, other in zip(on_sqlite.own, on_sqlite.nested, strict=True)
        ),
        segments_events_per_s=_speed(in_segments.own),
        segments_ratio=statistics.median(in_segments.ratios),
        segments_cpu_us_per_event=_cost(in_segments.own),
        actions=on_sqlite.actions,
    )


async def _measure_on(journal: Journal, folder: Path, windows: int, envelopes: int) -> _Measured:
    """Runs host and limit in turn, so many windows of each with so many envelopes."""
    feed = Feed("ground", reports(1, STOCK_EVENTS))
    acted = _Counter()
    host = make_host(journal, acted.act, SHARED_LOOP)
    await host.start()
    limit = Limit(folder / "limit.log")
    warm_up = feed.envelopes(max(10, envelopes // 10))
    await run_host(host, warm_up)
    limit.run(warm_up)
    limit.run_nested([nested(data) for data in warm_up])
    measured = _Measured()
    for _ in range(windows):
        batch = feed.envelopes(envelopes)
        nested_batch = [nested(data) for data in batch]
        clock = _Clock(envelopes * BATCH_EVENTS)
        await run_host(host, batch)
        measured.own.append(clock.read())
        clock = _Clock(envelopes * BATCH_EVENTS)
        limit.run(batch)
        measured.bare.append(clock.read())
        clock = _Clock(envelopes * BATCH_EVENTS)
        limit.run_nested(nested_batch)
        measured.nested.append(clock.read())
    await host.stop()
    limit.close()
    if acted.actions != feed.acting:
        raise RuntimeError(f"{feed.acting} events cause an action, {acted.actions} actions were carried out")
    measured.actions = acted.actions
    return measured


class _Window(Struct, frozen=True):
    """One window's speed and cost."""

    events_per_s: float
    cpu_us_per_event: float


class _Measured(Struct):
    """The windows on one journal."""

    own: list[_Window] = []
    bare: list[_Window] = []
    nested: list[_Window] = []
    actions: int = 0

    @property
    def ratios(self) -> list[float]:
        """Host against limit, window by window."""
        return [mine.events_per_s / other.events_per_s for mine, other in zip(self.own, self.bare, strict=True)]


def _speed(windows: list[_Window]) -> float:
    return statistics.median(window.events_per_s for window in windows)


def _cost(windows: list[_Window]) -> float:
    return statistics.median(window.cpu_us_per_event for window in windows)


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


def main(arguments: list[str]) -> None:
    """Measures on one journal and prints the windows."""
    journal, folder, windows, envelopes = arguments
    make_process_ours()
    path = Path(folder) / "throughput"
    opened: Journal = open_file(path.with_suffix(".db")) if journal == SQLITE else open_folder(path)
    measured = asyncio.run(_measure_on(opened, Path(folder), int(windows), int(envelopes)))
    print(msgspec.json.encode(measured).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
