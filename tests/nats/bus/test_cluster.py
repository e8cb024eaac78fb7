"""A bus on three servers: the one that leads its stream is killed while messages are under way."""

import asyncio
from collections.abc import Iterator

import pytest

from stigmergy.bus.port import BusMessage
from stigmergy.nats.bus.partition import Partition
from stigmergy.nats.naming import bus_stream
from stigmergy.shard.homes import shard_of
from stigmergy.testing.bus_rig import Marking, publish_surely, wait_until
from stigmergy.testing.nats import NatsCluster
from tests.nats.bus.opening import Buses, hear

TOPIC = "f/north/agents/Drone/D-1/commands"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with NatsCluster.start(tmp_path_factory.mktemp("cluster"), nodes=3) as three:
        yield three


async def test_leader_that_is_killed_takes_nothing_along(cluster: NatsCluster, buses: Buses) -> None:
    """Neither from a session on the fleet's stream, nor from one on the sorted stream, which is fed from it."""
    url = f"{cluster.url}?replicas=3&stored_mb=16&will_s=3"
    plain, by_shard = Marking(), Marking()
    node = await buses.nats(url, "f:north:node")
    await node.subscribe("f/north/agents/+/+/commands", plain)
    shard = await buses.nats(url, "f:north:shard", partition=Partition(shard_of("Drone/D-1", 4), 4))
    await shard.subscribe("f/north/agents/+/+/commands", by_shard)
    sender = await buses.nats(url, "f:north:sender", will=BusMessage("f/north/nodes/sender/presence", b"gone"))
    presence = await hear(node, "f/north/nodes/+/presence")
    await publish_surely(sender, TOPIC, range(1, 51))
    await wait_until(lambda: len(plain.taken) >= 50 and len(by_shard.taken) >= 50)
    leader = await cluster.leader_of(bus_stream("f"))
    assert leader is not None
    publishing = asyncio.ensure_future(publish_surely(sender, TOPIC, range(51, 301)))
    await wait_until(lambda: len(plain.taken) >= 100)
    # Nothing is awaited in between: messages are under way when the leader is killed.
    assert not publishing.done()
    cluster.kill(leader)
    await publishing
    await wait_until(lambda: len(plain.taken) >= 300 and len(by_shard.taken) >= 300)
    assert plain.taken == by_shard.taken == [*range(1, 301)]
    # The election may have taken longer than the will's time: then the sender was said to be gone, and is back.
    await wait_until(lambda: node.is_up and sender.is_up)
    told_count = len(presence.payloads)
    await sender._link.close()
    await wait_until(lambda: len(presence.payloads) > told_count)
    assert {*presence.payloads} == {b"gone"}
