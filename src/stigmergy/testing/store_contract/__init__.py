"""What every store must do, as tests: inherit them to prove your own adapter. Needs only pytest.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda: my_adapter.open_store(f"my:{tmp_path}", SystemClock())

`open_store` returns an awaitable: another connection to the same place each time within a test, and a fresh place for
each test. Test what is specific to a technology (power loss, damage, elections) in the adapter's own suite.
"""

from __future__ import annotations

import pytest

from stigmergy.base.errors import Bug, StoreError
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.testing.store_contract.blobs import BlobsContract
from stigmergy.testing.store_contract.keys import KeysContract, LeaseContract, WatchingContract
from stigmergy.testing.store_contract.objects import ObjectsContract
from stigmergy.testing.store_contract.rig import BUCKET, LEASE_S, Listener, OpenStore

__all__ = ["BlobsContract", "Listener", "ObjectsContract", "OpenStore", "StoreContract"]


class StoreContract(KeysContract, WatchingContract, LeaseContract, ObjectsContract, BlobsContract):
    """Every sentence of the port's docstrings, one test or more each."""

    @in_a_loop
    async def test_a_closed_store_takes_no_calls(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys, objects = await store.key_value(BUCKET), await store.objects(BUCKET)
        lease = await keys.acquire("lead", b"", LEASE_S)
        assert lease is not None
        await store.close()
        await store.close()
        for call in (
            store.key_value(BUCKET),
            keys.get("a"),
            keys.put("a", b""),
            keys.delete("a"),
            keys.keys(),
            keys.acquire("a", b"", 1),
            lease.renew(),
            objects.get("a"),
            objects.put("a", b""),
        ):
            with pytest.raises(Bug):
                await call
        with pytest.raises(Bug):
            keys.watch("", Listener().hear)
        assert not issubclass(Bug, StoreError)
