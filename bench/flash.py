"""What a node writes to its disk, by the promise that its events make; an hour of it in seconds.

`python -m bench.flash KEEP HZ SECONDS PATH` runs the shipping host on a real file of SQLite in virtual time,
with one agent that observes at a steady rate, and prints what the kernel counts for the process (`write_bytes`: pages
sent towards the device; the file system's own journal is not in it). The mark beside the database is never synced: the
kernel writes its page back by itself about every five seconds, which in virtual time it has no occasion to do, so that
is added.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Event, durable, latest, transient, within
from stigmergy.journal.port import JournalIdentity
from stigmergy.journal.sqlite import open_journal
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import open_host
from stigmergy.sim.loop import SimClock, VirtualLoop

PAGE_BYTES = 4096
WRITEBACK_S = 5.0
TIMEOUT_S = 600.0
SEED = bytes(range(32))


class DurableRead(Event, keep=durable):
    """A measurement that is on disk before anything follows from it."""

    percent: float
    volts: float


class WithinRead(Event, keep=within(seconds=1)):
    """A measurement that may wait a second for the disk."""

    percent: float
    volts: float


class LatestRead(Event, keep=latest):
    """A measurement of which only the newest counts."""

    percent: float
    volts: float


class TransientRead(Event, keep=transient):
    """A measurement that is never stored."""

    percent: float
    volts: float


Reading = DurableRead | WithinRead | LatestRead | TransientRead
KINDS: dict[str, type[Reading]] = {
    "durable": DurableRead,
    "within": WithinRead,
    "latest": LatestRead,
    "transient": TransientRead,
}


class Gauge(Agent):
    """One battery."""

    percent: float = 100.0
    volts: float = 0.0

    @evolve
    def durable_read(self, event: DurableRead) -> None:
        self.percent, self.volts = event.percent, event.volts

    @evolve
    def within_read(self, event: WithinRead) -> None:
        self.percent, self.volts = event.percent, event.volts

    @evolve
    def latest_read(self, event: LatestRead) -> None:
        self.percent, self.volts = event.percent, event.volts

    @decide
    def transient_read(self, event: TransientRead) -> Events:
        if event.percent < 0:
            yield DurableRead(percent=event.percent, volts=event.volts)


class Written(Struct, frozen=True):
    """What one run has cost."""

    bytes_written: int
    commits: int
    events: int
    cpu_us_per_event: float


def write_for(keep: str, hz: float, seconds: float, folder: Path) -> Written:
    """A run in a process of its own, so that the kernel's count is of nothing else."""
    path = folder / f"{keep}-{hz:g}.db"
    command = [sys.executable, "-m", "bench.flash", keep, str(hz), str(seconds), str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True)
    return msgspec.json.decode(done.stdout, type=Written)


async def _observe(loop: VirtualLoop, kind: type[Reading], hz: float, seconds: float, path: Path) -> Written:
    journal = open_journal(f"sqlite:{path}", JournalIdentity(fleet="edge", shards=1, incarnation=1), inline=True)
    fleet = Declaration("edge", agents=[Gauge])
    host = open_host(fleet, journal, Ed25519Signer(SEED), Ed25519Verifier(), SimClock(loop))
    await host.start()
    await asyncio.sleep(1.0)
    before_bytes, before_position = _write_bytes(), host.shards[0].state.position
    begin_s = time.process_time()
    events = int(hz * seconds)
    for number in range(events):
        _ = host.intake.observe("Gauge/1", kind(percent=100 - number * 0.001, volts=12.6))
        await asyncio.sleep(1 / hz)
    cpu_s = time.process_time() - begin_s
    commits = host.shards[0].state.position - before_position
    marks = min(commits, int(seconds / WRITEBACK_S))
    written = Written(
        bytes_written=_write_bytes() - before_bytes + marks * PAGE_BYTES,
        commits=commits,
        events=events,
        cpu_us_per_event=cpu_s / events * 1e6,
    )
    await host.stop()
    return written


def _write_bytes() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise RuntimeError("the kernel does not say what this process has written")


def main(arguments: list[str]) -> None:
    """Does one run and prints its figures."""
    keep, hz, seconds, path = arguments
    loop = VirtualLoop(seed=1, deadline_s=10 * float(seconds) + 3600)
    written = loop.run(_observe(loop, KINDS[keep], float(hz), float(seconds), Path(path)))
    print(msgspec.json.encode(written).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
