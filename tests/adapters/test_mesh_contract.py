"""The mesh contract, on every mesh we have."""

from collections.abc import Callable

import pytest

from stigmergy.adapters.memory_bus import MemoryBroker, MemoryBus
from stigmergy.adapters.mqtt import open_bus
from stigmergy.adapters.system import SystemEntropy
from stigmergy.ports.bus import Bus
from stigmergy.ports.mesh import Mesh
from stigmergy.runtime.bus_mesh import BusMesh
from stigmergy.runtime.topics import Topics
from stigmergy.sim.network import Network
from stigmergy.testing.brokers import Broker
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.mesh_contract import MeshContract, MeshRig


class MemoryRig:
    """The simulated network, without faults, on the real loop."""

    def __init__(self) -> None:
        self._network = Network(1)

    async def mesh(self, node: str) -> Mesh:
        return self._network.mesh(node)

    async def end(self) -> None:
        pass


class TestMemoryMesh(MeshContract):
    @pytest.fixture
    def rig(self) -> MeshRig:
        return MemoryRig()


class BusRig:
    """A bus for each life of each node."""

    def __init__(self, open_bus: Callable[[str], Bus]) -> None:
        self._open_bus = open_bus
        self._buses: list[Bus] = []

    async def mesh(self, node: str) -> Mesh:
        bus = self._open_bus(f"client-{len(self._buses)}")  # NATS takes no dot in it, as a node may have
        self._buses.append(bus)
        await bus.open()
        await wait_until(lambda: bus.is_up)
        return BusMesh(bus, Topics("fleet", "site"), node)

    async def end(self) -> None:
        for bus in self._buses:
            await bus.close()


class TestMeshOverTheMemoryBus(MeshContract):
    @pytest.fixture
    def rig(self) -> MeshRig:
        broker = MemoryBroker()
        return BusRig(lambda client_id: MemoryBus(broker, client_id))


class TestMeshOverMqttOnNats(MeshContract):
    @pytest.fixture
    def rig(self, nats: Broker) -> MeshRig:
        return BusRig(lambda client_id: open_bus(nats.url, client_id, SystemEntropy()))


class TestMeshOverMqttOnMosquitto(MeshContract):
    @pytest.fixture
    def rig(self, mosquitto: Broker) -> MeshRig:
        return BusRig(lambda client_id: open_bus(f"{mosquitto.url}?version=5", client_id, SystemEntropy()))
