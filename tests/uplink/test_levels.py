"""A gateway between two levels: its site on one bus, the level above on another, the sites below on a third."""

import asyncio
from typing import Any

import pytest

from stigmergy import Fleet, UplinkRule
from stigmergy.app.config import Config, FleetConfig
from stigmergy.app.fleet import NodeConfig, find_node_config
from stigmergy.base.errors import ConfigError
from stigmergy.bus.memory import memory_broker
from stigmergy.testing.bus_rig import wait_until
from tests.uplink.stage import Arrived, Drone, Moved, Twin

SITE_BUS, UP_BUS = "memory:levels-site", "memory:levels-up"


def region() -> Fleet:
    fleet = Fleet("ground", agents=[Twin])
    fleet.collect("Drone/{id}", to="Twin/{id}", fleet="delivery", site="+")
    return fleet


def site() -> Any:
    rule = UplinkRule(only=("Arrived",))
    fleet = Fleet("delivery", agents=[Drone])
    return fleet.running(journal="memory:", bus=SITE_BUS, site="north", node="gateway", uplink=rule, uplink_to=UP_BUS)


async def test_an_uplink_leaves_by_the_bus_to_the_level_above() -> None:
    ground = region().running(journal="memory:", bus="memory:levels-region", node="region", collect_from=UP_BUS)
    async with site() as gateway, ground as station:
        await gateway.observe("Drone/1", Moved(number=1))
        for number in range(5):
            await gateway.observe("Drone/1", Arrived(number=number))
        await wait_until(lambda: len(station.query("Twin/1", Twin).trail) == 5)
        assert station.query("Twin/1", Twin).trail == tuple(f"arrived {number}" for number in range(5))
        uplink = gateway.standing().link.uplink
        assert uplink is not None
        assert uplink.to == "region"


async def test_a_gateway_without_the_level_above_is_local_only_and_its_site_goes_on() -> None:
    ground = region().running(journal="memory:", bus="memory:levels-region", node="region", collect_from=UP_BUS)
    async with site() as gateway, ground as station:
        await wait_until(lambda: gateway.standing().link.link == "up")
        assert gateway.standing().counters["local_only"] == 0
        memory_broker("levels-up").cut("delivery:north:gateway")
        await wait_until(lambda: gateway.standing().link.link == "local-only")
        assert gateway.standing().counters["local_only"] == 1
        for number in range(3):
            await gateway.observe("Drone/1", Arrived(number=number))
        await asyncio.sleep(0.1)
        assert station.query("Twin/1", Twin).trail == ()
        memory_broker("levels-up").restore("delivery:north:gateway")
        await wait_until(lambda: len(station.query("Twin/1", Twin).trail) == 3)
        assert gateway.standing().link.link == "up"


async def test_what_is_cut_off_from_its_site_is_local_only_too() -> None:
    async with site() as gateway:
        await wait_until(lambda: gateway.standing().link.link == "up")
        memory_broker("levels-site").cut("delivery:north:gateway")
        await wait_until(lambda: gateway.standing().link.link == "local-only")
        memory_broker("levels-site").restore("delivery:north:gateway")
        await wait_until(lambda: gateway.standing().link.link == "up")


async def test_devices_of_its_own_site_and_whole_sites_below_are_collected_side_by_side() -> None:
    fleet = Fleet("delivery", agents=[Drone])
    device = fleet.running(journal="memory:", bus=SITE_BUS, site="west", node="drone", uplink=UplinkRule())
    below = Fleet("delivery", agents=[Drone]).running(
        journal="memory:",
        bus="memory:levels-north",
        site="north",
        node="gateway",
        uplink=UplinkRule(),
        uplink_to=UP_BUS,
    )
    gathering = Fleet("delivery", agents=[Drone])
    gathering.collect("Drone/{id}", to="Drone/{id}")
    middle = gathering.running(journal="memory:", bus=SITE_BUS, site="west", node="region", collect_from=UP_BUS)
    async with middle as region_node, device as drone, below as gateway:
        await drone.observe("Drone/near", Arrived(number=1))
        await gateway.observe("Drone/far", Arrived(number=2))
        await wait_until(lambda: region_node.query("Drone/near", Drone).count == 1)
        await wait_until(lambda: region_node.query("Drone/far", Drone).count == 1)
        for node in (drone, gateway):
            uplink = node.standing().link.uplink
            assert uplink is not None
            assert uplink.to == "region"


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (FleetConfig(collect_from="memory:x"), "collect_from need a bus"),
        (FleetConfig(bus="memory:x", uplink_to="memory:y"), "set without an uplink"),
    ],
)
def test_levels_without_what_they_need_are_refused(place: FleetConfig, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        find_node_config(NodeConfig(), Config(fleet=place))
