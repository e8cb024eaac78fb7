"""Objects: bytes, digests, versions. Tests of the store port."""

from __future__ import annotations

import asyncio

import pytest
from blake3 import blake3

from stigmergy.base.errors import Bug, ConfigError, TooLarge
from stigmergy.store.port import LABEL_CHARS_MAX, OBJECT_BYTES_MAX, VERSIONS_COUNT_MAX
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.testing.store_contract.rig import BUCKET, NeedsStore, OpenStore


class ObjectsContract(NeedsStore):
    """Objects: bytes, digests, versions."""

    @in_a_loop
    async def test_objects_read_back_bit_for_bit(self, open_store: OpenStore) -> None:
        store = await open_store()
        assert await store.find_objects(BUCKET) is None
        assert await store.find_objects(BUCKET) is None, "who looks makes nothing"
        objects = await store.objects(BUCKET)
        await objects.put("first", b"")
        found = await store.find_objects(BUCKET)
        assert found is not None
        assert await found.names() == ["first"]
        await found.delete("first")
        assert objects.bucket == BUCKET
        assert await objects.names() == []
        assert await objects.get("none") is None
        assert await objects.versions("none") == []
        for name, data in (("empty", b""), ("small", b"abc"), ("a name, with / and ä", bytes(range(256)) * 12_000)):
            put = await objects.put(name, data, label=f"of {name}")
            assert (put.name, put.size_bytes, put.label) == (name, len(data), f"of {name}")
            assert put.digest == blake3(data).hexdigest()
            assert await objects.versions(name) == [put]
            assert await objects.get(name) == data
            assert await objects.get(name, put.version) == data
        assert await objects.names() == ["a name, with / and ä", "empty", "small"]
        assert await objects.names("s") == ["small"]
        await store.close()

    @in_a_loop
    async def test_versions_are_kept_as_far_as_asked(self, open_store: OpenStore) -> None:
        one, other = await open_store(), await open_store()
        objects, others = await one.objects(BUCKET), await other.objects(BUCKET)
        await others.put("x", b"of x")
        made = [await objects.put("snap", b"%d" % number * 1_000, versions_kept=3) for number in range(5)]
        assert [version.version for version in made] == sorted({version.version for version in made})
        assert await others.versions("snap") == made[2:]
        assert await others.get("snap") == b"4" * 1_000
        assert [await others.get("snap", about.version) for about in made] == [
            None,
            None,
            b"2" * 1_000,
            b"3" * 1_000,
            b"4" * 1_000,
        ]
        await others.delete("snap", made[3].version)
        assert await objects.versions("snap") == [made[2], made[4]]
        only = await objects.put("snap", b"only")
        assert await objects.versions("snap") == [only]
        assert await objects.get("x") == b"of x"
        await others.delete("snap")
        await others.delete("snap")
        await others.delete("snap", only.version)
        assert await objects.versions("snap") == []
        assert await objects.get("snap") is None
        assert await objects.names() == ["x"]
        again = await objects.put("snap", b"again")
        assert again.version > only.version
        await one.close()
        await other.close()

    @in_a_loop
    async def test_an_object_that_cannot_be_is_refused_and_what_was_there_stays(self, open_store: OpenStore) -> None:
        store = await open_store()
        objects = await store.objects(BUCKET)
        put = await objects.put("a", b"1")
        with pytest.raises(TooLarge):
            await objects.put("a", bytes(OBJECT_BYTES_MAX + 1))
        with pytest.raises(TooLarge):
            await objects.put("a", b"", label="x" * (LABEL_CHARS_MAX + 1))
        for kept in (0, VERSIONS_COUNT_MAX + 1):
            with pytest.raises(Bug):
                await objects.put("a", b"", versions_kept=kept)
        for name in ("", "two\nlines"):
            with pytest.raises(ConfigError):
                await objects.put(name, b"")
        assert await objects.versions("a") == [put]
        await store.close()

    @in_a_loop
    async def test_objects_of_several_at_once(self, open_store: OpenStore) -> None:
        stores = [await open_store() for _ in range(3)]
        buckets = [await store.objects(BUCKET) for store in stores]
        bodies = [bytes([number]) * (300_000 + number) for number in range(len(buckets))]
        made = await asyncio.gather(
            *(objects.put("same", body, versions_kept=9) for objects, body in zip(buckets, bodies, strict=True))
        )
        versions = await buckets[0].versions("same")
        assert sorted(about.version for about in made) == [about.version for about in versions]
        for about, body in zip(made, bodies, strict=True):
            assert await buckets[0].get("same", about.version) == body
        for store in stores:
            await store.close()
