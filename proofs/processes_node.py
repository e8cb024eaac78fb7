"""What runs in the processes that `proofs.processes` kills: agents that tell each other, and who forks them.

    python -m proofs.processes_node FOLDER SCHEME PROCESSES

It reads the number of a process from each line of its input, forks that process, and says its pid. Forking one that
has imported everything takes milliseconds, where starting another takes a second.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

from stigmergy import Agent, Command, Effects, Event, Events, Fleet, Settings, Snapshots, Tell, decide, evolve, react
from stigmergy.app.config import Config
from stigmergy.app.fleet import Running
from stigmergy.network.shares import Share

SHARDS = 6


class Count(Command):
    """Counts, and tells another agent of it."""

    number: int
    to: str


class Counted(Event):
    """It has counted."""

    number: int
    to: str


class Heard(Event):
    """Another agent has said that it has counted."""

    by: str
    number: int


class Relay(Agent):
    """Counts and hears."""

    counted: int = 0
    heard: int = 0

    @decide
    def count(self, command: Count) -> Events:
        """Every command is accepted."""
        yield Counted(number=command.number, to=command.to)

    @evolve
    def was_counted(self, event: Counted) -> None:
        """One more."""
        self.counted += 1

    @react
    def pass_on(self, event: Counted) -> Effects:
        """Tells whoever it is for."""
        yield Tell(event.to, Heard(by=self.address, number=event.number))

    @evolve
    def was_heard(self, event: Heard) -> None:
        """One more."""
        self.heard += 1


fleet = Fleet(
    "relays",
    agents=[Relay],
    shards=SHARDS,
    settings=Settings(snapshots=Snapshots(every_events=100, tail_ratio=0.0), drain_s=2.0),
)


def url_of(folder: Path, scheme: str) -> str:
    """Where the processes of a folder keep their parts."""
    return f"sqlite:{folder / 'relays.db'}" if scheme == "sqlite" else f"segments:{folder / 'relays'}"


async def live(folder: Path, scheme: str, share: Share) -> None:
    """One life of a process, until it is killed or told to stop."""
    stopping = asyncio.Event()
    running = Running(fleet, Config(), url_of(folder, scheme), folder / "relays.key", None, share=share)
    async with running as node:
        server = running.control(node, running.socket, "proof", stopping.set)
        await server.start()
        failing = asyncio.ensure_future(node.wait_failure())
        ending = asyncio.ensure_future(stopping.wait())
        await asyncio.wait([failing, ending], return_when=asyncio.FIRST_COMPLETED)
        await server.close()
        if failing.done():
            print(f"process {share.process} failed: {failing.result()}", file=sys.stderr, flush=True)


def main() -> int:
    """Forks processes."""
    folder, scheme, processes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to wait for the dead
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                asyncio.run(live(folder, scheme, Share(int(line), processes, SHARDS)))
            except BaseException as error:
                print(f"process {line.strip()} ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(pid, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
