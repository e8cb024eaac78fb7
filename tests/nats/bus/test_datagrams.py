"""Datagrams of a mesh on NATS: they reach who is there, by NATS and by MQTT, and no stream holds them."""

import asyncio

from stigmergy.bus.port import BusMessage
from stigmergy.bus.topics import Topics
from stigmergy.membership.bus_mesh import pattern_of, topic_of
from stigmergy.nats.address import parse_address
from stigmergy.nats.bus.options import BusOptions, read_options
from stigmergy.nats.bus.streams import ensure_streams, narrow
from stigmergy.nats.link import NatsLink
from stigmergy.nats.naming import bus_session, bus_stream
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.nats import NatsCluster
from tests.nats.bus.opening import Buses, hear


async def stored(link: NatsLink, fleet: str) -> list[str]:
    """The subjects of the fleet's own topics of which its stream holds messages."""
    info = await link.api(f"STREAM.INFO.{bus_stream(fleet)}", {"subjects_filter": f"{fleet}.>"})
    return sorted(info["state"].get("subjects") or {})


async def subjects(link: NatsLink, fleet: str) -> set[str]:
    return set((await link.api(f"STREAM.INFO.{bus_stream(fleet)}"))["config"]["subjects"])


def options(server: NatsCluster, fleet: str) -> BusOptions:
    return read_options(f"{server.url}?stored_mb=16", f"{fleet}:north:tool")


async def capture_all(link: NatsLink, server: NatsCluster, fleet: str) -> None:
    """Makes the fleet's stream as an earlier version has left it: it captures all topics of the fleet."""
    found = await ensure_streams(link, options(server, fleet))
    wide = [*(one for one in found.config["subjects"] if not one.startswith(f"{fleet}.")), f"{fleet}.>"]
    await link.api(f"STREAM.UPDATE.{bus_stream(fleet)}", {**found.config, "subjects": wide})


async def test_datagrams_reach_nodes_and_devices_and_are_not_stored(server: NatsCluster, buses: Buses) -> None:
    topics = Topics("meshed", "north")
    one, other = [await buses.nats(server.url, f"meshed:north:{node}") for node in ("one", "other")]
    device = await buses.mqtt(server, "meshed-device")
    by_one, by_device = await hear(one, pattern_of(topics, "one")), await hear(device, pattern_of(topics, "device"))
    await other.publish(BusMessage(topic_of(topics, "one", "other"), b"by NATS"))
    await device.publish(BusMessage(topic_of(topics, "one", "device"), b"by MQTT"))
    await one.publish(BusMessage(topic_of(topics, "device", "one"), b"back"))
    await one.publish(BusMessage("meshed/north/agents/Drone/D-1/events/seen", b"an event"))
    await wait_until(lambda: sorted(by_one.payloads) == [b"by MQTT", b"by NATS"] and by_device.payloads == [b"back"])
    link = await NatsLink.open(parse_address(server.url), name="tool")
    assert await stored(link, "meshed") == ["meshed.north.agents.Drone.D-1.events.seen"]
    await link.close()


async def test_stored_datagrams_of_an_earlier_version_are_passed_over(server: NatsCluster, buses: Buses) -> None:
    """An answer to each of thousands would be a flood, and newer ones say more."""
    link = await NatsLink.open(parse_address(server.url), name="tool")
    await capture_all(link, server, "before")
    topics, client_id = Topics("before", "north"), "before:north:one"
    session = {
        "durable_name": bus_session(client_id),
        "ack_policy": "explicit",
        "filter_subjects": ["before.north.mesh.one.*", "before.north.agents.*.*.commands"],
        "metadata": {"stig-since": '{"before.north.mesh.one.*":0,"before.north.agents.*.*.commands":0}'},
        "priority_groups": ["owner"],
        "priority_policy": "pinned_client",
        "priority_timeout": 60_000_000_000,
    }
    stream = bus_stream("before")
    await link.api(f"CONSUMER.CREATE.{stream}.{bus_session(client_id)}", {"stream_name": stream, "config": session})
    for number in range(100):
        await link.publish("before.north.mesh.one.other", b"%d" % number)
    await link.publish("before.north.agents.Drone.D-1.commands", b"go")
    one = await buses.nats(server.url, client_id)
    datagrams = await hear(one, pattern_of(topics, "one"))
    commands = await hear(one, "before/north/agents/+/+/commands")
    await wait_until(lambda: commands.payloads == [b"go"])
    await asyncio.sleep(0.2)
    assert datagrams.payloads == []
    other = await buses.nats(server.url, "before:north:other")
    await other.publish(BusMessage(topic_of(topics, "one", "other"), b"now"))
    await wait_until(lambda: datagrams.payloads == [b"now"])
    await link.close()


async def test_stream_of_an_earlier_version_stops_to_capture_datagrams(server: NatsCluster, buses: Buses) -> None:
    """Once nobody reads them; and what sessions read stays captured."""
    link = await NatsLink.open(parse_address(server.url), name="tool")
    await capture_all(link, server, "older")
    node = await buses.nats(server.url, "older:north:node")
    heard = await hear(node, "older/soil/+")
    stream = bus_stream("older")
    old = {"durable_name": "old", "ack_policy": "explicit", "filter_subjects": ["older.north.mesh.old.*"]}
    await link.api(f"CONSUMER.CREATE.{stream}.old", {"stream_name": stream, "config": old})
    await narrow(link, options(server, "older"))
    assert "older.>" in await subjects(link, "older")
    await link.api(f"CONSUMER.DELETE.{stream}.old")
    await narrow(link, options(server, "older"))
    now = await subjects(link, "older")
    assert "older.>" not in now
    assert {"older.*.agents.>", "older.*.nodes.>", "older.*.uplink.>", "older.soil.*"} <= now
    await node.publish(BusMessage("older/soil/7", b"12"))
    await wait_until(lambda: heard.payloads == [b"12"])
    await link.close()


async def test_topics_that_overlap_the_fleets_own_are_heard(server: NatsCluster, buses: Buses) -> None:
    """`garden.soil.*.level` and `garden.*.agents.>` overlap, which JetStream refuses in one stream."""
    node = await buses.nats(server.url, "garden:north:node")
    heard = await hear(node, "garden/soil/+/level")
    device = await buses.mqtt(server, "garden-device")
    await device.publish(BusMessage("garden/soil/7/level", b"12"))
    await wait_until(lambda: heard.payloads == [b"12"])


async def test_stream_captures_other_topics_of_the_fleet_once_a_node_publishes_there(
    server: NatsCluster, buses: Buses
) -> None:
    """Also if nobody listens yet: a publish is not over before the message is stored."""
    link = await NatsLink.open(parse_address(server.url), name="tool")
    node = await buses.nats(server.url, "barn:north:node")
    await node.publish(BusMessage("barn/doors/7", b"shut"))
    assert await stored(link, "barn") == ["barn.doors.7"]
    await narrow(link, options(server, "barn"))
    assert "barn.>" in await subjects(link, "barn")
    await link.close()
