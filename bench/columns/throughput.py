"""The whole host at full speed, in its process: windows of column batches, until durable and carried out.

`python -m bench.columns.throughput FOLDER PROCESS PROCESSES` reads one request a line and answers with what
the window took. Where several processes share the fleet, each has one of its shards, with as many drones.
Everything is as it is by default: marks, chain, signature, snapshots, actions in blocks that are carried out and
confirmed. Batches are packed before the clock runs: a producer does that elsewhere.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.columns.rig import (
    BATCH_RECORDS,
    ColumnFeed,
    carried_out,
    confirmed,
    enrol_own,
    make_fleet,
    make_host,
    run_columns,
)
from bench.records import records
from bench.rig import SHARED_LOOP
from bench.subjects import serve
from bench.workload import DRONES
from stigmergy.base.system import make_process_ours
from stigmergy.node.column_actuators import Orders
from stigmergy.node.settings import Settings

MODULE = "bench.columns.throughput"
STOCK_BATCHES = 80
"""A million records, as the limit has."""
SEED = 1


class Run(Struct, frozen=True):
    """Takes so many batches."""

    batches: int


class Ran(Struct, frozen=True):
    """What one window gave."""

    events: int
    seconds: float
    cpu_s: float
    """Processor time, all threads together."""
    commits: int
    actions: int
    """That were carried out; as many as the events cause, or there is no answer."""

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds

    @property
    def commit_events(self) -> int:
        """In a commit, on average."""
        return self.events // max(1, self.commits)


class Node:
    """A host whose event loop runs while it has something to take."""

    def __init__(self, path: Path, process: int = 1, processes: int = 1, settings: Settings = SHARED_LOOP) -> None:
        self._acted = 0
        self._loop = asyncio.new_event_loop()
        fleet = make_fleet(self._act, shards=processes)
        self._host = make_host(path, fleet, settings, process - 1 if processes > 1 else None)
        self._loop.run_until_complete(self._host.start())
        roster = self._loop.run_until_complete(enrol_own(self._host, DRONES))
        shard = self._host.shards.first.state.shard
        self._feed = ColumnFeed("ground", records(SEED, STOCK_BATCHES * BATCH_RECORDS), roster, shard=shard)

    def run(self, request: Run) -> Ran:
        """One window."""
        state = self._host.shards.first.state
        records_before, acted_before = self._feed.records, self._acted
        batches = self._feed.batches(request.batches)
        position, begin_cpu_s, begin_s = state.position, time.process_time(), time.perf_counter()
        self._loop.run_until_complete(self._take(batches))
        seconds, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
        commits = state.position - position
        if self._acted != self._feed.acting:
            raise RuntimeError(f"{self._feed.acting} events cause an action, {self._acted} were carried out")
        return Ran(self._feed.records - records_before, seconds, cpu_s, commits, self._acted - acted_before)

    def close(self) -> None:
        """Stops the host, once it is on disk that all actions were carried out."""
        self._loop.run_until_complete(confirmed(self._host))
        self._loop.run_until_complete(self._host.stop())
        self._loop.close()

    async def _take(self, batches: list[bytes]) -> None:
        await run_columns(self._host, batches)
        await carried_out(self._host, self._feed.acting)

    def _act(self, orders: Orders[Any]) -> None:
        self._acted += len(orders)


def main(arguments: list[str]) -> None:
    """Runs one host."""
    folder, process, processes = arguments
    node = Node(Path(folder), int(process), int(processes))
    make_process_ours(large_commits=True)
    try:
        serve(Run, node.run)
    finally:
        node.close()


if __name__ == "__main__":
    main(sys.argv[1:])
