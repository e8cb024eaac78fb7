"""Where an agent runs, and why: as every kind of node says it."""

import asyncio

import pytest

from rigs.memory_peers import MemoryPeerHub
from stigmergy.app.fleet import verifier
from stigmergy.base.errors import ConfigError, NotAssigned, UnknownKind, Unreachable
from stigmergy.control.description import described_members
from stigmergy.control.live import Live
from stigmergy.control.location import locate_agent
from stigmergy.control.protocol import EventsRequest, WhereRequest
from stigmergy.control.replies import WhereReply
from stigmergy.control.server import ControlService, NodeDescription
from stigmergy.network.peers import PeerProcesses
from stigmergy.node.settings import Settings, TellSettings
from stigmergy.serve.asker import NodeAsker
from stigmergy.shard.homes import shard_of
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.network.test_tell_router import Pass, Stage, heard, wait, yard
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
        with pytest.raises(Unreachable, match="node 'b' runs it, and is away for 0 s or longer: try again later"):
            a.query("Cart/b1")
        with pytest.raises(NotAssigned, match="no node says that it does"):
            a.query("Cart/z")
        stage.broker.cut("a")
        await asyncio.sleep(1)
        # Whether the other has come back cannot be known without a link of our own.
        no_link = "this node has no link to the bus, so it cannot tell whether 'b' is there"
        assert where(a, "Cart/b1").why == f"agents of node 'b' name it: Cart/b*; {no_link}"
        assert a.link is not None
        assert a.link.forwarder.way_to("Cart/b1") == (None, f"node 'b' runs it, and {no_link}")
        assert [one.state for one in described_members([], a.link)] == ["unheard", "unheard"]
        with pytest.raises(Unreachable, match=f"node 'b' runs it, and {no_link}: try again later"):
            a.query("Cart/b1")
        nobody, unknown = where(a, "Cart/z"), "which node runs it is not known without a link to the bus"
        assert (nobody.node, nobody.how) == (None, "nobody")
        assert nobody.why.startswith(unknown)
        for refused in (lambda: a.query("Cart/z"), lambda: a.host.intake.ask("Cart/z", Pass(to="x", number=1), "1")):
            with pytest.raises(Unreachable, match=unknown):
                refused()
        for misspelt in ("Crat/a1", "Cart", "Cart/a 1", "a/b/c/d"):
            with pytest.raises(UnknownKind):
                where(a, misspelt)
        await stage.stop()

    stage.world.run(scene())


def service_of(live: Live) -> NodeAsker:
    return NodeAsker(ControlService(live, verifier(), NodeDescription("1", "memory:", (1, b"")), lambda: None))


def test_while_the_link_is_new_others_have_time_to_appear() -> None:
    """A node that runs every agent is forgotten in a long cut. Also the broker may have forgotten it."""
    stage = Stage(settings=Settings(tells=TellSettings(unclaimed="refuse")))
    stage.nodes["g"] = SimNode(
        stage.world, lambda _: yard(), name="g", broker=stage.broker, settings=Settings(), in_memory=True
    )

    async def scene() -> None:
        a, g = await stage.start("a", "g")
        assert a.link is not None
        asker, presence = service_of(a), a.link.presence
        stage.broker.cut("a")
        stage.broker.cut("g")
        await asyncio.sleep(200)
        assert not presence.others()
        stage.broker.restore("a")
        await wait(lambda: bool(presence.settling()))
        with pytest.raises(Unreachable, match=r"not known yet: the link to the bus is new, .*: try again later"):
            a.query("Cart/z")
        await a.send("Cart/a1", Pass(to="Cart/z", number=1))
        nobody, kept = await asker.ask(WhereRequest(agent="Cart/z")), a.link.router.on_their_way()
        assert nobody.how == "nobody"
        for said in (nobody.why, kept[0].standing):
            assert "the link to the bus is new, and other nodes have 30 s to appear" in said
        await asyncio.sleep(15)  # longer than what nobody claims is kept
        asked = asyncio.ensure_future(asker.ask(WhereRequest(agent="Cart/z")))
        await asyncio.sleep(1)
        stage.broker.restore("g")
        found = await asked
        assert (found.node, found.how, found.online) == ("g", "everything", True)
        await wait(lambda: heard(g, "Cart/z") == ["Cart/a1 1"])
        assert a.dead_letters() == []
        await stage.stop()

    stage.world.run(scene())


def test_a_node_that_has_heard_nobody_does_not_take_a_position_for_its_own() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.broker.cut("a")
        (a,) = await stage.start("a")
        await a.send("Cart/a1", Pass(to="Cart/a2", number=1))
        asker, unnamed = service_of(a), EventsRequest(after="0:1,1:1")
        with pytest.raises(ConfigError, match="does not say of which log it is"):
            await asker.ask(unnamed)
        stage.broker.restore("a")
        link = a.link
        assert link is not None
        await wait(lambda: not link.unheard())
        await asker.ask(unnamed)  # There is no other log.
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
