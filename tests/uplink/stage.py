"""A device with an uplink and a gateway that collects, for tests. The device's own log says what must arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from stigmergy.agents.agent import Agent, evolve
from stigmergy.agents.messages import Event, within
from stigmergy.bus.memory import MemoryBroker
from stigmergy.journal.memory import MemoryJournalStore
from stigmergy.journal.port import StoredCommit
from stigmergy.node.declaration import Declaration
from stigmergy.node.settings import Settings
from stigmergy.shard.commit import Commit, Group, Signature, open_commit
from stigmergy.sim.logbook import Logbook
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from stigmergy.uplink.messages import UplinkStatus
from stigmergy.uplink.rules import Aggregate, Sieve, Summary, UplinkRule


class Moved(Event, keep=within(seconds=0.2)):
    number: int
    height: float = 0.0


class Arrived(Event):
    number: int


class Measured(Event, keep=within(seconds=1)):
    percent: float


class Drone(Agent):
    """On the device."""

    count: int = 0

    @evolve
    def moved(self, event: Moved) -> None:
        self.count += 1

    @evolve
    def arrived(self, event: Arrived) -> None:
        self.count += 1

    @evolve
    def measured(self, event: Measured) -> None:
        self.count += 1


class Twin(Agent):
    """At the gateway: notes everything it hears, in order."""

    trail: tuple[str, ...] = ()

    @evolve
    def moved(self, event: Moved) -> None:
        self.trail = (*self.trail, f"moved {event.number}")

    @evolve
    def arrived(self, event: Arrived) -> None:
        self.trail = (*self.trail, f"arrived {event.number}")

    @evolve
    def measured(self, event: Measured) -> None:
        self.trail = (*self.trail, f"measured {event.percent}")

    @evolve
    def summed(self, event: Summary) -> None:
        self.trail = (*self.trail, told(event))


def told(event: Summary) -> str:
    percent = event.field("percent")
    values = (percent.min, percent.max, percent.mean, percent.last) if percent else ()
    return f"{event.event} x{event.count} from {event.start_s:.0f} {event.first_s:.3f} {event.last_s:.3f} {values}"


RULE = UplinkRule(only=("Arrived",), sample={"Moved": "5s"}, aggregate={"Measured": Aggregate(every="60s")})
ALL = UplinkRule()


def drones(shards: int) -> Callable[[SimNode], Declaration]:
    return lambda _: Declaration("delivery", agents=[Drone], shards=shards)


def twins(shards: int) -> Callable[[SimNode], Declaration]:
    def declare(_: SimNode) -> Declaration:
        fleet = Declaration("ground", agents=[Twin], shards=shards)
        fleet.collect("Drone/{id}", to="Twin/{id}", fleet="delivery")
        return fleet

    return declare


class Stage:
    """A world with a broker, a device and a gateway."""

    def __init__(
        self,
        seed: int = 1,
        *,
        rule: UplinkRule = RULE,
        shards: tuple[int, int] = (1, 1),
        settings: Settings | None = None,
        broker: MemoryBroker | None = None,
        deadline_s: float = 40_000.0,
    ) -> None:
        self.world = Run(seed, deadline_s=deadline_s)
        self.broker = broker or MemoryBroker()
        self.rule = rule
        self.device = SimNode(
            self.world,
            drones(shards[0]),
            name="device",
            settings=settings,
            in_memory=True,
            broker=self.broker,
            uplink=rule,
        )
        self.gateway = SimNode(self.world, twins(shards[1]), name="gateway", in_memory=True, broker=self.broker)
        self.number = 0

    async def start(self) -> None:
        await self.device.start()
        await self.gateway.start()

    async def fly(self, seconds: int, names: tuple[str, ...] = ("1", "2")) -> None:
        """A second each: everybody moves and measures, and now and then one arrives."""
        for _ in range(seconds):
            live = self.device.live
            if live is not None:
                for name in names:
                    self.number += 1
                    await live.observe(f"Drone/{name}", Moved(number=self.number, height=self.number / 7))
                    await live.observe(f"Drone/{name}", Measured(percent=100 - self.number % 90))
                    if self.number % 10 < 2:
                        await live.observe(f"Drone/{name}", Arrived(number=self.number))
            await asyncio.sleep(1)

    async def settle(self, within_s: int = 300) -> None:
        """Waits until the gateway has confirmed everything."""
        for _ in range(within_s):
            if self.standing().commits_behind == 0:
                return
            await asyncio.sleep(1)
        raise AssertionError(f"not settled: {self.standing()}")

    def standing(self) -> UplinkStatus:
        live = self.device.live
        assert live is not None
        standing = live.standing().link.uplink
        assert standing is not None
        return standing

    def expected(self, name: str) -> tuple[str, ...]:
        """What the rule lets through of the device's log as it is on disk, for one drone."""
        store = self.device.store
        assert store is not None
        return tuple(what for kept in store.commits.values() for what in self.expected_of(kept, name))

    def expected_by(self, rule: UplinkRule, name: str) -> tuple[str, ...]:
        """The same by another rule."""
        self.rule, before = rule, self.rule
        try:
            return self.expected(name)
        finally:
            self.rule = before

    def expected_of(self, commits: list[StoredCommit], name: str) -> list[str]:
        """What the rule lets through of these commits of a shard."""
        return self.expected_of_commits([open_commit(stored.sealed.body) for stored in commits], name)

    def expected_of_commits(self, commits: list[Commit], name: str) -> list[str]:
        """What the rule lets through of them."""
        sieve = Sieve(self.rule)
        items = (item for commit in commits for item in sieve.take(commit))
        return [noted(body) for _, address, body in items if address == f"Drone/{name}"]

    def check_against_logbook(self, names: tuple[str, ...] = ("1", "2")) -> None:
        """The same for a device that has dropped its log: the simulator remembers what it was."""
        commits = self.device.logbook.commits
        for name in names:
            expected = [what for shard in commits for what in self.expected_of_commits(shard, name)]
            # What is still under way belongs at the end.
            assert list(self.trail(name)) == expected[: len(self.trail(name))]
            assert len(expected) - len(self.trail(name)) < 5

    def trail(self, name: str) -> tuple[str, ...]:
        live = self.gateway.live
        assert live is not None
        return live.query(f"Twin/{name}", Twin).trail

    def check(self, names: tuple[str, ...] = ("1", "2")) -> None:
        """Everything that the rule lets through has arrived once and in order."""
        for name in names:
            assert self.trail(name) == self.expected(name), name
        assert not self.device.logbook.findings
        assert not self.gateway.logbook.findings
        live = self.gateway.live
        assert live is not None
        assert not live.dead_letters()


