"""A tiny network of machines for tests: loss, doubles, reordering, cuts and crashes from one seed, without asyncio."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from stigmergy.agents.shared import replica_id, replica_seed
from stigmergy.crdt.anti_entropy.authorship import NodeIdentity, Trust
from stigmergy.crdt.anti_entropy.held_object import PendingMerge
from stigmergy.crdt.anti_entropy.machine import AntiEntropy
from stigmergy.crdt.anti_entropy.rules import MILLISECOND_NS, SECOND_NS, ClockReading, Rules
from stigmergy.crdt.delta import Delta, Edit, read_delta
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.pncounter import PNCounter
from stigmergy.crdt.store import EMPTY, ReplicaStore, mint, read_store
from stigmergy.crdt.value import SharedValue

FLEET = "tests"
OBJECT = "Thing.seen/all"
HOST_NS = 2 * MILLISECOND_NS
"""What it takes the host to make something durable."""
START_NS = 1_800_000_000 * SECOND_NS


def id_of(key: bytes, incarnation: int, address: str) -> bytes:
    return replica_id(replica_seed(FLEET, key, incarnation), address)


def toy_signature(key: bytes, statement: bytes) -> bytes:
    """Not secret at all, and quick: for tests in which nobody forges."""
    return blake3(key + statement).digest()


def toy_trust(key: bytes, trusted: frozenset[bytes] | None = None) -> Trust:
    return Trust(
        sign=lambda statement: toy_signature(key, statement),
        verify=lambda algorithm, key, statement, signature: signature == toy_signature(key, statement),
        acceptable=lambda algorithm, key: None,
        id_of=id_of,
        trusted=trusted,
    )


class Replica:
    """One replica at one node, with its durable store."""

    def __init__(self, name: str, address: str, replica: bytes) -> None:
        self.name = name
        self.address = address
        self.id = replica
        self.store = EMPTY


class Member:
    """A node: a machine, and a host whose disk survives crashes."""

    def __init__(self, fleet: Fleet, name: str, incarnation: int = 1) -> None:
        self.fleet = fleet
        self.name = name
        self.key = name.encode().ljust(32, b"\0")
        self.incarnation = incarnation
        self.replicas: dict[tuple[str, bytes], Replica] = {}
        self.kind: dict[str, Any] = {}
        self.clock_off_ns = 0
        self.up = False
        self.machine: AntiEntropy = None  # type: ignore[assignment]
        self.life = 0
        self.declines: Callable[[PendingMerge], bool] = lambda hand: False
        self.merges = True
        """Otherwise its host is done with what it gets, and has not taken it."""

    @property
    def moment(self) -> ClockReading:
        now_ns = self.fleet.now_ns
        return ClockReading(now_ns, START_NS + now_ns + self.clock_off_ns)

    def start(self) -> None:
        fleet = self.fleet
        node = NodeIdentity(FLEET, self.name, 1, self.key, self.incarnation)
        self.life += 1
        self.machine = AntiEntropy(
            node,
            fleet.trust(self.key),
            lambda count, of: fleet.chance.sample(range(of), count),
            fleet.bytes_max,
            fleet.rules,
        )
        self.up = True
        for replica in self.replicas.values():
            self._hold(replica)
        self.machine.members(fleet.names, self.moment)
        self.flush()

    def crash(self) -> None:
        self.up = False

    def hold(self, name: str = OBJECT, hint: Any = ORSet[str], agent: str = "") -> Replica:
        address = f"Thing/{self.name}{agent}"
        replica = Replica(name, address, id_of(self.key, self.incarnation, address))
        self.replicas[name, replica.id] = replica
        self.kind[name] = hint
        if self.up:
            self._hold(replica)
            self.flush()
        return replica

    def _hold(self, replica: Replica) -> None:
        kind = SharedValue.empty(self.kind[replica.name], "seen")
        self.machine.hold(replica.name, replica.id, replica.address, replica.store, self.moment, kind)

    def replica(self, name: str = OBJECT) -> Replica:
        return next(one for one in self.replicas.values() if one.name == name)

    def value(self, replica: Replica | None = None) -> Any:
        replica = replica or self.replica()
        return SharedValue.empty(self.kind[replica.name], "seen").with_store(replica.store)

    def write(self, edit: Callable[[Any], Edit], replica: Replica | None = None) -> Delta:
        """Writes, and lets the machine know at once: the test's host is quick with own writes."""
        replica = replica or self.replica()
        delta = mint(edit(self.value(replica)), replica.store, replica.id, self.moment.wall_ns)
        replica.store = replica.store.apply(delta)
        if self.up:
            self.machine.written(replica.name, replica.id, delta, replica.store)
            self.flush()
        return delta

    def add(self, *elements: str, name: str = OBJECT) -> None:
        for element in elements:
            self.write(lambda value, element=element: value.add(element), self.replica(name))  # type: ignore[misc]

    def remove(self, element: str, name: str = OBJECT) -> None:
        self.write(lambda value: value.remove(element), self.replica(name))

    def hear(self, sender: str, data: bytes) -> None:
        self.machine.step(sender, data, self.moment)
        self.flush()

    def tick(self) -> None:
        self.machine.tick(self.moment)
        self.flush()

    def flush(self) -> None:
        ready = self.machine.ready(self.moment)
        for to, data in ready.datagrams:
            self.fleet.send(self.name, to, data)
        for hand in ready.merges:
            life = self.life
            self.fleet.later(HOST_NS, lambda hand=hand, life=life: self._host(hand, life))  # type: ignore[misc]

    def _host(self, hand: PendingMerge, life: int) -> None:
        if not self.up or life != self.life:
            return
        replica = self.replicas[hand.object, hand.replica]
        if self.declines(hand):
            self.machine.declined(hand.object, hand.replica, self.moment)
        else:
            store = replica.store
            for body in hand.deltas:
                store = store.apply(read_delta(body))
            if hand.state:
                store = store.join(read_store(hand.state))
            replica.store = store if self.merges else replica.store
            self.machine.merged(hand.object, hand.replica, replica.store, self.moment)
        self.flush()


