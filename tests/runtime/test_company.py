"""A node among others: what it knows of them reaches its replicas at once."""

from __future__ import annotations

import asyncio

from stigmergy.bus.presence import MemberLeft
from stigmergy.network.bus_link import describe_this_node, tell_interested
from stigmergy.network.replication import Replication
from stigmergy.network.replicator import TICK_S_MAX
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.sim.network import Network
from stigmergy.sim.node import SimNode, World
from tests.runtime.replicas.town import QUICK, Count, Light


def test_gossip_with_whoever_joins_begins_when_that_is_told() -> None:
    world, network = World(3), Network(3)
    replication: dict[str, Replication] = {}
    told: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}

    def parts(node: SimNode, host: Host) -> list[Replication]:
        me = describe_this_node(host, node.name, node.entropy, "1")
        made = Replication(host, node.signer, node.entropy, mesh=network.mesh(node.name), me=me, seeds=("a",))
        replication[node.name] = made
        look = host.on_members

        def noted() -> None:
            before = peers(node.name)
            look()
            told[node.name].append((before, peers(node.name)))

        host.on_members = noted
        return [made]

    def peers(name: str) -> int:
        shared = replication[name].standing().shared
        assert shared is not None
        return shared.peers

    def node(name: str) -> SimNode:
        return SimNode(
            world,
            lambda _: Declaration("town", agents=[Light], settings=QUICK),
            name=name,
            in_memory=True,
            parts=parts,
            settings=QUICK,
        )

    async def main() -> None:
        one, other = node("a"), node("b")
        for started in (one, other):
            live = await started.start()
            await live.send(f"Light/{started.name}", Count(amount=1))
            await asyncio.sleep(TICK_S_MAX)
        assert (0, 1) in told["a"]
        assert peers("a") == peers("b") == 1
        await other.stop()
        await asyncio.sleep(TICK_S_MAX / 2)
        assert told["a"][-1] == (1, 0)
        tell_interested(one.host, MemberLeft(node="nobody", because="as presence on a bus tells it"))
        assert told["a"][-1] == (0, 0)
        await one.stop()

    world.run(main())
