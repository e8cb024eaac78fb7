"""Nodes of a simulated fleet that share fields: the shipping host, replicator and a bad network. Not a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from stigmergy.agents.agent import Agent, decide, evolve
from stigmergy.agents.effects import Events
from stigmergy.agents.messages import Command
from stigmergy.agents.shared import Merged, Shared, shared
from stigmergy.crdt.lww_register import LWWRegister
from stigmergy.crdt.orset import ORSet
from stigmergy.crdt.pncounter import PNCounter
from stigmergy.network.replicator import Replicator
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.node.settings import Settings, SharedSettings
from stigmergy.sim.network import Network
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run

FAILS = "a vehicle on which agents fail"


class See(Command):
    vehicle: str


class Miss(Command):
    vehicle: str


class Count(Command):
    amount: int


class Show(Command):
    phase: str


class Light(Agent, kind="Light"):
    """Sees vehicles that its whole town knows of."""

    seen: Shared[ORSet[str]] = shared(by="town")
    passed: Shared[PNCounter] = shared(by="town")
    phase: Shared[LWWRegister[str]]

    @decide
    def see(self, command: See) -> Events:
        yield self.seen.add(command.vehicle)

    @decide
    def miss(self, command: Miss) -> Events:
        yield self.seen.remove(command.vehicle)

    @decide
    def count(self, command: Count) -> Events:
        yield self.passed.add(command.amount)

    @decide
    def show(self, command: Show) -> Events:
        yield self.phase.set(command.phase)

    @evolve
    def merged(self, event: Merged) -> None:
        if FAILS in self.seen:
            raise ValueError("an agent that cannot bear it")


QUICK = Settings(shared=SharedSettings(interval_s=0.5))


class Town:
    """Some nodes with one light each, on one network."""

    def __init__(
        self,
        names: str,
        *,
        seed: int = 1,
        settings: Settings = QUICK,
        trusted: Sequence[bytes] | None = None,
        in_memory: bool = True,
    ) -> None:
        self.names = names.split()
        self.world = Run(seed)
        self.network = Network(seed)
        self.trusted = trusted
        self.replicators: dict[str, Replicator] = {}
        self.incarnations: dict[str, int] = {}
        self.nodes = {
            name: SimNode(
                self.world,
                lambda node: Declaration("town", agents=[Light], settings=settings),
                name=name,
                in_memory=in_memory,
                parts=self._parts,
                settings=settings,
            )
            for name in self.names
        }

    def _parts(self, node: SimNode, host: Host) -> list[Replicator]:
        mesh = self.network.mesh(node.name)
        replicator = Replicator(host, mesh, node.signer, node.entropy, self.network.nodes, trusted=self.trusted)
        self.replicators[node.name] = replicator
        return [replicator]

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.world.run(main())

    async def start(self) -> None:
        for name in self.names:
            await self.nodes[name].start()
            await self.send(name, Count(amount=0))
        await asyncio.sleep(1.6)

    async def stop(self) -> None:
        for name in self.names:
            if self.nodes[name].live is not None:
                await self.nodes[name].stop()

    async def crash(self, name: str) -> None:
        self.network.crash(name)
        await self.nodes[name].kill()

    async def send(self, name: str, command: Command) -> None:
        live = self.nodes[name].live
        assert live is not None
        await live.send(f"Light/{name}", command)

    def light(self, name: str, agent: str = "") -> Light:
        live = self.nodes[name].live
        assert live is not None
        found = live.query(f"Light/{agent or name}")
        assert isinstance(found, Light)
        return found

    def seen(self) -> list[list[str]]:
        return [sorted(self.light(name).seen) for name in self.names if self.nodes[name].live is not None]

    async def wait(self, holds: Callable[[], bool], within_s: float = 30.0) -> float:
        """How long it took; fails if it did not happen in time."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        while not holds():
            assert loop.time() - start_s < within_s, f"not within {within_s} s: {self.seen()}"
            await asyncio.sleep(0.005)
        return loop.time() - start_s
