"""The bus contract, on every bus we have."""

import pytest

from stigmergy.adapters.memory_bus import MemoryBroker, MemoryBus
from stigmergy.testing.bus_contract import BusContract
from stigmergy.testing.bus_rig import BusRig


class MemoryRig:
    """A broker in memory of the test's own."""

    has_properties = True

    def __init__(self, redeliver_after_s: float | None = None) -> None:
        self.broker = MemoryBroker(redeliver_after_s=redeliver_after_s)

    async def bus(self, client_id: str) -> MemoryBus:
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
