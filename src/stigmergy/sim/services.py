"""What runs on each machine of a simulated fleet beside its host, assembled in one place.

A fleet with shared or ordered fields gets what the real wiring gives it: replicas over a mesh, or over its bus, with
the members that these know, and claims on a ledger. The seed decides how they gossip.
"""

from __future__ import annotations

import asyncio
from contextvars import Context

from stigmergy.claims.memory_ledger import MemoryLedgerStore
from stigmergy.membership.bus_mesh import BusMesh
from stigmergy.membership.mesh import Hear
from stigmergy.network.bus_link import describe_this_node
from stigmergy.network.replication import Replication
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.sim.links import Quality, SimLedger
from stigmergy.sim.network import Network, SimMesh
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run

SEEDS_COUNT = 3
"""So many nodes are known to everybody from the start; the others are heard of."""


class OwnMesh(SimMesh):
    """A mesh whose datagrams are heard as a part of one machine, so that they wait while it is held up."""

    def __init__(self, network: Network, node: str, bytes_max: int, context: Context) -> None:
        super().__init__(network, node, bytes_max)
        self._context = context

    async def open(self, hear: Hear) -> None:
        """Begins to listen."""
        loop, context = asyncio.get_running_loop(), self._context

        def pass_on(sender: str, body: bytes) -> None:
            loop.call_soon(hear, sender, body, context=context.copy())

        await super().open(pass_on)


class SimServices:
    """How the nodes of one run get together."""

    def __init__(self, run: Run, fleet: Declaration, network: Network, names: list[str], *, bus: bool) -> None:
        self._run = run
        self._network = network
        self._names = names
        self.shares = any(plan.shared for plan in fleet.plans.values())
        self.claims = any(plan.ordered for plan in fleet.plans.values())
        self.over_bus = bus and run.chance("company").randrange(3) == 0
        """Whether replicas gossip over the broker, instead of a mesh of their own."""
        self._store = MemoryLedgerStore(fleet.name)

    def make(self, node: SimNode, host: Host, quality: Quality, context: Context) -> list[Replication]:
        """The companions of a node that is about to start; none for a fleet that has no use for them."""
        if not self.shares and not self.claims:
            return []
        chance = self._run.chance(f"{node.name}/ledger/{node.logbook.identity.incarnation}/{node.lives}")
        ledger = SimLedger(self._store, quality, chance, context) if self.claims else None
        link, bus = node.link, node.bus
        if self.over_bus and link is not None and bus is not None:
            return [
                Replication(
                    host,
                    node.signer,
                    node.entropy,
                    mesh=BusMesh(bus, link.topics, link.node),
                    ledger=ledger,
                    names=lambda: [member.node for member in link.members()],
                )
            ]
        self._network.crash(node.name)  # whoever had the name before
        return [
            Replication(
                host,
                node.signer,
                node.entropy,
                mesh=OwnMesh(self._network, node.name, self._network._bytes_max, context),
                ledger=ledger,
                me=describe_this_node(host, node.name, node.entropy, "simulated"),
                seeds=self._names[:SEEDS_COUNT],
            )
        ]
