"""A node among others: what it knows of them reaches its replicas at once."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy import Event
from stigmergy.bus.memory import MemoryBroker
from stigmergy.network.bus_link import BusLink, describe_this_node
from stigmergy.network.replication import Replication
from stigmergy.network.replicator import TICK_S_MAX
from stigmergy.node.declaration import Declaration
from stigmergy.node.host import Host
from stigmergy.sim.network import Network
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.network.replicas.town import QUICK, Count, Light


@pytest.mark.parametrize("teller", [Replication, BusLink])
def test_gossip_with_whoever_joins_begins_when_that_is_told(
    monkeypatch: pytest.MonkeyPatch, teller: type[Replication | BusLink]
) -> None:
    """By the membership of a mesh, or by presence on a bus."""
    world, network = Run(3), Network(3)
    broker = MemoryBroker() if teller is BusLink else None
    replication: dict[str, Replication] = {}
    tellers: dict[int, str] = {}
    told: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}

    def parts(node: SimNode, host: Host) -> list[Replication]:
        if node.link is not None:
            made = Replication(host, node.signer, node.entropy, link=node.link)
        else:
            me = describe_this_node(host, node.name, node.entropy, "1")
            made = Replication(host, node.signer, node.entropy, mesh=network.mesh(node.name), me=me, seeds=("a",))
        replication[node.name] = made
        tellers[id(node.link or made)] = node.name
        return [made]

    tell = teller._told

    def noted(one: Replication | BusLink, event: Event) -> None:
        name = tellers[id(one)]
        before = peers(name)
        tell(one, event)  # type: ignore[arg-type]
        told[name].append((before, peers(name)))

    monkeypatch.setattr(teller, "_told", noted)

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
            broker=broker,
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
        await one.stop()

    world.run(main())