def copy_of(node: SimNode) -> MemoryJournalStore:
    """The node's disk as it is now."""
    store = node.store
    assert store is not None
    copy = MemoryJournalStore(store.identity)
    copy.commits = {shard: list(kept) for shard, kept in store.commits.items()}
    copy.snapshots = {key: list(parts) for key, parts in store.snapshots.items()}
    copy.used_bytes = store.used_bytes
    return copy


async def restore(node: SimNode, copy: MemoryJournalStore, incarnation: int | None = None) -> None:
    """The node dies, and starts with a copy of its disk; given an incarnation, as a journal of its own."""
    await node.kill()
    if incarnation is not None:
        copy.renew_incarnation(incarnation)
    node.store = copy
    # Otherwise it would find, rightly, that what was durable is gone.
    node.logbook = Logbook(copy.identity, node.declaration.plans, node.settings.limits)
    for kept in copy.commits.values():
        for stored in kept:
            node.logbook.durable(Group((stored.sealed,), stored.signature or Signature(1, b"", [], b"")))
    await node.start()


_decoder = msgspec.msgpack.Decoder(Moved | Arrived | Measured | Summary)


def noted(body: bytes) -> str:
    event = _decoder.decode(body)
    match event:
        case Moved():
            return f"moved {event.number}"
        case Arrived():
            return f"arrived {event.number}"
        case Measured():
            return f"measured {event.percent}"
        case _:
            return told(event)
