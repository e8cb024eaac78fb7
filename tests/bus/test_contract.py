"""The bus contract, on every bus we have."""

import pytest

from stigmergy.base.system import SystemEntropy
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.mqtt import open_bus
from stigmergy.bus.port import Bus
from stigmergy.nats.bus import open_bus as open_nats_bus
from stigmergy.testing.brokers import Broker
from stigmergy.testing.bus_contract import BusContract
from stigmergy.testing.bus_rig import BusRig
from stigmergy.testing.nats import NatsCluster
from stigmergy.testing.proxy import LinkProxy


class MemoryRig:
    """A broker in memory of the test's own."""

    has_properties = True

    def __init__(self, redeliver_after_s: float | None = None) -> None:
        self.broker = MemoryBroker(redeliver_after_s=redeliver_after_s)

    async def bus(self, client_id: str) -> Bus:
        return MemoryBus(self.broker, client_id)

    async def cut(self, client_id: str) -> None:
        self.broker.cut(client_id)

    async def restore(self, client_id: str) -> None:
        self.broker.restore(client_id)

    async def end(self) -> None:
        pass


class TestMemoryBus(BusContract):
    @pytest.fixture
    def rig(self) -> BusRig:
        return MemoryRig()


class TestMemoryBusThatGivesTheOldAfterTheNew(BusContract):
    """What NATS does when a link broke."""

    @pytest.fixture
    def rig(self) -> BusRig:
        return MemoryRig(redeliver_after_s=0.1)


class MqttRig:
    """A real broker, and a proxy for each client."""

    def __init__(self, broker: Broker, version: str) -> None:
        self.has_properties = version == "5"
        self._broker = broker
        self._version = version
        self._proxies: dict[str, LinkProxy] = {}

    async def _proxy(self, client_id: str) -> LinkProxy:
        if client_id not in self._proxies:
            self._proxies[client_id] = LinkProxy(self._broker.port)
            await self._proxies[client_id].start()
        return self._proxies[client_id]

    async def bus(self, client_id: str) -> Bus:
        proxy = await self._proxy(client_id)
        url = f"mqtt://127.0.0.1:{proxy.port}?version={self._version}&reconnect_s_max=0.1"
        return open_bus(url, client_id, SystemEntropy())

    async def cut(self, client_id: str) -> None:
        (await self._proxy(client_id)).cut()

    async def restore(self, client_id: str) -> None:
        (await self._proxy(client_id)).restore()

    async def end(self) -> None:
        for proxy in self._proxies.values():
            await proxy.close()


class TestMqttBusOnNats(BusContract):
    """NATS speaks MQTT 3.1.1 only."""

    @pytest.fixture
    def rig(self, nats: Broker) -> BusRig:
        return MqttRig(nats, "3.1.1")


class TestMqttBusOnMosquitto(BusContract):
    @pytest.fixture
    def rig(self, mosquitto: Broker) -> BusRig:
        return MqttRig(mosquitto, "3.1.1")


class TestMqttBusOnMosquittoWithVersion5(BusContract):
    @pytest.fixture
    def rig(self, mosquitto: Broker) -> BusRig:
        return MqttRig(mosquitto, "5")


class NatsRig:
    """A real server, and a proxy for each client."""

    has_properties = True

    def __init__(self, port: int) -> None:
        self._port = port
        self._proxies: dict[str, LinkProxy] = {}

    async def _proxy(self, client_id: str) -> LinkProxy:
        if client_id not in self._proxies:
            self._proxies[client_id] = LinkProxy(self._port)
            await self._proxies[client_id].start()
        return self._proxies[client_id]

    async def bus(self, client_id: str) -> Bus:
        proxy = await self._proxy(client_id)
        options = "topics=a/%23,b/%23,x/%23,fleet/%23&will_s=0.6"
        return open_nats_bus(f"nats://127.0.0.1:{proxy.port}/contract?{options}", client_id, SystemEntropy())

    async def cut(self, client_id: str) -> None:
        (await self._proxy(client_id)).cut()

    async def restore(self, client_id: str) -> None:
        (await self._proxy(client_id)).restore()

    async def end(self) -> None:
        for proxy in self._proxies.values():
            await proxy.close()


class TestNatsBus(BusContract):
    @pytest.fixture
    def rig(self, nats_server: NatsCluster) -> BusRig:
        return NatsRig(nats_server.servers[0].plan.port)
