"""Channels between the owners of shards, in memory; tests/nats/test_peers.py has those on NATS."""

import pytest

from rigs.memory_peers import MemoryPeerHub
from rigs.peer_contract import PeerContract
from stigmergy.network.peer_port import PeerNetwork


class MemoryRig:
    def __init__(self) -> None:
        self._street = MemoryPeerHub()

    async def peer_network(self, process: int) -> PeerNetwork:
        return self._street.peer_network(process)

    async def end(self) -> None:
        pass


class TestMemory(PeerContract):
    @pytest.fixture
    def rig(self) -> MemoryRig:
        return MemoryRig()
