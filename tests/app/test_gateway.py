"""Gateways put together in one program: where their nodes are, whose a site is, and what stays at a level."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from stigmergy import Fleet
from stigmergy.app.cluster_client import ClusterClient
from stigmergy.app.config import Config
from stigmergy.app.fleet import NodeConfig, Running
from stigmergy.app.gateway import (
    GatewayPlan,
    HubCollector,
    HubPlan,
    Leaf,
    config_bucket,
    drop_claim,
    hub_tls,
    make_leaf,
    node_config_of,
    topic_roots,
)
from stigmergy.app.workers import NatsWorker
from stigmergy.base.errors import ConfigError, LinkDown, StoreUnavailable
from stigmergy.base.system import SystemClock
from stigmergy.control.live import Live
from stigmergy.control.protocol import StateRequest, answers_to
from stigmergy.nats.address import parse_address
from stigmergy.nats.link import NatsLink
from stigmergy.nats.servers.server import LOOPBACK
from stigmergy.store.memory import open_store
from stigmergy.testing.nats import start_single
from stigmergy.uplink.distributor import Distributor
from tests.nats.gateway.towns import FAST, WAIT_S_MAX, Arrived, Drone, wait_until


def delivery() -> Fleet:
    fleet = Fleet("delivery", agents=[Drone])
    fleet.device("agents/{id}/arrived", to="Drone/{id}", event=Arrived)
    fleet.device("{place}/{id}/arrived", to="Drone/{id}", event=Arrived)
    return fleet


def plan_of(folder: Path, site: str, **more: object) -> GatewayPlan:
    plan = GatewayPlan(fleet=delivery(), site=site, folder=folder / site, bus="mqtt")
    return structs.replace(plan, **more)


@contextlib.asynccontextmanager
async def gateway(plan: GatewayPlan, *, take_over: bool = False) -> AsyncIterator[tuple[Live, Leaf]]:
    leaf = make_leaf(plan)
    await leaf.start()
    try:
        if take_over:
            await drop_claim(plan, leaf)
        place = (f"sqlite:{plan.folder / 'd.db'}", plan.folder / "d.key")
        async with Running(plan.fleet, Config(), *place, FAST, (), (), node_config_of(plan, leaf)) as live:
            yield live, leaf
    finally:
        await leaf.stop()


def numbers(live: Live, name: str) -> tuple[int, ...]:
    found: tuple[int, ...] = live.query(f"Drone/{name}", Drone).numbers
    return found


async def test_a_name_that_is_taken_at_the_hub_is_not_had_twice(tmp_path: Path) -> None:
    async with gateway(plan_of(tmp_path, "west", leaf_port=0)) as (region, hub):
        hubs = (f"{LOOPBACK}:{hub.server.plan.leaf_port}",)
        second = plan_of(tmp_path / "b", "north", hubs=hubs, node="other")
        async with gateway(plan_of(tmp_path / "a", "north", hubs=hubs)) as (first, leaf):
            await wait_until(lambda: first.standing().link.link == "up")
            leaf.recognise()
            async with gateway(second) as (other, _):
                await wait_until(lambda: any("another gateway" in one for one in other.standing().troubles))
                await other.observe("Drone/8", Arrived(number=8))
                await first.observe("Drone/7", Arrived(number=7))
                await wait_until(lambda: numbers(region, "7") == (7,))
                assert numbers(region, "8") == (), "nothing of the second one goes up"
                assert other.standing().link.link == "local-only"
        # The first is gone for good: the second has its place when somebody says so.
        async with gateway(second, take_over=True) as (other, leaf):
            await wait_until(lambda: other.standing().link.link == "up")
            leaf.recognise()
            await wait_until(lambda: numbers(region, "8") == (8,))


async def test_to_take_over_needs_the_hub(tmp_path: Path) -> None:
    with pytest.raises(LinkDown, match="no hub answers"):
        async with gateway(plan_of(tmp_path, "north", hubs=(f"{LOOPBACK}:1",)), take_over=True):
            pass


async def test_what_is_published_at_a_level_stays_there(tmp_path: Path) -> None:
    heard: list[str] = []

    async def hear(message: object) -> None:
        heard.append(getattr(message, "subject", ""))

    async with gateway(plan_of(tmp_path, "west", leaf_port=0)) as (_, hub):
        hubs = (f"{LOOPBACK}:{hub.server.plan.leaf_port}",)
        async with gateway(plan_of(tmp_path, "north", hubs=hubs)) as (site, leaf):
            await wait_until(lambda: site.standing().link.link == "up")
            above = await NatsLink.open(parse_address(f"nats://{hub.address}"), name="above")
            below = await NatsLink.open(parse_address(f"nats://{leaf.address}"), name="below")
            try:
                for subject in ("delivery.>", "agents.>", "stig.*.bus.>", "other.>"):
                    await above.subscribe(subject, hear)
                await above.flush()
                await cross(below, "other.begin", heard)
                for subject in ("delivery.north.x", "agents.7.arrived", "stig.delivery.bus.x"):
                    await below.tell(subject, b"stays")
                # What is of no level crosses, as NATS would have it, and behind all that came before it.
                await cross(below, "other.end", heard)
                assert [one for one in heard if not one.startswith("other.")] == []
            finally:
                await above.close()
                await below.close()


async def cross(link: NatsLink, subject: str, heard: list[str]) -> None:
    """Says it until it is heard on the other side."""
    async with asyncio.timeout(WAIT_S_MAX):
        while subject not in heard:
            await link.tell(subject, b"crosses")
            await asyncio.sleep(0.02)


def test_the_topics_of_a_fleet_and_its_devices_are_known_where_they_are_fixed() -> None:
    assert topic_roots(delivery()) == ("delivery", "agents")


def test_files_for_a_hub_that_wants_tls() -> None:
    assert hub_tls(None, None, None) is None
    found = hub_tls("ca.pem", None, None)
    assert found is not None
    assert (found.ca, found.cert) == ("ca.pem", "")
    with pytest.raises(ConfigError, match="belong together"):
        hub_tls("ca.pem", "site.pem", None)


def test_a_fleet_has_one_bucket_of_configuration() -> None:
    assert config_bucket("delivery") == "stig-config-delivery"
    assert config_bucket("a b") != config_bucket("a_b")


async def test_a_bus_that_is_none_of_a_gateway_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="by nats or mqtt"):
        async with gateway(plan_of(tmp_path, "north", bus="pigeon", hubs=("hub",))):
            pass


async def test_what_sites_send_up_reaches_the_workers_of_a_cluster(tmp_path: Path) -> None:
    said: list[str] = []
    agents = [f"Drone/{number}" for number in range(6)]
    with start_single(tmp_path / "hub", name="hub", domain="hub", leaf=True) as hub:
        many = Fleet("delivery", agents=[Drone], shards=4)
        where = NodeConfig(bus=hub.url, site="local")
        plan = HubPlan(fleet=many, url=hub.url)
        hubs = (f"{LOOPBACK}:{hub.servers[0].plan.leaf_port}",)
        async with (
            NatsWorker(many, hub.url, Config(settings=FAST), key=tmp_path / "w.key", node_config=where) as worker,
            gateway(plan_of(tmp_path, "north", hubs=hubs)) as (site, leaf),
        ):
            working = asyncio.ensure_future(worker.run())
            first, second = (
                asyncio.ensure_future(HubCollector(plan, lambda word, _: said.append(word)).run()) for _ in range(2)
            )
            await wait_until(lambda: sorted(said) == ["hands-out", "waits"])
            await wait_until(lambda: site.standing().link.link == "up")
            leaf.recognise()
            for number in range(5):
                for agent in agents:
                    await site.observe(agent, Arrived(number=number))
            await wait_for_cluster(hub.url, many, agents, 5)
            # Whoever hands out goes, and the other one goes on where it was.
            active = first if said[0] == "hands-out" else second
            active.cancel()
            for number in range(5, 10):
                for agent in agents:
                    await site.observe(agent, Arrived(number=number))
            await wait_for_cluster(hub.url, many, agents, 10)
            for task in (first, second, working):
                task.cancel()
            await asyncio.gather(first, second, working, return_exceptions=True)


async def test_who_cannot_begin_to_hand_out_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a bus under its name, which the next try would quarrel with, nor the lease."""
    done: list[str] = []

    async def begin(_: Distributor) -> None:
        raise StoreUnavailable("the marks cannot be read; try again")

    async def end(_: Distributor) -> None:
        done.append("ended")

    monkeypatch.setattr(Distributor, "start", begin)
    monkeypatch.setattr(Distributor, "stop", end)
    clock = SystemClock()
    store = await open_store("memory:who-cannot-begin", clock)
    keys = await store.key_value("uplinks")
    lease = await keys.acquire("collector", b"one", 3)
    assert lease is not None
    collector = HubCollector(HubPlan(fleet=delivery(), url="nats://127.0.0.1:9"), lambda word, _: done.append(word))
    with pytest.raises(StoreUnavailable):
        await collector._hand_out(keys, lease, clock)
    assert done == ["ended"]
    assert collector.distributor is None
    assert await keys.acquire("collector", b"two", 3) is not None
    await store.close()


async def wait_for_cluster(url: str, fleet: Fleet, agents: list[str], count: int) -> None:
    """Until the workers' agents have heard so many numbers, all in order."""

    def heard() -> list[list[int]]:
        client = ClusterClient(url, fleet)
        try:
            asked = [answers_to(client.ask(StateRequest(agent=agent))) for agent in agents]
            return [found.state["numbers"] for (found,) in asked]
        finally:
            client.close()

    deadline_s = time.monotonic() + WAIT_S_MAX
    while (found := await asyncio.to_thread(heard)) != [list(range(count))] * len(agents):
        assert time.monotonic() < deadline_s, found
        await asyncio.sleep(0.1)
