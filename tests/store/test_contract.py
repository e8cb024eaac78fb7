"""The store contract, on the stores in memory and in a folder; on real servers it is in tests/nats/store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.base.system import SystemClock
from stigmergy.store import folder as folder_store
from stigmergy.store import memory as memory_store
from stigmergy.testing.store_contract import BlobsContract, ObjectsContract, OpenStore, StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def open_store(self, request: pytest.FixtureRequest) -> Iterator[OpenStore]:
        place = request.node.name
        yield lambda: memory_store.open_store(f"memory:{place}", SystemClock())
        memory_store.forget_store_server(place)


class TestFolderStore(ObjectsContract, BlobsContract):
    """A folder has objects and no keys."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: folder_store.open_store(f"folder:{tmp_path}", SystemClock())
