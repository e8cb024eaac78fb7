"""The host with ordinary agents on SQLite, growing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bench.footprint import Start, recover
from bench.footprint import snapshot as take_snapshot
from bench.rig import NO_SNAPSHOTS, SHARED_LOOP, make_host, open_file
from bench.throughput import run_host
from bench.workload import BATCH_EVENTS, Feed, reports, roll_call
from stigmergy.agents.effects import Order

STOCK_EVENTS = 200_000


class InterpretedGrowing:
    """A host whose event loop runs while it has something to take."""

    def __init__(self, path: Path, *, snapshots: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._host = make_host(open_file(path), _act, SHARED_LOOP if snapshots else NO_SNAPSHOTS)
        self._loop.run_until_complete(self._host.start())
        self._feeds: dict[tuple[int, int], Feed] = {}
        self._position = self._host.shards[0].state.position
        """Makes the names of our sources new after each start: they count from 1."""

    def enrol(self, agents: int) -> None:
        """In batches, each from a source of its own."""
        for first in range(0, agents, BATCH_EVENTS):
            count = min(BATCH_EVENTS, agents - first)
            self.take(Feed(f"call-{self._position}-{first}", roll_call(first, count, first=first)).envelopes(1))

    def prepare(self, seed: int, events: int, agents: int) -> list[bytes]:
        """Envelopes, numbered on."""
        feed = self._feeds.get((seed, agents))
        if feed is None:
            stock = reports(seed, STOCK_EVENTS, drones=agents)
            feed = self._feeds[seed, agents] = Feed(f"ground-{self._position}-{seed}-{agents}", stock)
        return feed.envelopes(events // BATCH_EVENTS)

    def take(self, prepared: list[bytes]) -> None:
        """Until everything is durable."""
        self._loop.run_until_complete(run_host(self._host, prepared))

    def close(self) -> None:
        """Stops the host."""
        self._loop.run_until_complete(self._host.stop())
        self._loop.close()


def enter(path: Path, *, snapshots: bool) -> InterpretedGrowing:
    """A host on the journal in this file."""
    return InterpretedGrowing(path, snapshots=snapshots)


def snapshot(path: Path) -> None:
    """Adds a batch, and a snapshot behind it."""
    take_snapshot(path)


def start(path: Path) -> Start:
    """Times one start."""
    return recover(path)


def _act(_: Order[Any]) -> None:
    """An actuator that is always done at once."""
