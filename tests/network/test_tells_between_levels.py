"""Tells to agents of other levels: each node on the way takes them into its log and owes them again."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stigmergy as st
from stigmergy.agents.codec import encode, tag_of
from stigmergy.bus.port import BusMessage
from stigmergy.bus.tells import TellFrame, TellItem, write_tells
from stigmergy.network import tell_router
from stigmergy.testing.bus_rig import wait_until
from tests.network.test_forwarder import Town, reaches


class Order(st.Command):
    to: str
    number: int
    within_s: float = 600.0


class Ordered(st.Event):
    to: str
    number: int
    within_s: float


class Greeted(st.Event):
    number: int


class Talker(st.Agent):
    heard: tuple[int, ...] = ()
    failed: tuple[str, ...] = ()

    @st.decide
    def order(self, command: Order) -> st.Events:
        yield Ordered(to=command.to, number=command.number, within_s=command.within_s)

    @st.react
    def tell(self, event: Ordered) -> st.Effects:
        yield st.Tell(event.to, Greeted(number=event.number), within_s=event.within_s)

    @st.evolve
    def greeted(self, event: Greeted) -> None:
        self.heard = (*self.heard, event.number)

    @st.evolve
    def told(self, event: st.TellFailed) -> None:
        self.failed = (*self.failed, event.reason)


class Drone(Talker):
    pass


class Site(Talker):
    pass


class Boss(st.Agent):
    """Tells, and has no handler for TellFailed."""

    @st.decide
    def order(self, command: Order) -> st.Events:
        yield Ordered(to=command.to, number=command.number, within_s=command.within_s)

    @st.react
    def tell(self, event: Ordered) -> st.Effects:
        yield st.Tell(event.to, Greeted(number=event.number), within_s=event.within_s)


class TalkingTown(Town):
    def fleet(self) -> st.Fleet:
        return st.Fleet("delivery", agents=[Drone, Site, Boss])


async def order(live: Any, teller: str, to: str, numbers: range, within_s: float = 600.0) -> None:
    for number in numbers:
        assert await live.send(teller, Order(to=to, number=number, within_s=within_s))


def owes_nothing(live: Any) -> bool:
    return bool(live.standing().owed == 0)


def arrived(live: Any) -> int:
    counters = live.standing().counters
    return int(counters["tells_taken"] + counters["tells_refused"])


def heard(live: Any, agent: str) -> tuple[int, ...]:
    return tuple(live.query(agent).heard)


async def test_tells_go_down_and_up_through_gateways_once_and_in_order(tmp_path: Path) -> None:
    town = TalkingTown(tmp_path, "tells-levels")
    async with town.all() as nodes:
        cloud, device = nodes["cloud"], nodes["device"]
        await wait_until(lambda: reaches(cloud, "Drone/1"))
        await order(cloud, "Site/cloud", "Drone/1", range(20))
        await order(device, "Drone/1", "Site/cloud", range(20))
        await wait_until(lambda: heard(device, "Drone/1") == tuple(range(20)))
        await wait_until(lambda: heard(cloud, "Site/cloud") == tuple(range(20)))
        # Nobody on the way made an agent of it, and nothing is owed any more.
        assert [nodes[name].agents() for name in ("region", "gateway")] == [[], []]
        for live in nodes.values():
            await wait_until(partial(owes_nothing, live))


async def test_no_two_links_are_up_at_the_same_time(tmp_path: Path) -> None:
    town = TalkingTown(tmp_path, "tells-hops")
    async with town.all() as nodes:
        await wait_until(lambda: reaches(nodes["cloud"], "Drone/1"))
        # Each node remembers where the agent is only as long as it runs, or has something for it.
        await order(nodes["cloud"], "Site/cloud", "Drone/1", range(1))
        await wait_until(lambda: heard(nodes["device"], "Drone/1") == (0,))
    async with town.running("cloud") as cloud, town.running("region") as region:
        await order(cloud, "Site/cloud", "Drone/1", range(1, 5))
        async with town.running("gateway"):
            await wait_until(lambda: cloud.standing().owed == 0)
        assert region.standing().owed >= 0
    async with town.running("region") as region, town.running("gateway") as gateway:
        await wait_until(lambda: region.standing().owed == 0)
        assert gateway.standing().owed >= 0
    async with town.running("gateway") as gateway, town.running("device") as device:
        await wait_until(lambda: gateway.standing().owed == 0)
        assert heard(device, "Drone/1") == tuple(range(5))


async def test_what_a_node_on_the_way_gives_up_its_teller_hears_of(tmp_path: Path) -> None:
    town = TalkingTown(tmp_path, "tells-given-up")
    async with town.all() as nodes:
        cloud, gateway = nodes["cloud"], nodes["gateway"]
        await wait_until(lambda: reaches(cloud, "Drone/1"))
        town.cut("site", "delivery:north:device")
        await wait_until(lambda: not reaches(gateway, "Drone/1"))
        await order(cloud, "Site/cloud", "Drone/1", range(1), within_s=2.0)
        await wait_until(lambda: len(gateway.dead_letters()) == 1)
        await wait_until(lambda: len(cloud.query("Site/cloud", Site).failed) == 1)
        (reason,) = cloud.query("Site/cloud", Site).failed
        assert "node 'device' runs it, and is away" in reason
        town.restore("site", "delivery:north:device")
        await order(cloud, "Site/cloud", "Drone/1", range(7, 8))
        await wait_until(lambda: heard(nodes["device"], "Drone/1") == (7,))


async def test_a_teller_without_a_handler_ignores_what_a_node_on_the_way_gave_up(tmp_path: Path) -> None:
    """The tell is one dead letter, where it was given up; its failure is none, anywhere, and nothing is owed for it."""
    town = TalkingTown(tmp_path, "tells-ignored")
    town.levels["cloud"]["agents"] = ["Site/cloud", "Boss/1"]
    async with town.all() as nodes:
        cloud, region, gateway = nodes["cloud"], nodes["region"], nodes["gateway"]
        await wait_until(lambda: reaches(cloud, "Drone/1") and reaches(gateway, "Boss/1"))
        town.cut("site", "delivery:north:device")
        await wait_until(lambda: not reaches(gateway, "Drone/1"))
        await order(cloud, "Boss/1", "Drone/1", range(1), within_s=2.0)
        await wait_until(lambda: len(gateway.dead_letters()) == 1)
        await wait_until(lambda: arrived(cloud) == 1)
        for live in (gateway, region):
            await wait_until(partial(owes_nothing, live))
        letters = {name: [tag_of(one.input) for one in live.dead_letters()] for name, live in nodes.items()}
        assert letters == {"device": [], "gateway": ["Greeted@1"], "region": [], "cloud": []}
        assert cloud.standing().counters["tells_ignored"] == 1
        town.restore("site", "delivery:north:device")
        await order(cloud, "Boss/1", "Drone/1", range(7, 8))
        await wait_until(lambda: heard(nodes["device"], "Drone/1") == (7,))


async def test_cut_links_and_killed_nodes_lose_double_and_mix_up_nothing(tmp_path: Path) -> None:
    town = TalkingTown(tmp_path, "tells-cuts")
    async with town.all() as nodes:
        cloud, device = nodes["cloud"], nodes["device"]
        await wait_until(lambda: reaches(cloud, "Drone/1"))
        cuts = [("site", "delivery:north:device"), ("up1", "delivery:north:gateway"), ("up2", "delivery:west:region")]
        for number in range(30):
            which = cuts[number % 3]
            town.cut(*which)
            await order(cloud, "Site/cloud", "Drone/1", range(number, number + 1))
            await order(device, "Drone/1", "Site/cloud", range(number, number + 1))
            await asyncio.sleep(0.02)
            town.restore(*which)
        await wait_until(lambda: len(heard(device, "Drone/1")) >= 30 and len(heard(cloud, "Site/cloud")) >= 30)
        assert heard(device, "Drone/1") == heard(cloud, "Site/cloud") == tuple(range(30))


async def test_a_gateway_sends_on_neither_its_own_tells_nor_those_of_others_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart its broker gives it what it held for its session, before it knows who is at its site."""
    town = TalkingTown(tmp_path, "tells-held")
    async with town.all() as nodes:
        gateway, cloud = nodes["gateway"], nodes["cloud"]
        await wait_until(lambda: reaches(gateway, "Site/cloud"))

        async def hand(node: str) -> None:
            item = TellItem(encode(Greeted(number=9)), 2**61)
            frame = TellFrame("delivery", "north", node, 0, 7, 1, 0, 1, [item])
            await gateway.link.router.take(BusMessage("delivery/north/agents/Site/cloud/tells", write_tells(frame)))

        before = gateway.host.feed.positions()
        monkeypatch.setattr(tell_router, "SETTLE_S", 1e9)
        await hand("device")
        monkeypatch.setattr(tell_router, "SETTLE_S", 0.0)
        await hand("gateway")
        assert gateway.host.feed.positions() == before
        await hand("device")
        await wait_until(lambda: heard(cloud, "Site/cloud") == (9,))
