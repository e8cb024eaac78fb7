"""Memory and recovery, each in a process of its own, so that nothing of one run weighs on another.

`python -m bench.footprint agents|fill|snapshot|recover PATH COUNT` does one of them and prints its figures.
A recovery is timed as a real start is made: the file opened and checked, every digest and the signatures verified, the
host ready. The file is read once before, so that the page cache is warm; imports are not counted.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from bench.rig import NO_SNAPSHOTS, in_process, make_host, open_file
from bench.throughput import run_host
from bench.workload import BATCH_EVENTS, Feed, reports, roll_call
from stigmergy.agents.effects import Order
from stigmergy.node.settings import Settings, Snapshots
from stigmergy.shard.snapshot import digest_of_state

MIB = 1024 * 1024
STOCK_EVENTS = 100_000
SNAPSHOT_AT_ONCE = Settings(snapshots=Snapshots(every_events=1, tail_ratio=0.0))
MODULE = "bench.footprint"


class Weight(Struct, frozen=True):
    """The resident memory of a whole process."""

    before_mb: float
    """With everything imported and the host running, before the first agent."""
    total_mb: float
    """With every agent there, each after its first event; all of the process is counted, Python included."""
    agents: int


class Filled(Struct, frozen=True):
    """A journal was written."""

    digest: str
    """Of the state at its end."""
    agents: int


class Start(Struct, frozen=True):
    """One start from a file."""

    seconds: float
    commits: int
    events: int
    agents: int
    signatures: int
    from_snapshot: bool
    digest: str


def weigh(folder: Path, agents: int) -> Weight:
    """What a process with so many agents weighs."""
    return in_process(Weight, MODULE, "agents", folder / "agents.db", agents)


def fill(path: Path, events: int) -> Filled:
    """Writes a journal of so many events, in commits of a batch each, without a snapshot."""
    return in_process(Filled, MODULE, "fill", path, events)


def snapshot(path: Path) -> Filled:
    """Adds one batch to a journal, and a snapshot behind it."""
    return in_process(Filled, MODULE, "snapshot", path, 1)


def recover(path: Path) -> Start:
    """Times one start."""
    return in_process(Start, MODULE, "recover", path, 0)


async def _agents(path: Path, count: int) -> Weight:
    host = make_host(open_file(path), _act)
    await host.start()
    before_mb = resident_mb()
    for start in range(0, count, BATCH_EVENTS):
        batch = Feed(f"ground-{start}", roll_call(start, min(BATCH_EVENTS, count - start), first=start))
        await run_host(host, batch.envelopes(1))
    agents = len(host.shards[0].state.agents)
    weight = Weight(before_mb=before_mb, total_mb=resident_mb(), agents=agents)
    await host.stop()
    return weight


async def _fill(path: Path, events: int) -> Filled:
    host = make_host(open_file(path), _act, NO_SNAPSHOTS)
    await host.start()
    feed = Feed("ground", reports(2, min(events, STOCK_EVENTS)))
    await run_host(host, feed.envelopes(events // BATCH_EVENTS))
    await host.stop()
    state = host.shards[0].state
    return Filled(digest=digest_of_state(state).hex(), agents=len(state.agents))


async def _snapshot(path: Path, _: int) -> Filled:
    host = make_host(open_file(path), _act, SNAPSHOT_AT_ONCE)
    await host.start()
    await run_host(host, Feed("afterwards", reports(3, BATCH_EVENTS)).envelopes(1))
    while not host.housekeeper.counters.snapshots:
        await asyncio.sleep(0.01)
        if host.failure is not None:
            raise host.failure
    await host.stop()
    state = host.shards[0].state
    return Filled(digest=digest_of_state(state).hex(), agents=len(state.agents))


async def _recover(path: Path, _: int) -> Start:
    with path.open("rb") as file:
        while file.read(MIB):
            pass
    begin = time.perf_counter()
    host = make_host(open_file(path), _act, NO_SNAPSHOTS)
    await host.start()
    seconds = time.perf_counter() - begin
    recovered = host.recovered
    state = recovered.states[0]
    start = Start(
        seconds=seconds,
        commits=recovered.commits,
        events=recovered.events,
        agents=len(state.agents),
        signatures=recovered.signatures,
        from_snapshot=bool(recovered.snapshots),
        digest=digest_of_state(state).hex(),
    )
    await host.stop()
    return start


def resident_mb() -> float:
    """The resident set of this process, as the kernel counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not say how much memory this process has")


def _act(_: Order[Any]) -> None:
    """An actuator that is always done at once."""


_TASKS = {"agents": _agents, "fill": _fill, "snapshot": _snapshot, "recover": _recover}


def main(arguments: list[str]) -> None:
    """Does one task and prints its figures."""
    task, path, count = arguments
    figures: Struct = asyncio.run(_TASKS[task](Path(path), int(count)))
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
