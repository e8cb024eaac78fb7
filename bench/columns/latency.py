"""From an event's scheduled time to its batched actuator, in open loop, and what a sync alone takes at that rate.

`python -m bench.columns.latency FOLDER RING` runs a whole host behind a ring; the sender at its other end is
a process of its own, and sends at fixed times whether we keep up or not. So a stall is counted for every event that it
delays. Bare windows append the same bytes as they fall due to a file that was filled with zeros before, and sync.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from bench.columns.rig import confirmed, enrol, make_fleet, make_host
from bench.columns.sender import MODULE as SENDER
from bench.columns.sender import Plan, Sent, due_times
from bench.limit import fill_with_zeros
from bench.records import acting
from bench.rig import SHARED_LOOP
from bench.sender import percentile
from bench.subjects import Subject, serve
from bench.workload import DRONES
from stigmergy.agents.messages import SECOND_NS
from stigmergy.base.system import make_process_ours
from stigmergy.node.column_actuators import Orders
from stigmergy.ring import Consumer, open_consumer

MODULE = "bench.columns.latency"
LEAD_NS = 50_000_000
"""A window starts this long after it was announced."""
IN_FLIGHT = 256
"""Batches that are taken from the ring and not durable; the others wait in there."""
SETTLE_S_MAX = 30.0
BARE_FILE_BYTES = 16 << 20


class Flow(Struct, frozen=True):
    """One window: so many batches of so many records at this rate; through the host, or bare."""

    batches: int
    batch_records: int
    events_per_s: int
    acting: float
    bare: bool = False


class Flowed(Struct, frozen=True):
    """What the events of one window took; bare, what each append with its sync took."""

    p50_ns: int
    p99_ns: int
    worst_ns: int
    actions: int
    """As many as the events cause, or there is no answer."""
    commits: int
    cpu_s: float
    """Of the node, all threads together."""
    sender_late_p99_ns: int


class _Watch:
    """Knows when each event was due that causes an action, and notes how long after that it was carried out."""

    def __init__(self) -> None:
        self._due_ns: Any = None
        self._agents: Any = None
        self._first = 1
        self._taken_ns: list[Any] = []
        self.acted = 0

    def expect(self, due_ns: Any, agents: Any) -> None:
        """The next window's actions, in the order of their events; the last window's are all there."""
        self._first += self.acted
        self._due_ns, self._agents = due_ns, agents
        self._taken_ns, self.acted = [], 0

    def act(self, orders: Orders[Any]) -> None:
        """Is called when these are to be carried out."""
        now_ns = time.monotonic_ns()
        places = orders.sequences - self._first
        if not np.array_equal(self._agents[places], orders.numbers):
            raise RuntimeError("an action went to another drone than the one whose event caused it")
        self._taken_ns.append(now_ns - self._due_ns[places])
        self.acted += len(places)

    def taken_ns(self) -> list[int]:
        """Of the window."""
        values: list[int] = np.concatenate(self._taken_ns).tolist()
        return values


class Node:
    """A host behind a ring, whose event loop runs while a window does."""

    def __init__(self, folder: Path, ring: Path) -> None:
        self._watch = _Watch()
        self._loop = asyncio.new_event_loop()
        self._host = make_host(folder / "latency", make_fleet(self._watch.act), SHARED_LOOP)
        self._loop.run_until_complete(self._host.start())
        self._roster = self._loop.run_until_complete(enrol(self._host, DRONES))
        self._ring: Consumer = open_consumer(ring)
        self._sender = Subject(Sent, SENDER, ring)
        self._sequence = 1
        self._bare = os.open(folder / "bare.log", os.O_RDWR | os.O_CREAT, 0o644)
        fill_with_zeros(self._bare, BARE_FILE_BYTES)

    def run(self, request: Flow) -> Flowed:
        """One window."""
        plan = Plan(
            batches=request.batches,
            batch_records=request.batch_records,
            events_per_s=request.events_per_s,
            acting=request.acting,
            sequence=self._sequence,
            roster=self._roster,
        )
        if request.bare:
            return _flowed(_bare_window(self._bare, plan))
        self._sender.ask(plan)
        stock = plan.stock()
        acts = acting(stock)
        plan = structs.replace(plan, start_ns=time.monotonic_ns() + LEAD_NS)
        due_ns = due_times(plan, acts)
        self._watch.expect(due_ns, np.resize(stock["agent"][acts], len(due_ns)))
        state = self._host.shards[0].state
        position, begin_cpu_s = state.position, time.process_time()
        self._sender.begin(plan)
        self._loop.run_until_complete(self._window(plan, len(due_ns)))
        commits, cpu_s = state.position - position, time.process_time() - begin_cpu_s
        late_ns = self._sender.finish().late_p99_ns
        self._sequence += plan.events
        return _flowed(self._watch.taken_ns(), commits, cpu_s, late_ns)

    def close(self) -> None:
        """Stops the sender and the host, once it is on disk that all actions were carried out."""
        self._sender.close()
        self._ring.close()
        self._loop.run_until_complete(confirmed(self._host))
        self._loop.run_until_complete(self._host.stop())
        self._loop.close()
        os.close(self._bare)

    async def _window(self, plan: Plan, actions: int) -> None:
        """Takes the batches as they come, until every action was carried out."""
        ring = self._ring
        waiting: deque[asyncio.Future[None]] = deque()
        async with asyncio.timeout(plan.events / plan.events_per_s + SETTLE_S_MAX):
            for _ in range(plan.batches):
                while (message := ring.take_nowait()) is None:
                    await ring.wait_ready()
                done = self._host.columns.deliver(message.body)
                done.add_done_callback(partial(self._durable, message.number))
                waiting.append(done)
                if len(waiting) > IN_FLIGHT:
                    await waiting.popleft()
            while waiting:
                await waiting.popleft()
            while self._watch.acted < actions and self._host.failure is None:  # noqa: ASYNC110 - an event would be timed
                await asyncio.sleep(0.001)
        if self._host.failure is not None:
            raise self._host.failure

    def _durable(self, number: int, _: asyncio.Future[None]) -> None:
        self._ring.mark_durable(number)


def _bare_window(file: int, plan: Plan) -> list[int]:
    """Appends the same batches as they fall due and syncs; returns what each append with its sync took."""
    batches = plan.feed().batches(plan.batches)
    interval_ns = plan.batch_records * SECOND_NS // plan.events_per_s
    taken_ns: list[int] = []
    start_ns = time.monotonic_ns()
    done = offset = 0
    while done < len(batches):
        now_ns = time.monotonic_ns()
        due = min(len(batches), (now_ns - start_ns) // interval_ns + 1)
        if due == done:
            time.sleep((start_ns + done * interval_ns - now_ns) / SECOND_NS)
            continue
        data = b"".join(batches[done:due])
        offset = offset if offset + len(data) <= BARE_FILE_BYTES else 0
        begin_ns = time.monotonic_ns()
        os.pwrite(file, data, offset)
        os.fdatasync(file)
        taken_ns.append(time.monotonic_ns() - begin_ns)
        offset += len(data)
        done = due
    return taken_ns


def _flowed(taken_ns: list[int], commits: int = 0, cpu_s: float = 0.0, late_ns: int = 0) -> Flowed:
    return Flowed(
        p50_ns=percentile(taken_ns, 0.5),
        p99_ns=percentile(taken_ns, 0.99),
        worst_ns=max(taken_ns),
        actions=len(taken_ns),
        commits=commits,
        cpu_s=cpu_s,
        sender_late_p99_ns=late_ns,
    )


def main(arguments: list[str]) -> None:
    """Runs one host."""
    folder, ring = arguments
    node = Node(Path(folder), Path(ring))
    make_process_ours(large_commits=True)
    try:
        serve(Flow, node.run)
    finally:
        node.close()


if __name__ == "__main__":
    main(sys.argv[1:])
