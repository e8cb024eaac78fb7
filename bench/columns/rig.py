"""A whole host with compiled drones on segments, and the batches that a producer sends to it."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.records import Records, acting
from bench.rig import FLEET, IDENTITY, SEED
from bench.workload import Descend, Drone, Land
from stigmergy.app.fleet import Fleet
from stigmergy.base.system import SystemClock
from stigmergy.journal import segments
from stigmergy.journal.port import JournalIdentity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.column_actuators import Orders
from stigmergy.node.column_roster import ShardRoster
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host, open_host
from stigmergy.node.settings import Settings
from stigmergy.shard.batches import BATCH_FORMAT, BatchHeader, pack_batch

KIND = Drone.__agent_kind__
BATCH_RECORDS = 13_312
"""416 KiB of records: what fits well below the largest message of a bus or ring."""
BATCHES_IN_FLIGHT = 32
"""A commit takes ten of them; one commit is on its way to the disk, one is sealed, one is filled."""
ENROLLED = 50_000
"""Agents that are enrolled with one call: nobody needs a list of a million names."""
SETTLE_S_MAX = 60.0


def make_host(path: Path, fleet: Declaration, settings: Settings | None = None, shard: int | None = None) -> Host:
    """A host on the segments in this folder; with a shard, one of several that have a shard of the fleet each."""
    identity = JournalIdentity(FLEET, fleet.shards, IDENTITY.incarnation, None if shard is None else (shard, shard))
    journal = segments.open_journal(f"segments:{path}", identity)
    return open_host(fleet, journal, Ed25519Signer(SEED), Ed25519Verifier(), SystemClock(), settings)


Act = Callable[[Orders[Any]], None]
"""Carries out all actions of one type in a commit."""


def make_fleet(descend: Act, land: Act | None = None, shards: int = 1) -> Declaration:
    """The drones, compiled, and who carries out their actions: one for both, or each its own.

    What takes long is said on stderr, and taken from the disk the next time.
    """
    fleet = Fleet(FLEET, agents=[Drone], compiled=True, shards=shards)
    fleet.batch_actuator(Descend)(descend)
    fleet.batch_actuator(Land)(land or descend)
    fleet.prepare(_say)
    return fleet


async def enrol_own(host: Host, agents: int) -> ShardRoster:
    """Enrols so many drones that live in the one shard of this host; what batches for them must name."""
    own, homes = host.shards.first.state.shard, host.declaration.homes
    names = (name for number in itertools.count() if homes.of(f"{KIND}/{(name := f'D-{number}')}") == own)
    await host.columns.enroll(KIND, list(itertools.islice(names, agents)))
    return host.columns.roster(KIND).shards[own]


async def enrol(host: Host, agents: int, first: int = 0) -> ShardRoster:
    """Enrols the drones with these numbers, if they are not there yet; what batches for them must name."""
    for start in range(first, first + agents, ENROLLED):
        await host.columns.enroll(KIND, [f"D-{one}" for one in range(start, min(start + ENROLLED, first + agents))])
    return host.columns.roster(KIND).shards[0]


class ColumnFeed:
    """The batches of one source: consecutive sequences, batch after batch, from a stock of records used in turn."""

    def __init__(
        self,
        source: str,
        stock: Records,
        roster: ShardRoster,
        batch_records: int = BATCH_RECORDS,
        sequence: int = 1,
        shard: int = 0,
    ) -> None:
        self._source = source
        self._roster = roster
        self._shard = shard
        starts = range(0, len(stock), batch_records)
        acts = np.add.reduceat(acting(stock), list(starts), dtype=np.int64).tolist()
        data, size = stock.view(np.uint8).data, stock.itemsize
        self._parts = [
            (min(batch_records, len(stock) - start), data[start * size : (start + batch_records) * size], acting_here)
            for start, acting_here in zip(starts, acts, strict=True)
        ]
        self._next = 0
        self.sequence = sequence
        """Of the next record."""
        self.records = 0
        """How many were handed out."""
        self.acting = 0
        """How many of these cause an action."""

    def batches(self, count: int) -> list[bytes]:
        """The next batches, as bytes."""
        return list(self._take(count))

    def _take(self, count: int) -> Iterator[bytes]:
        named = (self._shard, KIND, self._roster.layout, self._roster.generation, self._roster.check)
        for _ in range(count):
            length, data, acts = self._parts[self._next % len(self._parts)]
            header = BatchHeader(BATCH_FORMAT, self._source, 1, 0, self.sequence, 0, *named, length)
            yield pack_batch(header, data)
            self._next += 1
            self.sequence += length
            self.records += length
            self.acting += acts


async def run_columns(host: Host, batches: Sequence[bytes]) -> None:
    """Delivers batches with a bounded number of them not yet acknowledged; returns when all are durable."""
    waiting: deque[asyncio.Future[None]] = deque()
    for data in batches:
        if len(waiting) >= BATCHES_IN_FLIGHT:
            await waiting.popleft()
        waiting.append(host.columns.deliver(data))
    while waiting:
        await waiting.popleft()


async def carried_out(host: Host, actions: int) -> None:
    """Waits until so many actions, of all since the start, were carried out."""
    async with asyncio.timeout(SETTLE_S_MAX):
        while host.batched_actuators.counters.batched_done < actions:
            _check(host)
            await asyncio.sleep(0)


async def confirmed(host: Host) -> None:
    """Waits until it is on disk that everything was carried out."""
    async with asyncio.timeout(SETTLE_S_MAX):
        while host.shards.first.state.blocks.count or not host.committer.idle:
            _check(host)
            await asyncio.sleep(0.001)


def _check(host: Host) -> None:
    counters = host.batched_actuators.counters
    if host.failure is not None:
        raise host.failure
    if counters.batched_failed or counters.batched_retries:
        raise RuntimeError(f"{counters.batched_failed} actions failed: {host.batched_actuators.trouble}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
