"""Where an agent runs, and why: as every kind of node says it."""

import asyncio

import pytest

from rigs.memory_peers import MemoryPeerHub
from stigmergy.base.errors import UnknownKind
from stigmergy.control.live import Live
from stigmergy.control.location import locate_agent
from stigmergy.control.replies import WhereReply
from stigmergy.network.peers import PeerProcesses
from stigmergy.node.settings import Settings
from stigmergy.shard.homes import shard_of
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.network.test_tell_router import Stage, yard
from tests.node.rig import play


def where(live: Live, address: str, owner: str = "") -> WhereReply:
    return locate_agent(live.host, live.link, address, owner)


def test_nodes_on_a_bus_say_it_of_each_other() -> None:
    stage = Stage()
    stage.nodes["g"] = SimNode(
        stage.world, lambda _: yard(), name="g", broker=stage.broker, settings=Settings(), in_memory=True
    )

    async def scene() -> None:
        a, b, g = await stage.start()
        here = where(a, "yard/Cart/a1")
        assert (here.agent, here.node, here.how, here.here, here.online) == ("Cart/a1", "a", "declared", True, True)
        assert here.why == "agents of this node name it: Cart/a*"
        there = where(a, "Cart/b1")
        assert (there.node, there.how, there.here, there.epoch) == ("b", "declared", False, b.host.shards.first.epoch)
        assert there.why == "agents of node 'b' name it: Cart/b*; that node is here"
        everything = where(a, "Cart/z")
        assert (everything.node, everything.how) == ("g", "everything")
        assert where(g, "Cart/z").why == "this node runs every agent of its fleet"
        assert "agents of node 'a' name it too" in where(g, "Cart/a1").why
        foreign = where(a, "ground/Pilot/p")
        assert (foreign.node, foreign.how) == (None, "foreign")
        await stage.nodes["b"].stop()
        await stage.nodes["g"].stop()
        away = where(a, "Cart/b1")
        assert (away.node, away.online) == ("b", False)
        assert away.why.endswith("that node is away")
        nobody = where(a, "Cart/z")
        assert (nobody.node, nobody.how) == (None, "nobody")
        assert nobody.why == "no node on the bus says that it runs it, and this one runs Cart/a*"
        for misspelt in ("Crat/a1", "Cart", "Cart/a 1", "a/b/c/d"):
            with pytest.raises(UnknownKind):
                where(a, misspelt)
        await stage.stop()

    stage.world.run(scene())


def test_a_node_without_a_bus_says_what_it_knows() -> None:
    async def main(node: SimNode) -> None:
        live = await node.start()
        assert (where(live, "Cart/a1").node, where(live, "Cart/a1").here) == (None, True)
        assert where(live, "Cart/b1").why == "this node has no bus to ask others, and this one runs Cart/a*"
        await asyncio.sleep(0)

    play(yard(), main, agents=("Cart/a*",))


def test_the_owner_of_a_shard_says_which_shard_it_is() -> None:
    world = Run(1)
    node = SimNode(
        world,
        lambda _: yard(),
        part=(1, 1),
        attach=lambda host: PeerProcesses(host, MemoryPeerHub().peer_network(2)),
    )

    async def scene() -> None:
        live = await node.start()
        mine = next(f"Cart/{n}" for n in range(100) if shard_of(f"Cart/{n}", 2) == 1)
        found = where(live, mine, "w2-4711")
        assert (found.how, found.shard, found.epoch, found.owner) == ("computed", 1, 1, "w2-4711")
        assert found.why == "it lives in shard 1 of 2, which worker w2-4711 owns, in epoch 1"
        await node.stop()

    world.run(scene())
