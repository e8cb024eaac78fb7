"""The mesh contract, on every mesh we have."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from stigmergy.base.system import SystemClock, SystemEntropy
from stigmergy.bus.memory import MemoryBroker, MemoryBus
from stigmergy.bus.mqtt import open_bus
from stigmergy.bus.port import Bus
from stigmergy.bus.topics import Topics
from stigmergy.membership.bus_mesh import BusMesh
from stigmergy.membership.mesh import MEMBERSHIP, Mesh, MeshChannels
from stigmergy.membership.udp import open_mesh
from stigmergy.sim.network import Network
from stigmergy.testing.brokers import Broker
from stigmergy.testing.bus_rig import wait_until
from stigmergy.testing.mesh_contract import NODES, MeshContract, MeshRig


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


class UdpRig:
    """Sockets of loopback; every node keeps its port from life to life."""

    def __init__(self, key_file: Path | None = None, *, seed_only: bool = False) -> None:
        self._ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self._key_file = key_file
        self._seed_only = seed_only

    async def mesh(self, node: str) -> Mesh:
        listed = NODES[:1] if self._seed_only else NODES
        peers = ",".join(f"{name}@127.0.0.1:{self._ports[name]}" for name in listed)
        key = "" if self._key_file is None else f"&key_file={self._key_file}"
        mesh = open_mesh(f"udp://127.0.0.1:{self._ports[node]}?peers={peers}{key}", node, SystemClock())
        if self._seed_only:  # as membership would, when it hears of them
            for name, port in self._ports.items():
                mesh.introduce(name, f"127.0.0.1:{port}")
        return mesh

    async def end(self) -> None:
        pass


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for opened in sockets:
        opened.bind(("127.0.0.1", 0))
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


class TestUdpMesh(MeshContract):
    @pytest.fixture
    def rig(self) -> MeshRig:
        return UdpRig()


class TestUdpMeshWithAKey(MeshContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> MeshRig:
        (tmp_path / "mesh.key").write_bytes(b"k" * 32)
        return UdpRig(tmp_path / "mesh.key")


class TestUdpMeshThatKnowsOneAndWasIntroducedToTheOthers(MeshContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> MeshRig:
        (tmp_path / "mesh.key").write_bytes(b"k" * 32)
        return UdpRig(tmp_path / "mesh.key", seed_only=True)


class ChannelRig:
    """One channel of each mesh, on the network without faults."""

    def __init__(self) -> None:
        self._network = Network(1)
        self._all: list[MeshChannels] = []

    async def mesh(self, node: str) -> Mesh:
        self._all.append(MeshChannels(self._network.mesh(node)))
        return self._all[-1].channel(MEMBERSHIP)

    async def end(self) -> None:
        for channels in self._all:
            await channels.close()


class TestChannelOfAMesh(MeshContract):
    @pytest.fixture
    def rig(self) -> MeshRig:
        return ChannelRig()