class Fleet:
    """All nodes, and time."""

    def __init__(
        self, names: str | list[str], seed: int = 1, rules: Rules | None = None, bytes_max: int = 1024
    ) -> None:
        self.names = list(names.split() if isinstance(names, str) else names)
        self.chance = random.Random(seed)
        self.rules = rules or Rules()
        self.bytes_max = bytes_max
        self.now_ns = 0
        self.loss = self.doubling = 0.0
        self.delay_ns_max = 5 * MILLISECOND_NS
        self.cut: Callable[[str, str], bool] = lambda sender, to: False
        self.watch: Callable[[str, str, bytes], None] = lambda sender, to, data: None
        self.sent = 0
        self.trust: Callable[[bytes], Trust] = toy_trust
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self.members = {name: Member(self, name) for name in self.names}

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def start(self, hint: Any = ORSet[str], name: str = OBJECT) -> Fleet:
        for member in self.members.values():
            member.hold(name, hint)
            member.start()
        return self

    def later(self, after_ns: int, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now_ns + after_ns, self._number, do))

    def send(self, sender: str, to: str, data: bytes) -> None:
        assert len(data) <= self.bytes_max
        self.sent += 1
        self.watch(sender, to, data)
        for _ in range(2 if self.chance.random() < self.doubling else 1):
            if self.chance.random() >= self.loss:
                delay_ns = self.chance.randrange(MILLISECOND_NS, self.delay_ns_max)
                self.later(delay_ns, lambda: self._deliver(sender, to, data))

    def _deliver(self, sender: str, to: str, data: bytes) -> None:
        member = self.members[to]
        if member.up and not self.cut(sender, to):
            member.hear(sender, data)

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        end_ns = self.now_ns + int(seconds * SECOND_NS)
        while True:
            ticks = [
                (at_ns, name)
                for name, member in self.members.items()
                if member.up and (at_ns := member.machine.next_ns) is not None
            ]
            tick = min(ticks, default=None)
            first_ns = self._queue[0][0] if self._queue else end_ns + 1
            if tick is not None and tick[0] < first_ns and tick[0] <= end_ns:
                self.now_ns = max(self.now_ns, tick[0])
                self.members[tick[1]].tick()
            elif first_ns <= end_ns:
                self.now_ns = max(self.now_ns, first_ns)
                heapq.heappop(self._queue)[2]()
            else:
                self.now_ns = end_ns
                return

    def converged(self, name: str = OBJECT) -> bool:
        stores = [one.store for member in self.members.values() for one in member.replicas.values() if one.name == name]
        return all(store == stores[0] and store.digest() == stores[0].digest() for store in stores)

    def run_until_converged(self, seconds: float, name: str = OBJECT) -> float:
        """How long it took; fails if it did not happen."""
        start_ns = self.now_ns
        while not self.converged(name):
            assert self.now_ns - start_ns < seconds * SECOND_NS, f"not converged after {seconds} s"
            self.run(0.05)
        return (self.now_ns - start_ns) / SECOND_NS

    def total(self, counter: str) -> int:
        return sum(getattr(member.machine.counters, counter) for member in self.members.values())


__all__ = ["EMPTY", "LWWRegister", "ORSet", "PNCounter", "ReplicaStore"]
