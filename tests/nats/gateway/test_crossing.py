"""From sites to a region over real servers: cut links, killed servers, and everything once and in order."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.app.gateway import config_bucket
from stigmergy.base.system import SystemClock
from stigmergy.control.live import Live
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.nats.address import parse_address
from stigmergy.nats.gateway.crossing import Crossing, CrossingPlan
from stigmergy.nats.gateway.hub import SiteClaim
from stigmergy.nats.gateway.uplink_bus import UplinkBus
from stigmergy.nats.ledger import open_ledger
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.configuration import User
from stigmergy.nats.servers.server import LOOPBACK, free_ports
from stigmergy.nats.store import open_store
from stigmergy.nats.streams import find_stream
from stigmergy.network.signed_bus import SignedBus
from stigmergy.testing.nats import NatsCluster, start_single
from tests.nats.gateway.towns import WAIT_S_MAX, Arrived, Moved, numbers, region, sites, wait_until

SIGNER = Ed25519Signer(b"\x01" * 32)


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
        for way in range(2):
            await gateway.observe("Drone/e", Arrived(number=4 * way))
            await wait_until(lambda: len(numbers(station, "e")) == 4 * way + 1)  # noqa: B023 - it is awaited here
            east.proxy.cut()
            await wait_until(lambda: gateway.standing().link.link == "local-only")
            for number in range(1, 4):
                await gateway.observe("Drone/e", Arrived(number=4 * way + number))
            east.proxy.restore()
            took_s = await wait_until(lambda: len(numbers(station, "e")) == 4 * way + 4)  # noqa: B023 - the same
            print(f"caught up in {took_s:.2f} s")
        assert numbers(station, "e") == tuple(range(8))


async def test_a_link_that_hangs_is_noticed_and_given_up(tmp_path: Path, hub: NatsCluster) -> None:
    async with sites(tmp_path, hub, "hill") as (hill,), region(tmp_path, hub) as station, hill.node() as gateway:
        await gateway.observe("Drone/h", Arrived(number=0))
        await wait_until(lambda: numbers(station, "h") == (0,))
        hill.proxy.stall()
        await gateway.observe("Drone/h", Arrived(number=1))
        await wait_until(lambda: gateway.standing().link.link == "local-only")
        await gateway.observe("Drone/h", Arrived(number=2))
        hill.proxy.restore()
        await wait_until(lambda: len(numbers(station, "h")) == 3)
        assert numbers(station, "h") == (0, 1, 2)


async def test_a_region_that_was_away_goes_on_where_it_was(tmp_path: Path, hub: NatsCluster) -> None:
    async with sites(tmp_path, hub, "lake") as (lake,), lake.node() as gateway:
        for number in range(2):
            async with region(tmp_path, hub) as station:
                await gateway.observe("Drone/l", Arrived(number=2 * number))
                await wait_until(lambda: len(numbers(station, "l")) >= 2 * number + 1)  # noqa: B023 - awaited here
            await gateway.observe("Drone/l", Arrived(number=2 * number + 1))
        async with region(tmp_path, hub) as station:
            await wait_until(lambda: len(numbers(station, "l")) == 4)
            assert numbers(station, "l") == tuple(range(4))


async def test_a_leaf_server_that_is_killed_comes_back_with_its_site(tmp_path: Path, hub: NatsCluster) -> None:
    async with sites(tmp_path, hub, "mill") as (mill,), region(tmp_path, hub) as station, mill.node() as gateway:
        for turn in range(2):
            await gateway.observe("Drone/m", Arrived(number=2 * turn))
            mill.leaf.kill()
            await wait_until(lambda: gateway.standing().link.link == "local-only")
            await gateway.observe("Drone/m", Arrived(number=2 * turn + 1))
            mill.leaf.start()
            await wait_until(lambda: len(numbers(station, "m")) == 2 * turn + 2)  # noqa: B023 - awaited here
        assert numbers(station, "m") == tuple(range(4))


async def test_a_leaf_that_has_lost_its_disk_is_taken_from_its_beginning(tmp_path: Path, hub: NatsCluster) -> None:
    async with sites(tmp_path, hub, "bay") as (bay,), region(tmp_path, hub) as station, bay.node() as gateway:
        for number in range(10):
            await gateway.observe("Drone/b", Arrived(number=number))
            await wait_until(lambda: len(numbers(station, "b")) == number + 1)  # noqa: B023 - awaited here
        bay.leaf.kill()
        shutil.rmtree(bay.leaf.plan.store)
        bay.leaf.start()
        await gateway.observe("Drone/b", Arrived(number=10))
        await wait_until(lambda: len(numbers(station, "b")) == 11)
        assert numbers(station, "b") == tuple(range(11))
        crossing = crossing_of(gateway)
        assert crossing.watch.renewals == 1


async def test_a_source_that_sleeps_is_woken_up(tmp_path: Path, hub: NatsCluster) -> None:
    async with sites(tmp_path, hub, "dune") as (dune,), region(tmp_path, hub) as station, dune.node() as gateway:
        await gateway.observe("Drone/d", Arrived(number=0))
        await wait_until(lambda: numbers(station, "d") == (0,))
        link = await NatsLink.open(parse_address(hub.url), name="test")
        try:
            name = "STIG_UPLINK_dune"
            config = (await link.api(f"STREAM.INFO.{name}"))["config"]
            nowhere = [{"name": name, "external": {"api": "$JS.nowhere.API", "deliver": ""}}]
            await link.api(f"STREAM.UPDATE.{name}", {**config, "sources": nowhere})
            await gateway.observe("Drone/d", Arrived(number=1))
            await wait_until(lambda: numbers(station, "d") == (0, 1))
            assert crossing_of(gateway).watch.wakes >= 1
            # And one that was taken away by somebody who was ended before giving it back.
            config = (await link.api(f"STREAM.INFO.{name}"))["config"]
            await link.api(f"STREAM.UPDATE.{name}", {**config, "sources": []})
            await gateway.observe("Drone/d", Arrived(number=2))
            await wait_until(lambda: numbers(station, "d") == (0, 1, 2))
        finally:
            await link.close()


async def test_a_hub_that_is_killed_has_everything_when_it_is_back(tmp_path: Path) -> None:
    with start_single(tmp_path / "hub", name="hub", domain="hub", leaf=True) as hub:
        async with (
            sites(tmp_path, hub, "north", "south") as (north, south),
            region(tmp_path, hub) as station,
            north.node() as one,
            south.node() as other,
        ):
            for turn in range(2):
                hub.kill(0)
                await wait_until(lambda: one.standing().link.link == "local-only")
                for number in range(5):
                    await one.observe("Drone/n", Arrived(number=5 * turn + number))
                    await other.observe("Drone/s", Arrived(number=5 * turn + number))
                hub.start_again(0)
                count = 5 * turn + 5
                took_s = await wait_until(lambda: len(numbers(station, "n")) == len(numbers(station, "s")) == count)  # noqa: B023 - awaited here
                print(f"caught up {took_s:.2f} s after the hub was back")
            assert numbers(station, "n") == numbers(station, "s") == tuple(range(10))


async def test_three_servers_are_a_hub_that_survives_its_leader(tmp_path: Path) -> None:
    with NatsCluster.start(tmp_path / "hub", nodes=3, domain="hub", leaf=True) as hub:
        ports = ",".join(f"{LOOPBACK}:{server.plan.leaf_port}" for server in hub.servers)
        async with sites(tmp_path, hub, "north", hubs=tuple(ports.split(","))) as (north,):
            up = f"{north.up_at(ports)}&replicas=3"
            async with region(tmp_path, hub) as station, north.node(uplink_to=up) as gateway:
                await gateway.observe("Drone/n", Arrived(number=0))
                await wait_until(lambda: numbers(station, "n") == (0,))
                leader = await hub.leader_of("STIG_UPLINK_north")
                assert leader is not None
                hub.kill(leader)
                for number in range(1, 6):
                    await gateway.observe("Drone/n", Arrived(number=number))
                took_s = await wait_until(lambda: len(numbers(station, "n")) == 6)
                print(f"caught up in {took_s:.2f} s without the server that led")
                assert numbers(station, "n") == tuple(range(6))


async def test_of_two_gateways_with_one_name_the_first_has_it(tmp_path: Path, hub: NatsCluster) -> None:
    async with (
        sites(tmp_path / "a", hub, "twin") as (first,),
        sites(tmp_path / "b", hub, "twin") as (second,),
        first.node() as known,
    ):
        await wait_until(lambda: known.standing().link.link == "up")
        up = second.up.replace("gateway=twin-1", "gateway=twin-2&host=elsewhere")
        async with second.node(uplink_to=up) as other:
            await wait_until(lambda: any("another gateway" in trouble for trouble in other.standing().troubles))
            assert other.standing().link.link == "local-only"
            await other.observe("Drone/t", Arrived(number=1))
            assert known.standing().link.link == "up"


async def test_a_hub_that_cannot_be_one_is_said_and_the_site_goes_on(tmp_path: Path, hub: NatsCluster) -> None:
    (nobody,) = free_ports(1)
    with start_single(tmp_path / "plain", leaf=True, has_jetstream=False) as plain:
        port = plain.servers[0].plan.leaf_port
        async with sites(tmp_path, hub, "cape") as (cape,):
            for where, why in ((nobody, "no hub answers"), (port, "without JetStream")):
                async with cape.node(uplink_to=cape.up_at(f"{LOOPBACK}:{where}")) as gateway:
                    await wait_until(lambda: why in gateway.standing().link.why)  # noqa: B023 - awaited here
                    assert gateway.standing().link.link == "local-only"
                    await gateway.observe("Drone/c", Arrived(number=1))


async def test_what_the_hub_says_is_read_at_the_site_while_it_is_cut_off(tmp_path: Path, hub: NatsCluster) -> None:
    bucket = config_bucket("delivery")
    store = await open_store(hub.url, SystemClock())
    keys, objects = await store.key_value(bucket), await store.objects(bucket)
    await keys.put("flags.night", b"on")
    await objects.put("model", b"weights")
    async with sites(tmp_path, hub, "moor") as (moor,), moor.node(uplink_to=f"{moor.up}&mirror={bucket}") as gateway:
        below = await open_store(moor.leaf.url, SystemClock())
        await wait_until(lambda: gateway.standing().link.link == "up")
        link = await NatsLink.open(parse_address(moor.leaf.url), name="test")
        await wait_for_stream(link, f"OBJ_{bucket}", 2)
        await wait_for_stream(link, f"KV_{bucket}", 1)
        moor.proxy.cut()
        await wait_until(lambda: gateway.standing().link.link == "local-only")
        found = await (await below.key_value(bucket)).get("flags.night")
        assert found is not None
        assert found.value == b"on"
        assert await (await below.objects(bucket)).get("model") == b"weights"
        await keys.put("flags.night", b"off")
        moor.proxy.restore()
        await wait_for_stream(link, f"KV_{bucket}", 2)
        found = await (await below.key_value(bucket)).get("flags.night")
        assert found is not None
        assert found.value == b"off"
        await link.close()
        await below.close()
    await store.close()


async def test_ledgers_of_one_name_at_a_site_and_at_its_hub_are_two(tmp_path: Path, hub: NatsCluster) -> None:
    async with sites(tmp_path, hub, "fen") as (fen,), fen.node() as gateway:
        await wait_until(lambda: gateway.standing().link.link == "up")
        above, below = open_ledger(hub.url, "town", signer=SIGNER), open_ledger(fen.leaf.url, "town", signer=SIGNER)
        for number in range(5):
            assert await above.append([b"above"]) == number + 1
            assert await below.append([b"below"]) == number + 1
        assert [entry.body for entry in await above.read(0)] == [b"above"] * 5
        assert [entry.body for entry in await below.read(0)] == [b"below"] * 5
        assert above.state.counts.forged == below.state.counts.forged == 0
        await above.close()
        await below.close()


async def test_an_answer_that_nobody_has_foreseen_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    async def look(_: Crossing) -> None:
        looks.append("look")
        if len(looks) < 3:
            raise KeyError("state")

    monkeypatch.setattr(Crossing, "_look", look)
    heard: list[bool] = []
    address = parse_address("nats://127.0.0.1:9")
    crossing = Crossing(
        CrossingPlan(leaf=address, claim=SiteClaim("moss", "1"), hubs=()), NatsLink(address, name="moss"), heard.append
    )
    crossing.start()
    await wait_until(lambda: heard == [True])
    await crossing.stop()


async def wait_for_stream(link: NatsLink, stream: str, last: int) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            found = await find_stream(link, stream)
            if found is not None and found.last_sequence >= last:
                return
            await asyncio.sleep(0.05)


def crossing_of(live: Live) -> Crossing:
    assert live.link is not None
    above = live.link.relay.levels.above
    assert isinstance(above, SignedBus)
    bus = above.bus
    assert isinstance(bus, UplinkBus)
    assert bus.crossing is not None
    return bus.crossing


async def test_a_hub_that_wants_a_password_lets_in_who_has_it(tmp_path: Path) -> None:
    users = (User("site", "secret"),)
    with start_single(tmp_path / "hub", name="hub", domain="hub", leaf=True, users=users) as hub:
        port = hub.servers[0].plan.leaf_port
        async with (
            sites(tmp_path, hub, "north", hubs=(f"site:secret@{LOOPBACK}:{port}",)) as (north,),
            sites(tmp_path, hub, "south", hubs=(f"site:wrong@{LOOPBACK}:{port}",)) as (south,),
            north.node(uplink_to=north.up_at(f"{LOOPBACK}:{port}")) as one,
            south.node(uplink_to=south.up_at(f"{LOOPBACK}:{port}")) as other,
        ):
            await wait_until(lambda: one.standing().link.link == "up")
            await wait_until(lambda: "USER:PASSWORD@" in other.standing().link.why)
            assert other.standing().link.link == "local-only"
