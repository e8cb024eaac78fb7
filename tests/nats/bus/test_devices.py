"""Devices by MQTT and nodes by NATS on one server: both ways, held for who is away, retained, and with wills."""

import asyncio
import json
import urllib.request

from stigmergy.bus.mqtt import MqttBus
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.nats.bus.bus import NatsBus
from stigmergy.testing.bus_rig import HandlerLog, wait_until
from stigmergy.testing.nats import NatsCluster
from tests.nats.bus.opening import Buses, hear


async def both(server: NatsCluster, buses: Buses, fleet: str) -> tuple[NatsBus, MqttBus]:
    device = await buses.mqtt(server, f"{fleet}-device")
    return await buses.nats(server.url, f"{fleet}:north:node"), device


def connections(server: NatsCluster, client_id: str) -> int:
    """How many connections of a device the server has."""
    url = f"http://127.0.0.1:{server.servers[0].plan.http_port}/connz?mqtt_client={client_id}"
    with urllib.request.urlopen(url, timeout=30.0) as answer:
        return int(json.load(answer)["num_connections"])


async def test_what_nodes_say_reaches_devices_and_the_other_way_round_once(server: NatsCluster, buses: Buses) -> None:
    node, device = await both(server, buses, "mixed")
    by_node, by_device = await hear(node, "mixed/north/#"), await hear(device, "mixed/north/#")
    speakers: list[Bus] = [node, device, node, device]
    for number, bus in enumerate(speakers):
        await bus.publish(BusMessage(f"mixed/north/agents/Drone/D-{number}/commands", b"%d" % number))
    await wait_until(lambda: len(by_node.payloads) >= 4 and len(by_device.payloads) >= 4)
    await asyncio.sleep(0.3)
    for heard in (by_node, by_device):
        assert sorted(heard.payloads) == [b"0", b"1", b"2", b"3"]
        assert {message.topic for message in heard.messages} == {
            f"mixed/north/agents/Drone/D-{number}/commands" for number in range(4)
        }


async def test_topics_of_devices_are_heard_though_they_are_not_the_fleets(server: NatsCluster, buses: Buses) -> None:
    """With a dot and with an empty level, which NATS writes otherwise."""
    node, device = await both(server, buses, "outside")
    by_node, by_device = await hear(node, "sensors/+/temp.raw/#"), await hear(device, "orders/+")
    await device.publish(BusMessage("sensors/7/temp.raw//x", b"21"))
    await node.publish(BusMessage("orders/7", b"go"))
    await wait_until(lambda: by_node.payloads == [b"21"] and by_device.payloads == [b"go"])
    assert by_node.messages[0].topic == "sensors/7/temp.raw//x"


async def test_device_that_is_away_gets_what_nodes_said_meanwhile(server: NatsCluster, buses: Buses) -> None:
    node, device = await both(server, buses, "away")
    await hear(device, "away/north/agents/Drone/D-1/commands")
    assert connections(server, "away-device") == 1
    await device.close()
    # What a server sends to a device that is leaving comes again after `ack_wait`, behind what was said later.
    await wait_until(lambda: connections(server, "away-device") == 0)
    for number in range(5):
        await node.publish(BusMessage("away/north/agents/Drone/D-1/commands", b"%d" % number))
    heard = HandlerLog()
    device = await buses.mqtt(server, "away-device")
    await device.subscribe("away/north/agents/Drone/D-1/commands", heard)
    await wait_until(lambda: heard.first_payloads == [b"%d" % number for number in range(5)])


async def test_node_that_is_away_gets_what_devices_said_meanwhile(server: NatsCluster, buses: Buses) -> None:
    node, device = await both(server, buses, "absent")
    await hear(node, "absent/north/agents/+/+/inputs")
    await node.close()
    for number in range(5):
        await device.publish(BusMessage("absent/north/agents/Drone/D-1/inputs", b"%d" % number))
    node = await buses.nats(server.url, "absent:north:node")
    heard = await hear(node, "absent/north/agents/+/+/inputs")
    await wait_until(lambda: heard.payloads == [b"%d" % number for number in range(5)])


async def test_retained_messages_are_found_by_who_comes_later(server: NatsCluster, buses: Buses) -> None:
    node, device = await both(server, buses, "kept")
    await node.publish(BusMessage("kept/north/nodes/node/presence", b"node", retained=True))
    await device.publish(BusMessage("kept/north/nodes/device/presence", b"device", retained=True))
    latecomers: list[Bus] = [await buses.nats(server.url, "kept:north:late"), await buses.mqtt(server, "kept-late")]
    for bus in latecomers:
        heard = await hear(bus, "kept/north/nodes/+/presence")
        await wait_until(lambda: sorted(heard.payloads) == [b"device", b"node"])  # noqa: B023 - waited for at once
        assert all(message.retained for message in heard.messages)
    await node.publish(BusMessage("kept/north/nodes/node/presence", b"", retained=True))
    await device.publish(BusMessage("kept/north/nodes/device/presence", b"", retained=True))
    await asyncio.sleep(0.2)
    for number, bus in enumerate(latecomers):
        await bus.close()
        again = await buses.mqtt(server, "kept-later") if number else await buses.nats(server.url, "kept:north:later")
        heard = await hear(again, "kept/north/nodes/+/presence")
        await asyncio.sleep(0.3)
        assert heard.payloads == []


async def test_wills_reach_both_kinds_and_who_comes_later(server: NatsCluster, buses: Buses) -> None:
    node, device = await both(server, buses, "willing")
    pattern = "willing/north/nodes/+/presence"
    by_node, by_device = await hear(node, pattern), await hear(device, pattern)
    gone = await buses.nats(
        f"{server.url}?will_s=0.6&stored_mb=16",
        "willing:north:gone",
        will=BusMessage("willing/north/nodes/gone/presence", b"gone", "text/plain", retained=True),
    )
    await gone.publish(BusMessage("willing/north/nodes/gone/presence", b"here", retained=True))
    await wait_until(lambda: b"here" in by_node.payloads and b"here" in by_device.payloads)
    await gone._link.close()  # as if its machine had lost its power
    await wait_until(lambda: b"gone" in by_node.payloads and b"gone" in by_device.payloads)
    assert [message.content_type for message in by_node.messages] == ["", "text/plain"]
    late, later = await buses.nats(server.url, "willing:north:late"), await buses.mqtt(server, "willing-late")
    for bus in (late, later):
        heard = await hear(bus, pattern)
        await wait_until(lambda: heard.payloads == [b"gone"])  # noqa: B023 - waited for at once
        assert heard.messages[0].retained
