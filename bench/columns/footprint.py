"""Memory and recovery of compiled agents, each in a process of its own, as `bench/footprint.py` does it for others.

`python -m bench.columns.footprint TASK PATH COUNT` does one task of `_TASKS` and prints its figures. A
recovery is timed as a real start is made: files opened and checked, every digest and the signatures verified, the host
ready. The files are read once before, so that the page cache is warm. Neither imports are counted there, nor the
agents' machine code, which is loaded from a cache; `prepare` times that.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from bench.columns.rig import (
    BATCH_RECORDS,
    KIND,
    ColumnFeed,
    carried_out,
    confirmed,
    enrol,
    make_fleet,
    make_host,
    run_columns,
)
from bench.footprint import MIB, SNAPSHOT_AT_ONCE, Filled, Start, Weight, resident_mb
from bench.records import records, roll_call
from bench.rig import NO_SNAPSHOTS, in_process
from bench.workload import DRONES
from stigmergy.node.column_actuators import Orders
from stigmergy.node.host import Host
from stigmergy.shard.snapshot import digest_of_state

MODULE = "bench.columns.footprint"
STOCK_BATCHES = 80
AFTERWARDS_RECORDS = 1_000
SNAPSHOT_S_MAX = 60.0


class Prepared(Struct, frozen=True):
    """The machine code is there."""

    seconds: float
    """Until it was: compiled, or loaded from the cache."""


def prepare() -> Prepared:
    """Compiles the drones, or loads them: from then on they are in the cache."""
    return in_process(Prepared, MODULE, "prepare", ".", 0)


def weigh(path: Path, agents: int) -> Weight:
    """What a process with so many agents weighs."""
    return in_process(Weight, MODULE, "agents", path, agents)


def fill(path: Path, events: int) -> Filled:
    """Writes a journal of so many events, without a snapshot."""
    return in_process(Filled, MODULE, "fill", path, events)


def snapshot(path: Path) -> Filled:
    """Adds a few events to a journal, and a snapshot behind them."""
    return in_process(Filled, MODULE, "snapshot", path, 1)


def recover(path: Path) -> Start:
    """Times one start."""
    return in_process(Start, MODULE, "recover", path, 0)


async def _prepare(_: Path, __: int) -> Prepared:
    begin_s = time.perf_counter()
    make_fleet(_act)
    return Prepared(time.perf_counter() - begin_s)


async def _agents(path: Path, count: int) -> Weight:
    host = make_host(path, make_fleet(_act))
    await host.start()
    before_mb = resident_mb()
    roster = await enrol(host, count)
    feed = ColumnFeed("ground", roll_call(1, 0), roster)
    for start in range(0, count, BATCH_RECORDS):
        called = roll_call(start, min(BATCH_RECORDS, count - start), first=start)
        feed = ColumnFeed("ground", called, roster, sequence=feed.sequence)
        await run_columns(host, feed.batches(1))
    await confirmed(host)
    weight = Weight(before_mb=before_mb, total_mb=resident_mb(), agents=_enrolled(host))
    await host.stop()
    return weight


async def _fill(path: Path, events: int) -> Filled:
    host = make_host(path, make_fleet(_act), NO_SNAPSHOTS)
    await host.start()
    roster = await enrol(host, DRONES)
    batches, rest = divmod(events, BATCH_RECORDS)
    feed = ColumnFeed("ground", records(2, STOCK_BATCHES * BATCH_RECORDS), roster)
    for done in range(0, batches, STOCK_BATCHES):
        await run_columns(host, feed.batches(min(STOCK_BATCHES, batches - done)))
    if rest:
        last = ColumnFeed("ground", records(3, rest), roster, sequence=feed.sequence)
        await run_columns(host, last.batches(1))
        feed.acting += last.acting
    await carried_out(host, feed.acting)
    return await _left(host)


async def _snapshot(path: Path, _: int) -> Filled:
    host = make_host(path, make_fleet(_act), SNAPSHOT_AT_ONCE)
    await host.start()
    made = records(3, AFTERWARDS_RECORDS)
    await run_columns(host, ColumnFeed("afterwards", made, host.columns.roster(KIND).shards[0]).batches(1))
    async with asyncio.timeout(SNAPSHOT_S_MAX):
        while not host.housekeeper.counters.snapshots:
            await asyncio.sleep(0.01)
            if host.failure is not None:
                raise host.failure
    return await _left(host)


async def _recover(path: Path, _: int) -> Start:
    _read_all(path)
    fleet = make_fleet(_act)
    begin_s = time.perf_counter()
    host = make_host(path, fleet, NO_SNAPSHOTS)
    await host.start()
    seconds = time.perf_counter() - begin_s
    recovered = host.recovered
    start = Start(
        seconds=seconds,
        commits=recovered.commits,
        events=recovered.events,
        agents=_enrolled(host),
        signatures=recovered.signatures,
        from_snapshot=bool(recovered.snapshots),
        digest=digest_of_state(recovered.states[0]).hex(),
    )
    await host.stop()
    return start


async def _left(host: Host) -> Filled:
    """Stops the host; what state it leaves."""
    await confirmed(host)
    await host.stop()
    return Filled(digest=digest_of_state(host.shards[0].state).hex(), agents=_enrolled(host))


def _read_all(folder: Path) -> None:
    for one in sorted(folder.rglob("*")):
        if one.is_file():
            with one.open("rb") as file:
                while file.read(MIB):
                    pass


def _enrolled(host: Host) -> int:
    return host.shards[0].state.enrolled[KIND]


def _act(_: Orders[Any]) -> None:
    """An actuator that is always done at once."""


_TASKS = {"prepare": _prepare, "agents": _agents, "fill": _fill, "snapshot": _snapshot, "recover": _recover}


def main(arguments: list[str]) -> None:
    """Does one task and prints its figures."""
    task, path, count = arguments
    figures: Struct = asyncio.run(_TASKS[task](Path(path), int(count)))
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
