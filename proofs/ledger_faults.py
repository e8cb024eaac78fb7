"""Row 12: histories of a ledger on real NATS servers, under kill -9, SIGSTOP and cut links, are linearizable.

python -m proofs ledger_faults [--quick]

Several processes append to a ledger, read it and claim through another one, each writing down what it was told. Every
round does something else to the servers, to their links, or to the processes; then everything heals, the whole log is
read, and the histories are checked (`testing/linearizability.py`).
"""

from __future__ import annotations

import asyncio
import collections
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct, field

from proofs.report import Proof
from rigs.ledger_client import LOG, read_history, signer_of
from rigs.parted_cluster import PartedCluster
from stigmergy.base.errors import LedgerError
from stigmergy.nats.ledger import open_ledger
from stigmergy.nats.naming import ledger_stream
from stigmergy.testing.linearizability import Append, OperationOutcome, Read, holding_violations, log_violations

ROUNDS = 100
ROUNDS_OF_FIVE = 20
"""With five servers; the others with three."""
ROUNDS_QUICK = 3
CLIENTS = ("one", "two", "three")
CALM_S = 2.0
FAULT_S = 6.0
HEALED_S = 4.0
HEAL_S_MAX = 60.0


class Round(Struct):
    """What one round has shown."""

    fault: str
    operations: collections.Counter[str] = field(default_factory=collections.Counter)
    holds: int = 0
    violations: list[str] = field(default_factory=list)


