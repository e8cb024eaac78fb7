"""Opens the buses of a test, on NATS and on MQTT, and closes them."""

from typing import Any

from stigmergy.base.system import SystemEntropy
from stigmergy.bus.mqtt import MqttBus
from stigmergy.bus.mqtt import open_bus as open_mqtt_bus
from stigmergy.bus.port import Bus, BusMessage
from stigmergy.nats.bus.bus import NatsBus
from stigmergy.nats.bus.options import read_options
from stigmergy.testing.bus_rig import HandlerLog, wait_until
from stigmergy.testing.nats import NatsCluster


class Buses:
    """What a test has opened."""

    def __init__(self) -> None:
        self._opened: list[Bus] = []

    async def nats(
        self, url: str, client_id: str, *, will: BusMessage | None = None, up: bool = True, **settings: Any
    ) -> NatsBus:
        """An open bus on NATS, once its link is up. Client ids are fleet:site:node."""
        small = url if "?" in url else f"{url}?stored_mb=16"  # JetStream reserves what a stream may take
        bus = NatsBus(read_options(small, client_id), client_id, SystemEntropy(), **settings)
        self._opened.append(bus)
        await bus.open(will)
        if up:
            await wait_until(lambda: bus.is_up)
        return bus

    async def mqtt(self, server: NatsCluster, client_id: str, *, will: BusMessage | None = None) -> MqttBus:
        """An open bus of a device, on the server's MQTT listener."""
        port = server.servers[0].plan.mqtt_port
        bus = open_mqtt_bus(f"mqtt://127.0.0.1:{port}?reconnect_s_max=0.2", client_id, SystemEntropy())
        self._opened.append(bus)
        await bus.open(will)
        await wait_until(lambda: bus.is_up)
        return bus

    async def close(self) -> None:
        for bus in self._opened:
            await bus.close()


async def hear(bus: Bus, pattern: str) -> HandlerLog:
    """What comes on a pattern from now on."""
    heard = HandlerLog()
    await bus.subscribe(pattern, heard)
    return heard
