"""The mesh contract, on every mesh we have."""

import pytest

from stigmergy.ports.mesh import Mesh
from stigmergy.sim.network import Network
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
