"""From sites to a region over real servers: cut links, killed servers, and everything once and in order."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.testing.nats_rig import NatsCluster, start_single
from tests.adapters.nats_gateway.towns import Arrived, Moved, numbers, region, sites, wait_until


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("hub"), name="hub", domain="hub", leaf=True) as found:
        yield found


async def test_what_the_rule_lets_through_arrives_once_and_in_order(tmp_path: Path, hub: NatsCluster) -> None:
    async with (
        sites(tmp_path, hub, "north", "south") as (north, south),
        region(tmp_path, hub) as station,
        north.node() as one,
        south.node() as other,
    ):
        for number in range(20):
            await one.observe("Drone/n", Moved(number=number))
            await one.observe("Drone/n", Arrived(number=number))
            await other.observe("Drone/s", Arrived(number=number))
        await wait_until(lambda: len(numbers(station, "n")) + len(numbers(station, "s")) >= 40)
        assert numbers(station, "n") == numbers(station, "s") == tuple(range(20))
        assert one.standing().link.link == "up"


async def test_a_site_that_is_cut_off_goes_on_and_catches_up(tmp_path: Path, hub: NatsCluster) -> None:
    async with sites(tmp_path, hub, "east") as (east,), region(tmp_path, hub) as station, east.node() as gateway:
        for way in range(3):
            await gateway.observe("Drone/e", Arrived(number=4 * way))
            await wait_until(lambda: len(numbers(station, "e")) == 4 * way + 1)  # noqa: B023 - it is awaited here
            east.proxy.cut()
            await wait_until(lambda: gateway.standing().link.link == "local-only")
            for number in range(1, 4):
                await gateway.observe("Drone/e", Arrived(number=4 * way + number))
            east.proxy.restore()
            took_s = await wait_until(lambda: len(numbers(station, "e")) == 4 * way + 4)  # noqa: B023 - the same
            print(f"caught up in {took_s:.2f} s")
        assert numbers(station, "e") == tuple(range(12))