class Crowd:
    """The processes of a round."""

    def __init__(self, url: str, place: str, folder: Path) -> None:
        self._url, self._place, self._folder = url, place, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lives: dict[str, int] = dict.fromkeys(CLIENTS, 0)

    def start(self, name: str) -> None:
        """Another life of this one."""
        self._lives[name] += 1
        arguments = [self._url, self._place, name, str(self._lives[name]), str(self._folder), ",".join(CLIENTS)]
        with (self._folder / f"{name}.errors").open("ab") as errors:
            command = [sys.executable, "-m", "rigs.ledger_client", *arguments]
            self._running[name] = subprocess.Popen(command, stderr=errors)

    def kill(self, name: str) -> None:
        """At once, whatever it is doing."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def kill_all(self) -> list[str]:
        """Ends the round; says who was gone before."""
        gone = [name for name, process in self._running.items() if process.poll() is not None]
        for name in list(self._running):
            self.kill(name)
        return [f"{name} has ended: {(self._folder / f'{name}.errors').read_text()[-600:]}" for name in gone]


class Scene:
    """A cluster with its leader, and a crowd: what may happen to them. Every fault ends by itself."""

    def __init__(self, cluster: PartedCluster, crowd: Crowd, leader: int, draw: random.Random) -> None:
        self.cluster = cluster
        self.crowd = crowd
        self.leader = leader
        self.draw = draw

    async def kill_leader(self) -> None:
        self.cluster.rig.kill(self.leader)
        await asyncio.sleep(FAULT_S)
        self.cluster.rig.start_again(self.leader, wait=False)

    async def kill_leader_shortly(self) -> None:
        for _ in range(2):
            self.cluster.rig.kill(self.leader)
            await asyncio.sleep(self.draw.uniform(0.1, 1.0))
            self.cluster.rig.start_again(self.leader, wait=False)
            await asyncio.sleep(FAULT_S / 2)

    async def pause_leader(self) -> None:
        self.cluster.rig.pause(self.leader)
        await asyncio.sleep(FAULT_S * self.draw.uniform(0.3, 1.6))
        self.cluster.rig.resume(self.leader)

    async def pause_follower(self) -> None:
        other = (self.leader + 1) % len(self.cluster.rig.servers)
        self.cluster.rig.pause(other)
        await asyncio.sleep(FAULT_S / 2)
        self.cluster.rig.resume(other)

    async def part_leader(self) -> None:
        """Clients reach it, the other servers do not: it believes to lead for a while."""
        self.cluster.part([self.leader])
        await asyncio.sleep(FAULT_S * 1.6)
        self.cluster.heal()

    async def part_all(self) -> None:
        """Without a majority."""
        for number in range(len(self.cluster.rig.servers)):
            self.cluster.part([number])
        await asyncio.sleep(FAULT_S)
        self.cluster.heal()

    async def cut_pair(self) -> None:
        """The leader and one other do not hear each other; the third hears both."""
        self.cluster.cut_pair(self.leader, (self.leader + 1) % len(self.cluster.rig.servers))
        await asyncio.sleep(FAULT_S * 1.4)
        self.cluster.heal()

    async def cut_clients(self) -> None:
        for _ in range(3):
            number = self.draw.randrange(len(self.cluster.rig.servers))
            cut = self.draw.choice([self.cluster.cut_clients, self.cluster.stall_clients])
            cut(number)
            await asyncio.sleep(FAULT_S / 3)
            self.cluster.heal()

    async def kill_client(self) -> None:
        for _ in range(3):
            name = self.draw.choice(CLIENTS)
            self.crowd.kill(name)
            await asyncio.sleep(FAULT_S / 6)
            self.crowd.start(name)
            await asyncio.sleep(FAULT_S / 6)

    async def kill_two(self) -> None:
        """Without a majority, and what is not synced is gone."""
        count = len(self.cluster.rig.servers)
        gone = [(self.leader + number) % count for number in range(count // 2 + 1)]
        for number in gone:
            self.cluster.rig.kill(number)
        await asyncio.sleep(FAULT_S / 2)
        for number in gone:
            self.cluster.rig.start_again(number, wait=False)


FAULTS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "leader killed": Scene.kill_leader,
    "leader parted": Scene.part_leader,
    "leader paused": Scene.pause_leader,
    "leader killed twice, back at once": Scene.kill_leader_shortly,
    "two of the servers do not hear each other": Scene.cut_pair,
    "clients cut off": Scene.cut_clients,
    "clients killed": Scene.kill_client,
    "no majority": Scene.part_all,
    "majority killed": Scene.kill_two,
    "follower paused": Scene.pause_follower,
}


async def run_round(cluster: PartedCluster, number: int, fault: str, folder: Path) -> Round:
    """One fault, and what the histories say."""
    place, found = f"round-{number}", Round(fault)
    folder.mkdir()  # noqa: ASYNC240 - nothing else runs yet
    replicas = len(cluster.rig.servers)
    crowd = Crowd(f"{cluster.url}?replicas={replicas}", place, folder)
    draw = random.Random(f"ledger faults {number}")
    for name in CLIENTS:
        crowd.start(name)
    try:
        leader = await _wait_leader(cluster, place, folder)
        await asyncio.sleep(CALM_S)
        await FAULTS[fault](Scene(cluster, crowd, leader, draw))
        cluster.heal()
        await asyncio.sleep(HEALED_S)
    finally:
        found.violations += crowd.kill_all()
    log = await _read_log(cluster, place)
    history, holds = read_history(folder)
    for one in history:
        match one:
            case Append(outcome=outcome):
                found.operations[outcome.value] += 1
            case Read(is_fresh=is_fresh):
                found.operations["reads" if is_fresh else "reads behind"] += 1
    found.holds = len(holds)
    found.violations += [
        f"{fault}: {sentence}" for sentence in log_violations(history, log) + holding_violations(holds)
    ]
    return found


async def _wait_leader(cluster: PartedCluster, place: str, folder: Path) -> int:
    """Waits until both ledgers are there and all clients have done something."""
    deadline_s = time.monotonic() + HEAL_S_MAX
    while time.monotonic() < deadline_s:
        try:
            leader = await cluster.rig.leader_of(ledger_stream(f"{place}-{LOG}"))
        except Exception:  # not there yet
            leader = None
        if leader is not None and all((folder / f"{name}-1.lines").exists() for name in CLIENTS):
            return leader
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{place}: nobody leads the ledger")


async def _read_log(cluster: PartedCluster, place: str) -> list[tuple[int, bytes]]:
    """The whole log, once the servers are well again."""
    deadline_s = time.monotonic() + HEAL_S_MAX
    keys = [signer_of(name).public_key for name in CLIENTS]
    name = f"{place}-{LOG}"
    while True:
        ledger = open_ledger(f"{cluster.url}/{name}?replicas={len(cluster.rig.servers)}", name, trusted=keys)
        try:
            log: list[tuple[int, bytes]] = []
            while found := await ledger.read(log[-1][0] if log else 0):
                log += [(entry.position, entry.body) for entry in found]
            return log
        except LedgerError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.2)
        finally:
            await ledger.close()


async def run(rounds: int, nodes: int = 3, faults: list[str] | None = None) -> list[Round]:
    """So many rounds on one cluster."""
    chosen = faults or list(FAULTS)
    found: list[Round] = []
    with tempfile.TemporaryDirectory() as folder:
        cluster = await PartedCluster.start(Path(folder) / "servers", nodes=nodes)
        async with cluster:
            for number in range(rounds):
                one = await run_round(cluster, number, chosen[number % len(chosen)], Path(folder) / f"round-{number}")
                found.append(one)
                print(f"  {number + 1}/{rounds} {one.fault}: {dict(one.operations)}, {one.holds} held", file=sys.stderr)
    return found


def prove(*, quick: bool = False) -> Proof:
    """The proof as `make prove` runs it."""
    found = asyncio.run(run(ROUNDS_QUICK if quick else ROUNDS))
    if not quick:
        found += asyncio.run(run(ROUNDS_OF_FIVE, nodes=5))
    operations: collections.Counter[str] = collections.Counter()
    faults: collections.Counter[str] = collections.Counter()
    for one in found:
        operations.update(one.operations)
        faults[one.fault] += 1
    held = sum(one.holds for one in found)
    violations = [sentence for one in found for sentence in one.violations]
    if not operations[OperationOutcome.COMMITTED.value] or not held:
        violations.append("nothing was committed, or nothing was held: nothing was proved")
    return Proof(
        name="ledger_faults",
        promise="what several processes saw of a ledger under faults has one order, and nothing was held by two",
        cases=sum(operations.values()) + held,
        violations=violations,
        figures={
            "rounds": len(found),
            "operations": dict(operations),
            "held": held,
            "faults": [f"{name}: {count}" for name, count in faults.items()],
        },
    )


if __name__ == "__main__":
    for each in asyncio.run(run(int(sys.argv[1]), nodes=int(sys.argv[2]), faults=sys.argv[3:] or None)):
        for violation in each.violations:
            print(violation)
