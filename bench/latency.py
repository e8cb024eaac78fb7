"""From an event's scheduled time to its action, at 5,000 events/s in open loop, next to what a sync alone takes.

The events come from a process of its own, one envelope each, at fixed times, whether we keep up or not; so a stall is
counted for every event that it delays. The bare windows in between append the same events as they fall due and
sync: what the disk takes at that rate without us.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.rig import SHARED_LOOP, make_host, open_file, open_folder
from bench.sender import Sources, percentile, plan_window
from stigmergy.agents.effects import Order
from stigmergy.agents.messages import SECOND_NS
from stigmergy.journal.port import Journal
from stigmergy.node.host import Host

EVENTS_PER_S = 5_000
SEED = 7
DATAGRAM_BYTES_MAX = 65_536
DATAGRAMS_PER_LOOK = 64
LEAD_NS = 50_000_000
"""A window starts this long after it was announced."""
SETTLE_S_MAX = 30.0
MILLISECOND_NS = 1_000_000


class Latency(Struct, frozen=True):
    """Medians over the windows."""

    p50_ms: float
    p99_ms: float
    fdatasync_p50_ms: float
    fdatasync_p99_ms: float
    p99_over_fdatasync: float
    sender_late_p99_ms: float
    segments_p50_ms: float
    """The same on a journal in segments, in windows of the same run."""
    segments_p99_ms: float
    segments_p99_over_fdatasync: float
    actions: int


class _Watch:
    """Knows when each acting event was due, and notes how long after that its action was carried out."""

    def __init__(self) -> None:
        self._due: dict[str, deque[int]] = {}
        self.taken_ns: list[int] = []
        self.expected = 0

    def expect(self, address: str, due_ns: int) -> None:
        self._due.setdefault(address, deque()).append(due_ns)
        self.expected += 1

    def act(self, order: Order[Any]) -> None:
        self.taken_ns.append(time.monotonic_ns() - self._due[order.agent].popleft())


class _Sender:
    """The other process, and our end of its socket."""

    def __init__(self, events: int, rate: int) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        command = [sys.executable, "-m", "bench.sender", str(theirs.fileno()), str(SEED), str(events)]
        self._process = subprocess.Popen(
            [*command, str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def start(self) -> int:
        """Waits until the next window is prepared and sets it off; returns its start time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the sender did not start")
        start_ns = time.monotonic_ns() + LEAD_NS
        self._process.stdin.write(f"{start_ns}\n")
        self._process.stdin.flush()
        return start_ns

    def finish(self) -> int:
        """How late the sender itself was, at its 99th percentile."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self.channel.close()
        self._process.terminate()
        self._process.communicate()


class _Tried:
    """A host on one kind of journal, who sends to it, and what its windows gave."""

    def __init__(self, journal: Journal, events: int, rate: int) -> None:
        self.watch = _Watch()
        self.host = make_host(journal, self.watch.act, SHARED_LOOP)
        self.sender = _Sender(events, rate)
        self.medians: list[int] = []
        self.tails: list[int] = []
        self.late: list[int] = []

    async def window(self, window: int, events: int, rate: int) -> None:
        """One window; the first one warms everything up."""
        taken_ns, late_ns = await _host_window(self.host, self.watch, self.sender, window, events, rate)
        if window:
            self.medians.append(percentile(taken_ns, 0.5))
            self.tails.append(percentile(taken_ns, 0.99))
            self.late.append(late_ns)

    def over(self, bare_tails: list[int]) -> float:
        """The median of the ratios to the bare windows."""
        return statistics.median(own / bare for own, bare in zip(self.tails, bare_tails, strict=True))


async def measure_latency(folder: Path, windows: int, window_s: float, rate: int = EVENTS_PER_S) -> Latency:
    """Runs the host on SQLite, bare windows, and the host on segments in turn."""
    events = int(window_s * rate)
    on_file = _Tried(open_file(folder / "latency.db"), events, rate)
    on_segments = _Tried(open_folder(folder / "latency"), events, rate)
    file = os.open(folder / "bare.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    bare_medians: list[int] = []
    bare_tails: list[int] = []
    try:
        await on_file.host.start()
        await on_segments.host.start()
        for window in range(windows + 1):
            await on_file.window(window, events, rate)
            sync_ns = _bare_window(file, window, events, rate)
            if window:
                bare_medians.append(percentile(sync_ns, 0.5))
                bare_tails.append(percentile(sync_ns, 0.99))
            await on_segments.window(window, events, rate)
    finally:
        os.close(file)
        for tried in (on_file, on_segments):
            tried.sender.close()
            await tried.host.stop()
    return Latency(
        p50_ms=_milliseconds(on_file.medians),
        p99_ms=_milliseconds(on_file.tails),
        fdatasync_p50_ms=_milliseconds(bare_medians),
        fdatasync_p99_ms=_milliseconds(bare_tails),
        p99_over_fdatasync=on_file.over(bare_tails),
        sender_late_p99_ms=_milliseconds([*on_file.late, *on_segments.late]),
        segments_p50_ms=_milliseconds(on_segments.medians),
        segments_p99_ms=_milliseconds(on_segments.tails),
        segments_p99_over_fdatasync=on_segments.over(bare_tails),
        actions=on_file.watch.expected,
    )


async def _host_window(
    host: Host, watch: _Watch, sender: _Sender, window: int, events: int, rate: int
) -> tuple[list[int], int]:
    """Takes one window of the sender; returns what each action took, and the sender's own lateness."""
    loop = asyncio.get_running_loop()
    received = 0
    watch.taken_ns = []

    def receive() -> None:
        nonlocal received
        for _ in range(DATAGRAMS_PER_LOOK):
            try:
                data = sender.channel.recv(DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                return
            _ = host.intake.deliver(data)  # nobody waits: what counts is when the action is carried out
            received += 1

    plan = plan_window(SEED + window, events)
    start_ns = sender.start()
    expected = 0
    for number, report in enumerate(plan):
        if report.acts:
            watch.expect(report.address, start_ns + number * (SECOND_NS // rate))
            expected += 1
    loop.add_reader(sender.channel.fileno(), receive)
    deadline_ns = start_ns + int((events / rate + SETTLE_S_MAX) * SECOND_NS)
    while received < events or len(watch.taken_ns) < expected:
        await asyncio.sleep(0.05)
        if time.monotonic_ns() > deadline_ns or host.failure is not None:
            raise RuntimeError(f"{received} of {events} came, {len(watch.taken_ns)} of {expected} actions were done")
    loop.remove_reader(sender.channel.fileno())
    return watch.taken_ns, sender.finish()


def _bare_window(file: int, window: int, events: int, rate: int) -> list[int]:
    """Appends the same envelopes as they fall due and syncs; returns what each append with its sync took."""
    sources = Sources(SEED)
    envelopes = [sources.envelope(report) for report in plan_window(SEED + window, events)]
    interval_ns = SECOND_NS // rate
    taken_ns: list[int] = []
    start_ns = time.monotonic_ns()
    done = 0
    while done < events:
        now_ns = time.monotonic_ns()
        due = min(events, (now_ns - start_ns) // interval_ns + 1)
        if due == done:
            time.sleep((start_ns + done * interval_ns - now_ns) / SECOND_NS)
            continue
        data = b"".join(envelopes[done:due])
        begin_ns = time.monotonic_ns()
        os.write(file, data)
        os.fdatasync(file)
        taken_ns.append(time.monotonic_ns() - begin_ns)
        done = due
    return taken_ns


def _milliseconds(values: Sequence[int]) -> float:
    return statistics.median(values) / MILLISECOND_NS
