"""Who is here: joins, leaves, silences, names that two nodes use; and agents that hear of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from stigmergy.agents.messages import Action
from stigmergy.base.errors import TooLarge
from stigmergy.bus.memory import MemoryBroker
from stigmergy.bus.port import BusMessage
from stigmergy.bus.presence import NAMES_COUNT_MAX, PRESENT, TWIN_GONE_S
from stigmergy.control.description import described_members
from stigmergy.control.live import Live
from stigmergy.node.declaration import Declaration
from stigmergy.sim.node import SimNode
from stigmergy.sim.run import Run
from tests.node.fleets import Dispatcher, Drone, Monitor, Outsider, cloud

TOPIC = "delivery/local/nodes/twin/presence"


class Land(Action):
    reason: str


def flying(_: SimNode) -> Declaration:
    fleet = Declaration("delivery", agents=[Drone])
    fleet.actuator(Land)(lambda order: None)
    return fleet


def dispatching(_: SimNode) -> Declaration:
    fleet = Declaration("delivery", agents=[Dispatcher, Monitor])
    fleet.members(to="Dispatcher/main")
    return fleet


class Site:
    """A dispatcher's node and a drone's node at one site."""

    def __init__(self) -> None:
        self.world = Run(1)
        self.broker = MemoryBroker()
        self.base = SimNode(self.world, dispatching, name="base", in_memory=True, broker=self.broker)
        self.drone = SimNode(
            self.world, flying, name="drone", in_memory=True, broker=self.broker, agents=("Drone/D-17",)
        )

    def dispatcher(self) -> Dispatcher:
        assert self.base.live is not None
        return self.base.live.query("Dispatcher/main", Dispatcher)

    def names(self) -> list[str]:
        assert self.base.live is not None
        return [member.node for member in self.base.live.members()]


def play(main: Callable[[Site], Awaitable[None]]) -> None:
    site = Site()

    async def scene() -> None:
        await main(site)
        for node in (site.base, site.drone):
            if node.live is not None:
                await node.stop()

    site.world.run(scene())
    assert not site.base.logbook.findings
    assert not site.drone.logbook.findings


def test_a_member_says_what_it_can_do() -> None:
    async def scene(site: Site) -> None:
        await site.drone.start()
        live = await site.base.start()
        await asyncio.sleep(1)
        base, drone = live.members()
        assert (base.node, base.kinds) == ("base", ("Dispatcher", "Monitor"))
        assert (drone.node, drone.kinds, drone.actions) == ("drone", ("Drone",), ("Land",))
        assert drone.commands == {"Drone": ("StartMission",)}
        assert drone.agents == ("Drone/D-17",)
        assert site.dispatcher().here == ("drone",)
        assert live.standing().link.members == 2

    play(scene)


def test_joins_and_leaves_reach_the_agent_that_wants_them() -> None:
    async def scene(site: Site) -> None:
        await site.base.start()
        await site.drone.start()
        await asyncio.sleep(1)
        await site.drone.stop()
        await asyncio.sleep(1)
        assert site.dispatcher().trail == ("reset", "+drone", "-drone")
        await site.drone.start()
        await asyncio.sleep(1)
        await site.drone.kill()
        await asyncio.sleep(1)
        assert site.dispatcher().trail == ("reset", "+drone", "-drone", "+drone", "-drone")
        assert site.names() == ["base"]

    play(scene)


def test_a_link_that_comes_and_goes() -> None:
    async def scene(site: Site) -> None:
        await site.base.start()
        await site.drone.start()
        await asyncio.sleep(1)
        site.broker.cut("drone")
        await asyncio.sleep(1)
        assert site.dispatcher().here == ()
        site.broker.restore("drone")
        await asyncio.sleep(1)
        assert site.dispatcher().here == ("drone",)
        # Heartbeats are no news.
        await asyncio.sleep(600)
        assert site.dispatcher().trail == ("reset", "+drone", "-drone", "+drone")

    play(scene)


def described(live: Live) -> dict[str, tuple[str, str | None]]:
    return {one.name: (one.state, one.since) for one in described_members(live.members(), live.link)}


def test_a_node_that_is_gone_stays_listed_as_away() -> None:
    async def scene(site: Site) -> None:
        live = await site.base.start()
        other = await site.drone.start()
        await asyncio.sleep(40)
        assert {state for state, _ in described(live).values()} == {"alive"}
        assert live.troubles() == other.troubles() == []
        await site.drone.kill()
        await asyncio.sleep(5)
        state, since = described(live)["drone"]
        assert (state, live.standing().link.members) == ("away", 1)
        (trouble,) = live.troubles()
        assert (trouble, trouble.code) == (f"node 'drone' is away, since {since} at the latest", "node-away")
        await asyncio.sleep(60)
        assert live.troubles() == [trouble], "since the same time"
        await site.drone.start()
        await asyncio.sleep(1)
        assert (described(live)["drone"][0], live.troubles()) == ("alive", [])
        # A node that names no agents is missed, too.
        other = site.drone.live or other
        await site.base.kill()
        await asyncio.sleep(5)
        assert [one.code for one in other.troubles()] == ["node-away"]

    play(scene)


def test_a_link_that_is_down_is_a_trouble_and_nobody_is_heard() -> None:
    async def scene(site: Site) -> None:
        live = await site.base.start()
        await site.drone.start()
        await asyncio.sleep(40)
        site.broker.cut("base")
        await asyncio.sleep(2)
        assert live.troubles() == [], "a moment is no trouble"
        await asyncio.sleep(2)
        for _ in range(2):  # Later nobody is a member any more: they may be there, for all we know.
            (trouble,) = live.troubles()
            assert (trouble.code, trouble.startswith("link local-only: ")) == ("bus-down", True)
            assert live.standing().link.members == 1
            await asyncio.sleep(300)
        site.broker.restore("base")
        await asyncio.sleep(1)
        assert live.troubles() == []
        assert {state for state, _ in described(live).values()} == {"alive"}

    play(scene)


def test_members_are_unheard_without_a_link() -> None:
    async def scene(site: Site) -> None:
        live = await site.base.start()
        await site.drone.start()
        await asyncio.sleep(1)
        site.broker.cut("base")
        await asyncio.sleep(5)
        assert {name: state for name, (state, _) in described(live).items()} == {"base": "alive", "drone": "unheard"}

    play(scene)


@pytest.mark.parametrize("is_late", [False, True])
def test_when_a_node_has_heard_all_others(is_late: bool) -> None:
    """With a link at the start: once it hears itself. Without one, others have the time between two heartbeats."""

    async def scene(site: Site) -> None:
        site.broker.cut("base")
        live = await site.base.start()
        assert live.link is not None
        presence = live.link.presence
        presence.is_late = is_late
        await asyncio.sleep(100)
        assert presence.unheard() == "there was no link to the bus since the start"
        site.broker.restore("base")
        await asyncio.sleep(5)
        assert bool(presence.unheard()) is is_late
        site.broker.cut("base")
        await asyncio.sleep(100)
        assert bool(presence.unheard()) is is_late, "on a link of 5 s they had no time"
        site.broker.restore("base")
        await asyncio.sleep(45)
        assert not presence.unheard()
        site.broker.cut("base")
        await asyncio.sleep(1)
        assert not presence.unheard(), "what was heard is known"

    play(scene)


def test_after_a_restart_the_members_are_announced_anew() -> None:
    async def scene(site: Site) -> None:
        await site.base.start()
        await site.drone.start()
        await asyncio.sleep(1)
        await site.base.kill()
        await site.drone.stop()  # nobody is there to hear it
        await site.base.start()
        await asyncio.sleep(1)
        assert site.dispatcher().here == ()
        assert site.dispatcher().trail == ("reset", "+drone", "reset")

    play(scene)


def test_one_that_falls_silent_is_gone_within_a_bound() -> None:
    async def scene(site: Site) -> None:
        outsider = await Outsider(site.broker).start("none")
        member = {"node": "twin", "run": "1", "kinds": ["Drone"]}
        await outsider.send(TOPIC, cloud(PRESENT, member), retained=True)
        live = await site.base.start()
        await asyncio.sleep(60)
        assert site.names() == ["base", "twin"]
        await asyncio.sleep(61)
        assert site.names() == ["base"]
        assert site.dispatcher().trail == ("reset", "+twin", "-twin")
        assert live.standing().counters["members_left"] == 1
        await outsider.bus.close()

    play(scene)


@pytest.mark.parametrize(
    "presence",
    [
        b"{",
        cloud("Other@1", {"node": "twin", "run": "1"}),
        cloud(PRESENT, {"node": "other", "run": "1"}),
        cloud(PRESENT, {"node": "twin"}),
        cloud(PRESENT, {"node": "twin", "run": "1", "kinds": [f"k{number}" for number in range(NAMES_COUNT_MAX + 1)]}),
    ],
)
def test_what_is_no_presence_is_counted_and_nothing_else(presence: Any) -> None:
    async def scene(site: Site) -> None:
        outsider = await Outsider(site.broker).start("none")
        live = await site.base.start()
        await asyncio.sleep(0.1)
        await outsider.send(TOPIC, presence)
        await outsider.send(TOPIC, b"", retained=True)
        assert site.names() == ["base"]
        assert live.standing().counters["presence_refused"] == (0 if presence == b"" else 1)
        await outsider.bus.close()

    play(scene)


def test_a_name_that_two_nodes_use_is_found() -> None:
    async def scene(site: Site) -> None:
        live = await site.base.start()
        outsider = await Outsider(site.broker).start("none")
        await asyncio.sleep(1)
        twin = cloud(PRESENT, {"node": "base", "run": "another", "since": "yesterday"})
        await outsider.send(TOPIC.replace("twin", "base"), twin)
        assert live.standing().link.why == ""  # it may be what our last run has left behind
        await asyncio.sleep(30)
        await outsider.send(TOPIC.replace("twin", "base"), twin)
        assert "calls itself 'base' too" in live.standing().link.why
        assert live.standing().troubles == [live.standing().link.why]
        assert live.standing().counters["name_conflicts"] == 1
        await outsider.bus.close()

    play(scene)


def test_a_crash_and_a_quick_restart_is_no_conflict() -> None:
    async def scene(site: Site) -> None:
        await site.base.start()
        await asyncio.sleep(61)
        await site.base.kill()
        live = await site.base.start()
        await asyncio.sleep(300)
        assert live.standing().counters["name_conflicts"] == 0
        assert [member.online for member in live.members()] == [True]
        outsider = await Outsider(site.broker).start("delivery/#")
        await asyncio.sleep(1)
        assert outsider.events("/base/presence")[0].data["online"] is True
        await outsider.bus.close()

    play(scene)


def test_a_node_with_very_many_agents_is_seen_all_the_same() -> None:
    """Names that others would refuse are not said: none named means any."""

    async def scene(site: Site) -> None:
        site.drone.agents = tuple(f"Drone/{number:0120}" for number in range(NAMES_COUNT_MAX + 1))
        await site.base.start()
        await site.drone.start()
        await asyncio.sleep(1)
        assert site.names() == ["base", "drone"]
        assert site.dispatcher().trail == ("reset", "+drone")
        await asyncio.sleep(300)
        assert site.dispatcher().trail == ("reset", "+drone")

    play(scene)


def test_names_that_are_many_bytes_are_not_said_either() -> None:
    async def scene(site: Site) -> None:
        site.drone.agents = tuple(f"Drone/{number:0120}" for number in range(900))
        await site.base.start()
        await site.drone.start()
        await asyncio.sleep(1)
        assert site.dispatcher().trail == ("reset", "+drone")
        assert site.base.live is not None
        assert site.base.live.dead_letters() == []

    play(scene)


def test_a_presence_flood_costs_an_agent_and_the_disk_little() -> None:
    async def scene(site: Site) -> None:
        outsider = await Outsider(site.broker).start("none")
        live = await site.base.start()
        await site.drone.start()
        await asyncio.sleep(1)
        for number in range(2_000):
            member = {"node": "twin", "run": str(number), "kinds": [f"k{number}"]}
            await outsider.bus.publish(BusMessage(TOPIC, msgspec.json.encode(cloud(PRESENT, member))))
        await asyncio.sleep(5)
        assert len(site.dispatcher().trail) < 100
        assert live.standing().counters["presence_refused"] > 1_900
        assert "drone" in site.names()
        await outsider.bus.close()

    play(scene)


def test_members_are_bounded_in_bytes() -> None:
    async def scene(site: Site) -> None:
        outsider = await Outsider(site.broker).start("none")
        live = await site.base.start()
        await asyncio.sleep(0.1)
        member = {"node": "twin", "run": "1", "version": "v" * 100_000}
        await outsider.send(TOPIC, cloud(PRESENT, member))
        assert site.names() == ["base"]
        assert live.standing().counters["presence_refused"] == 1
        await outsider.bus.close()

    play(scene)


def test_a_publish_that_fails_or_hangs_stops_neither_the_heartbeat_nor_the_watch() -> None:
    async def scene(site: Site) -> None:
        outsider = await Outsider(site.broker).start("none")
        live = await site.base.start()
        await asyncio.sleep(1)
        assert live.link is not None
        bus = live.link._bus
        for failing in (_raise, _hang):
            await outsider.send(TOPIC, cloud(PRESENT, {"node": "twin", "run": "1"}))
            assert site.names() == ["base", "twin"]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(bus, "publish", failing)
                await asyncio.sleep(130)
                assert site.names() == ["base"]
        heard = await Outsider(site.broker, "late").start("delivery/local/nodes/base/presence")
        await asyncio.sleep(61)
        assert len(heard.events("/presence")) >= 2  # what was retained, and the next heartbeat
        await outsider.bus.close()
        await heard.bus.close()

    play(scene)


async def _raise(message: BusMessage) -> None:
    raise TooLarge("not today")


async def _hang(message: BusMessage) -> None:
    await asyncio.sleep(100)


def test_a_conflict_is_over_when_the_twin_is_gone_and_three_are_found_too() -> None:
    async def scene(site: Site) -> None:
        live = await site.base.start()
        outsider = await Outsider(site.broker).start("none")
        await asyncio.sleep(1)
        for _ in range(3):
            for run in ("one", "two"):
                twin = cloud(PRESENT, {"node": "base", "run": run, "since": "yesterday"})
                await outsider.send(TOPIC.replace("twin", "base"), twin)
            await asyncio.sleep(30)
        assert "calls itself 'base' too" in live.standing().link.why
        for run in ("one", "two"):
            left = cloud(PRESENT, {"node": "base", "run": run, "online": False})
            await outsider.send(TOPIC.replace("twin", "base"), left)
        await asyncio.sleep(TWIN_GONE_S + 1)
        assert live.standing().link.why == ""
        assert live.standing().troubles == []
        await outsider.bus.close()

    play(scene)


def test_a_late_will_of_the_last_run_is_answered() -> None:
    async def scene(site: Site) -> None:
        await site.base.start()
        outsider = await Outsider(site.broker).start("delivery/local/nodes/base/presence")
        await asyncio.sleep(1)
        gone = cloud(PRESENT, {"node": "base", "run": "the last", "online": False})
        await outsider.send(TOPIC.replace("twin", "base"), gone, retained=True)
        assert outsider.events("/presence")[-1].data["online"] is True
        await outsider.bus.close()

    play(scene)


def test_what_the_broker_kept_of_a_node_that_stays_off_the_bus_is_believed_when_it_is_said_again() -> None:
    off = cloud(PRESENT, {"node": "twin", "run": "1", "off": "node 'base' runs Drone/1"})

    async def scene(site: Site) -> None:
        outsider = await Outsider(site.broker).start("none")
        await outsider.send(TOPIC, off, retained=True)  # and its node was killed, with the broker
        live = await site.base.start()
        await asyncio.sleep(1)
        assert live.standing().troubles == []
        await outsider.send(TOPIC, off, retained=True)
        assert live.standing().troubles == ["node 'twin' stays off the bus: node 'base' runs Drone/1"]
        await asyncio.sleep(130)
        assert live.standing().troubles == []
        await outsider.bus.close()

    play(scene)
