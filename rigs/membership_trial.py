"""Fleets that find each other without a broker, in virtual time: how quickly, how surely, at what cost.

    async with MembershipFleet(seed=7, count=100, faults=LinkFaults(loss=0.3)) as fleet:
        await fleet.wait_complete()                  # until all know all
        fleet.crash("node-7"); await fleet.wait_gone("node-7")

The nodes are the shipping membership (membership/service.py) on a simulated network. Who is said to have left although
it is up and within reach was a false alarm, and is kept.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import NamedTuple, cast

from stigmergy.agents.messages import Event
from stigmergy.bus.presence import Member, MemberJoined, MemberLeft
from stigmergy.membership.service import Membership
from stigmergy.membership.settings import SwimSettings
from stigmergy.sim.loop import SimClock, SimEntropy, VirtualLoop
from stigmergy.sim.network import CALM, LinkFaults, Network

FLEET = "trial"
SEEDS_COUNT = 3
LOOK_S = 0.1
WITHIN_S = 120.0
ALL_GONE_PROBES = 12
"""What is added to the time of a suspicion until, without loss, a crash is known everywhere: by chance nobody may ask
for a while (for k probes after one of e^k crashes), and the word has to spread."""


class Told(NamedTuple):
    """What a node was told, and when."""

    time_s: float
    by: str
    event: Event


class Load(NamedTuple):
    """What each node sent each second, on average, and the busiest one at most."""

    datagrams: float
    bytes: float
    datagrams_max: float


class MembershipFleet:
    """So many nodes on one network; the first few are everybody's seeds."""

    def __init__(
        self, seed: int, count: int, *, faults: LinkFaults = CALM, settings: SwimSettings | None = None
    ) -> None:
        self.network = Network(seed, faults=faults)
        self.settings = settings or SwimSettings()
        self.names = [f"node-{number}" for number in range(count)]
        self.told: list[Told] = []
        self.false_alarms: list[Told] = []
        self._seed = seed
        self._lives: dict[str, int] = {}
        self._nodes: dict[str, Membership] = {}
        self._loop = cast(VirtualLoop, asyncio.get_running_loop())

    async def __aenter__(self) -> MembershipFleet:
        for name in self.names:
            await self.start(name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self._nodes.values():
            await node.kill()

    # What is done to it.

    async def start(self, name: str, *, wall_start_ns: int | None = None) -> Membership:
        """Starts a node, or starts it again."""
        self._lives[name] = self._lives.get(name, 0) + 1
        node = Membership(
            self.network.mesh(name),
            Member(node=name, run="", version="1", kinds=("Drone",)),
            lambda event: self._hear(name, event),
            SimClock(self._loop, wall_start_ns=wall_start_ns),
            SimEntropy(self._seed, f"{name}/{self._lives[name]}"),
            fleet=FLEET,
            seeds=self.names[:SEEDS_COUNT],
            settings=self.settings,
        )
        self._nodes[name] = node
        await node.start()
        return node

    async def crash(self, name: str) -> None:
        """Ends a node without a word."""
        self.network.crash(name)
        await self._nodes.pop(name).kill()

    async def leave(self, name: str) -> None:
        """Lets a node say goodbye."""
        await self._nodes.pop(name).stop()

    # What is seen.

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self._loop.time()

    @property
    def nodes(self) -> dict[str, Membership]:
        """Those who are up."""
        return self._nodes

    def view(self, name: str) -> list[str]:
        """Whom a node believes to be there."""
        return [member.node for member in self._nodes[name].members()]

    def is_complete(self) -> bool:
        """Whether all who are up know exactly those who are up."""
        up = sorted(self._nodes)
        return all(self.view(name) == up for name in self._nodes)

    async def wait_complete(self, within_s: float = WITHIN_S) -> float:
        """Waits until all know all; how long it took. Raises TimeoutError."""
        begun_s = self.now_s
        while not self.is_complete():
            if self.now_s - begun_s > within_s:
                short = [name for name in self._nodes if len(self.view(name)) != len(self._nodes)]
                raise TimeoutError(f"after {within_s:g} s {len(short)} nodes do not know exactly those who are up")
            await asyncio.sleep(LOOK_S)
        return self.now_s - begun_s

    async def wait_gone(self, name: str, within_s: float = WITHIN_S) -> list[float]:
        """Waits until nobody believes any more that a node is there; when each was told, from now."""
        begun_s, first = self.now_s, len(self.told)
        while any(name in self.view(other) for other in self._nodes):
            if self.now_s - begun_s > within_s:
                raise TimeoutError(f"after {within_s:g} s {name} is still believed to be there")
            await asyncio.sleep(LOOK_S)
        found = (told for told in self.told[first:] if isinstance(told.event, MemberLeft) and told.event.node == name)
        return sorted(told.time_s - begun_s for told in found)

    async def measure_load(self, seconds: float) -> Load:
        """What goes over the network from now, for so long."""
        before = self._sent()
        await asyncio.sleep(seconds)
        after = self._sent()
        counts = [after[name][0] - before[name][0] for name in after]
        sizes = [after[name][1] - before[name][1] for name in after]
        return Load(sum(counts) / len(counts) / seconds, sum(sizes) / len(sizes) / seconds, max(counts) / seconds)

    def gone_bound_s(self) -> float:
        """Within this time, without loss, a crash is known everywhere."""
        return self.settings.suspicion_s(len(self.names)) + ALL_GONE_PROBES * self.settings.probe_s

    def _sent(self) -> dict[str, tuple[int, int]]:
        found = {name: node.counters() for name, node in self._nodes.items()}
        return {
            name: (counters["membership_sent_count"], counters["membership_sent_bytes"])
            for name, counters in found.items()
        }

    def _hear(self, name: str, event: Event) -> None:
        told = Told(self.now_s, name, event)
        if isinstance(event, MemberJoined | MemberLeft):
            self.told.append(told)
        if isinstance(event, MemberLeft) and event.node in self._nodes and self._within_reach(name, event.node):
            self.false_alarms.append(told)

    def _within_reach(self, one: str, other: str) -> bool:
        return self.network.passes(one, other) and self.network.passes(other, one)
