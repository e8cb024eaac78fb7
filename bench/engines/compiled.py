"""The host with compiled agents on segments, growing. Needs the extra [compiled].

What an event costs grows with the fleet for one reason, caches: an agent is a row of 40 bytes, and events come of
random ones. The rows of some 10,000 agents fit into a core's own cache, those of 100,000 into the one that cores
share, those of a million into neither, so that each event waits for the memory once. Nothing else looks at the fleet.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bench.columns.footprint import recover
from bench.columns.footprint import snapshot as take_snapshot
from bench.columns.rig import BATCH_RECORDS, KIND, ColumnFeed, confirmed, enrol, make_fleet, make_host, run_columns
from bench.footprint import Start
from bench.records import records, roll_call
from bench.rig import NO_SNAPSHOTS, SHARED_LOOP
from stigmergy.node.column_actuators import Orders

STOCK_BATCHES = 80


class CompiledGrowing:
    """A host whose event loop runs while it has something to take."""

    def __init__(self, path: Path, *, snapshots: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._host = make_host(path, make_fleet(_act), SHARED_LOOP if snapshots else NO_SNAPSHOTS)
        self._loop.run_until_complete(self._host.start())
        self._feeds: dict[tuple[int, int, int], ColumnFeed] = {}
        self._position = self._host.shards[0].state.position
        """Makes the names of our sources new after each start: they count from 1."""

    def enrol(self, agents: int) -> None:
        """Enrols them, and takes one event of each."""
        roster = self._loop.run_until_complete(enrol(self._host, agents))
        for first in range(0, agents, BATCH_RECORDS):
            called = roll_call(first, min(BATCH_RECORDS, agents - first), first=first)
            self.take(ColumnFeed(f"call-{self._position}-{first}", called, roster).batches(1))

    def prepare(self, seed: int, events: int, agents: int) -> list[bytes]:
        """Batches, numbered on: whole ones, and a last one with what is left."""
        whole, rest = divmod(events, BATCH_RECORDS)
        batches = self._feed(seed, agents, BATCH_RECORDS).batches(whole)
        return batches + (self._feed(seed, agents, rest).batches(1) if rest else [])

    def take(self, prepared: list[bytes]) -> None:
        """Until everything is durable."""
        self._loop.run_until_complete(run_columns(self._host, prepared))

    def close(self) -> None:
        """Stops the host, once it is on disk that all actions were carried out."""
        self._loop.run_until_complete(confirmed(self._host))
        self._loop.run_until_complete(self._host.stop())
        self._loop.close()

    def _feed(self, seed: int, agents: int, batch_records: int) -> ColumnFeed:
        feed = self._feeds.get((seed, agents, batch_records))
        if feed is None:
            stock = records(seed, STOCK_BATCHES * batch_records, drones=agents)
            source = f"ground-{self._position}-{seed}-{agents}-{batch_records}"
            roster = self._host.columns.roster(KIND).shards[0]
            feed = self._feeds[seed, agents, batch_records] = ColumnFeed(source, stock, roster, batch_records)
        return feed


def enter(path: Path, *, snapshots: bool) -> CompiledGrowing:
    """A host on the journal in this folder."""
    return CompiledGrowing(path, snapshots=snapshots)


def snapshot(path: Path) -> None:
    """Adds a few events, and a snapshot behind them."""
    take_snapshot(path)


def start(path: Path) -> Start:
    """Times one start."""
    return recover(path)


def _act(_: Orders[Any]) -> None:
    """An actuator that is always done at once."""
