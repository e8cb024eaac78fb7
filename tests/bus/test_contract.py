"""The bus contract, on every bus we have."""

import pytest

from stigmergy.base.errors import TooLarge
from stigmergy.base.system import SystemEntropy
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.mqtt import open_bus
from stigmergy.bus.port import PAYLOAD_BYTES_MAX, Bus, BusMessage
from stigmergy.bus.signatures import PROOF_BYTES_MAX, Identity
from stigmergy.keys.ed25519 import Ed25519Signer, Ed25519Verifier
from stigmergy.nats.bus import open_bus as open_nats_bus
from stigmergy.network.bus_keys import BusKeys
from stigmergy.network.signed_bus import SignedBus
from stigmergy.testing.brokers import Broker
from stigmergy.testing.bus_contract import BusContract
from stigmergy.testing.bus_rig import BusRig, Scene, on_a_scene, wait_until
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


class SigningBus(SignedBus):
    """Signs on every topic: those of the suite are none of a fleet's."""

    def _is_ours(self, topic: str) -> bool:
        return True


class SignedRig(MemoryRig):
    """What is signed behaves as the bus below."""

    async def bus(self, client_id: str) -> Bus:
        signer = Ed25519Signer(client_id.encode().ljust(32)[:32])
        keys = BusKeys("f/s/n", signer.public_key, Ed25519Verifier(), lambda: 0.0)
        return SigningBus(MemoryBus(self.broker, client_id), "memory", Identity("f/s/n", signer), keys, lambda: 0.0)


class TestSignedBus(BusContract):
    @pytest.fixture
    def rig(self) -> BusRig:
        return SignedRig()

    @on_a_scene
    async def test_largest_message_passes(self, scene: Scene) -> None:
        """The proof is part of what the bus below carries."""
        bus, heard = await scene.hearing("receiver", "a/b")
        await bus.publish(BusMessage("a/b", b"x" * (PAYLOAD_BYTES_MAX - PROOF_BYTES_MAX)))
        await wait_until(lambda: len(heard.payloads) == 1)
        assert len(heard.payloads[0]) == PAYLOAD_BYTES_MAX - PROOF_BYTES_MAX
        with pytest.raises(TooLarge):
            await bus.publish(BusMessage("a/b", b"x" * PAYLOAD_BYTES_MAX))


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
