"""The store contract, on the store in memory; that on real servers is in tests/adapters/test_nats_store.py."""

from collections.abc import Iterator

import pytest

from stigmergy.adapters import memory_store
from stigmergy.adapters.system import SystemClock
from stigmergy.testing.store_contract import OpenStore, StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def open_store(self, request: pytest.FixtureRequest) -> Iterator[OpenStore]:
        place = request.node.name
        yield lambda: memory_store.open_store(f"memory:{place}", SystemClock())
        memory_store.forget_shelf(place)
