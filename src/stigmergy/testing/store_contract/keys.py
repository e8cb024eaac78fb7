"""A bucket of keys: reading, compare-and-set, several connections. Tests of the store port."""

from __future__ import annotations

import asyncio

import pytest

from stigmergy.core.errors import ConfigError, StoreConflict, TooLarge
from stigmergy.ports.store import (
    BUCKET_CHARS_MAX,
    KEY_CHARS_MAX,
    VALUE_BYTES_MAX,
    Entry,
    KeyValue,
)
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.testing.store_contract.rig import BUCKET, NeedsStore, OpenStore


class KeysContract(NeedsStore):
    """A bucket of keys: reading, compare-and-set, several connections."""

    @in_a_loop
    async def test_a_new_bucket_is_empty(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        assert keys.bucket == BUCKET
        assert await keys.get("a") is None
        assert await keys.keys() == []
        await store.close()

    @in_a_loop
    async def test_values_read_back_bit_for_bit(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        values = [b"", b"one", bytes(range(256)) * 4, bytes(VALUE_BYTES_MAX)]
        revisions = [await keys.put("a.b", value) for value in values]
        assert revisions == sorted(set(revisions))
        assert revisions[0] > 0
        assert await keys.get("a.b") == Entry("a.b", values[-1], revisions[-1])
        other = await keys.put("c", b"")
        assert other > revisions[-1], "revisions grow over all keys of a bucket"
        assert await keys.get("c") == Entry("c", b"", other)
        await store.close()

    @in_a_loop
    async def test_compare_and_set(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        first = await keys.create("a", b"1")
        with pytest.raises(StoreConflict):
            await keys.create("a", b"2")
        with pytest.raises(StoreConflict):
            await keys.put("a", b"2", 0)
        with pytest.raises(StoreConflict):
            await keys.put("a", b"2", first + 1)
        with pytest.raises(StoreConflict):
            await keys.put("b", b"2", first)
        assert await keys.get("a") == Entry("a", b"1", first)
        second = await keys.put("a", b"2", first)
        with pytest.raises(StoreConflict):
            await keys.put("a", b"3", first)
        assert await keys.get("a") == Entry("a", b"2", second)
        assert await keys.get("b") is None
        await store.close()

    @in_a_loop
    async def test_deleting(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        await keys.delete("a")
        first = await keys.create("a", b"1")
        with pytest.raises(StoreConflict):
            await keys.delete("a", first + 1)
        with pytest.raises(StoreConflict):
            await keys.delete("b", first)
        assert await keys.get("a") == Entry("a", b"1", first)
        await keys.delete("a", first)
        assert await keys.get("a") is None
        assert await keys.keys() == []
        with pytest.raises(StoreConflict):
            await keys.put("a", b"2", first)
        with pytest.raises(StoreConflict):
            await keys.delete("a", first)
        again = await keys.create("a", b"2")
        assert again > first
        await keys.delete("a")
        await keys.delete("a")
        assert await keys.put("a", b"3", 0) > again
        await store.close()

    @in_a_loop
    async def test_prefixes_are_whole_words(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        for key in ("worker.b", "worker.a.x", "workers", "plan", "worker.a"):
            await keys.put(key, b"")
        assert await keys.keys() == ["plan", "worker.a", "worker.a.x", "worker.b", "workers"]
        assert await keys.keys("worker.") == ["worker.a", "worker.a.x", "worker.b"]
        assert await keys.keys("worker.a") == ["worker.a"]
        assert await keys.keys("worker") == []
        assert await keys.keys("none.") == []
        await store.close()

    @pytest.mark.parametrize(
        "key", ["", ".", "a.", ".a", "a..b", "a b", "a*", "a.>", "ä", "a\n", "a" * (KEY_CHARS_MAX + 1)]
    )
    @in_a_loop
    async def test_a_key_must_be_one(self, open_store: OpenStore, key: str) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        for call in (
            keys.get(key),
            keys.put(key, b""),
            keys.create(key, b""),
            keys.delete(key),
            keys.acquire(key, b"", 1),
        ):
            with pytest.raises(ConfigError):
                await call
        await keys.put("a" * KEY_CHARS_MAX, b"")
        await store.close()

    @pytest.mark.parametrize("bucket", ["", "a b", "a.b", "a*", "a" * (BUCKET_CHARS_MAX + 1)])
    @in_a_loop
    async def test_a_bucket_must_have_a_name(self, open_store: OpenStore, bucket: str) -> None:
        store = await open_store()
        with pytest.raises(ConfigError):
            await store.key_value(bucket)
        with pytest.raises(ConfigError):
            await store.objects(bucket)
        await store.close()

    @in_a_loop
    async def test_a_value_over_the_limit_is_refused_and_what_was_there_stays(self, open_store: OpenStore) -> None:
        store = await open_store()
        keys = await store.key_value(BUCKET)
        first = await keys.put("a", b"1")
        with pytest.raises(TooLarge):
            await keys.put("a", bytes(VALUE_BYTES_MAX + 1))
        with pytest.raises(TooLarge):
            await keys.acquire("b", bytes(VALUE_BYTES_MAX + 1), 1)
        assert await keys.get("a") == Entry("a", b"1", first)
        assert await keys.keys() == ["a"]
        await store.close()

    @in_a_loop
    async def test_buckets_have_nothing_to_do_with_each_other(self, open_store: OpenStore) -> None:
        store = await open_store()
        one, other = await store.key_value(BUCKET), await store.key_value(BUCKET + "-2")
        await store.objects(BUCKET)
        await one.put("a", b"1")
        assert await other.get("a") is None
        assert await other.keys() == []
        await other.create("a", b"2")
        found = await one.get("a")
        assert found is not None
        assert found.value == b"1"
        await store.close()

    # Several connections.

    @in_a_loop
    async def test_what_one_has_written_all_read(self, open_store: OpenStore) -> None:
        one, other = await open_store(), await open_store()
        revision = await (await one.key_value(BUCKET)).put("a", b"1")
        keys = await other.key_value(BUCKET)
        assert await keys.get("a") == Entry("a", b"1", revision)
        await one.close()
        assert await keys.get("a") == Entry("a", b"1", revision)
        await other.close()

    @in_a_loop
    async def test_of_several_exactly_one_wins(self, open_store: OpenStore) -> None:
        stores = [await open_store() for _ in range(4)]
        buckets = [await store.key_value(BUCKET) for store in stores]
        await buckets[0].put("count", b"0")

        async def count(keys: KeyValue, times: int) -> None:
            while times:
                found = await keys.get("count")
                assert found is not None
                try:
                    await keys.put("count", b"%d" % (int(found.value) + 1), found.revision)
                    times -= 1
                except StoreConflict:
                    await asyncio.sleep(0)

        await asyncio.gather(*(count(keys, 8) for keys in buckets))
        found = await buckets[0].get("count")
        assert found is not None
        assert found.value == b"32"
        for store in stores:
            await store.close()
