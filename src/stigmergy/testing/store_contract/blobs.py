"""Blobs on any store: whole or not at all, resumed after a cut, verified. Tests of the store port, and of `Blobs`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from blake3 import blake3

from stigmergy.agents.messages import Blob
from stigmergy.base.errors import BlobMissing, StoreCorrupt, StoreFull, StoreUnavailable
from stigmergy.base.system import SystemClock, SystemThreads
from stigmergy.store.blobs import PIECE_BYTES, Blobs, BlobSettings, piece_name
from stigmergy.store.port import Objects, ObjectVersion
from stigmergy.testing.journal_contract import in_a_loop
from stigmergy.testing.store_contract.rig import BUCKET, NeedsStore, OpenStore

DATA = b"".join(blake3(number.to_bytes(4)).digest(1024) for number in range(2_600))
"""Two full pieces and a part of one, all different."""
assert 2 * PIECE_BYTES < len(DATA) < 3 * PIECE_BYTES


class Chunks:
    """An async iterator that gives DATA out in chunks of an odd size."""

    def __init__(self) -> None:
        self._at = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = DATA[self._at : self._at + 65_537]
        self._at += len(chunk)
        if not chunk:
            raise StopAsyncIteration
        return chunk


class CutObjects:
    """Objects over a link that is cut after so many bytes of payload; counts what went through."""

    def __init__(self, objects: Objects, calls_left: int | None = None) -> None:
        self._objects = objects
        self.calls_left = calls_left
        self.put_names: list[str] = []
        self.got_names: list[str] = []

    @property
    def bucket(self) -> str:
        return self._objects.bucket

    def _use(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise StoreUnavailable("the link is cut")

    async def put(self, name: str, data: bytes, *, label: str = "", versions_kept: int = 1) -> ObjectVersion:
        self._use()
        self.put_names.append(name)
        return await self._objects.put(name, data, label=label, versions_kept=versions_kept)

    async def get(self, name: str, version: int | None = None) -> bytes | None:
        self._use()
        self.got_names.append(name)
        return await self._objects.get(name, version)

    async def versions(self, name: str) -> list[ObjectVersion]:
        return await self._objects.versions(name)

    async def names(self, prefix: str = "") -> list[str]:
        return await self._objects.names(prefix)

    async def delete(self, name: str, version: int | None = None) -> None:
        await self._objects.delete(name, version)


def blobs_on(objects: Objects, settings: BlobSettings | None = None) -> Blobs:
    """Blobs in this bucket, which give up soon."""

    async def opened() -> Objects:
        return objects

    return Blobs("here", opened, opened, SystemClock(), SystemThreads(), settings or BlobSettings(patience_s=0.01))


class BlobsContract(NeedsStore):
    """Blobs: by digest, in pieces, resumed, verified, bounded."""

    @in_a_loop
    async def test_a_blob_is_the_same_however_it_is_put(self, open_store: OpenStore, tmp_path: Path) -> None:
        store = await open_store()
        objects = CutObjects(await store.objects(BUCKET))
        blobs = blobs_on(objects)
        (tmp_path / "data").write_bytes(DATA)
        blob = await blobs.put(DATA, media_type="image/png")
        assert blob == Blob(blake3(DATA).digest(), len(DATA), "image/png")
        sent = len(objects.put_names)
        assert await blobs.put(tmp_path / "data", media_type="image/png") == blob
        assert await blobs.put(Chunks(), media_type="image/png") == blob
        assert len(objects.put_names) == sent, "what is there is not sent again"
        assert await blobs.fetch(blob) == DATA
        assert b"".join([chunk async for chunk in blobs.stream(blob)]) == DATA
        for data in (b"", b"a", bytes(PIECE_BYTES)):
            assert await blobs.fetch(await blobs.put(data)) == data
        other = await open_store()
        found = await blobs_on(await other.objects(BUCKET)).kept(blob.hex)
        assert [one.blob for one in found] == [blob]

    @in_a_loop
    async def test_an_upload_that_was_cut_goes_on(self, open_store: OpenStore) -> None:
        objects = CutObjects(await (await open_store()).objects(BUCKET), calls_left=2)
        blobs = blobs_on(objects)
        with pytest.raises(StoreUnavailable):
            await blobs.put(DATA)
        blob = Blob(blake3(DATA).digest(), len(DATA))
        assert not await blobs.has(blob)
        with pytest.raises(StoreUnavailable):
            await blobs.fetch(blob)
        objects.calls_left, objects.put_names = None, []
        with pytest.raises(BlobMissing, match="never put"):
            await blobs.fetch(blob)
        assert await blobs.put(Chunks()) == blob
        assert len(objects.put_names) == 2, "the last piece and the manifest"
        assert await blobs.fetch(blob) == DATA

    @in_a_loop
    async def test_a_download_that_was_cut_goes_on(self, open_store: OpenStore, tmp_path: Path) -> None:
        objects = CutObjects(await (await open_store()).objects(BUCKET))
        blobs, path = blobs_on(objects), tmp_path / "data"
        blob = await blobs.put(DATA)
        objects.calls_left = 3
        with pytest.raises(StoreUnavailable):
            await blobs.fetch_to(blob, path)
        assert not path.exists()
        objects.calls_left, objects.got_names = None, []
        assert await blobs.fetch_to(blob, path) == path
        assert path.read_bytes() == DATA
        assert len(objects.got_names) == 2, "the manifest and the last piece"
        assert not path.with_name(f"data.{blob.hex[:16]}.part").exists()

    @in_a_loop
    async def test_a_file_that_was_left_damaged_is_mended(self, open_store: OpenStore, tmp_path: Path) -> None:
        blobs, path = blobs_on(await (await open_store()).objects(BUCKET)), tmp_path / "data"
        blob = await blobs.put(DATA)
        part = path.with_name(f"data.{blob.hex[:16]}.part")
        part.write_bytes(DATA[:PIECE_BYTES] + bytes(2 * PIECE_BYTES))
        await blobs.fetch_to(blob, path)
        assert path.read_bytes() == DATA

    @in_a_loop
    async def test_bytes_that_are_not_those_that_were_put_are_refused(
        self, open_store: OpenStore, tmp_path: Path
    ) -> None:
        objects = await (await open_store()).objects(BUCKET)
        blobs, path = blobs_on(objects), tmp_path / "data"
        blob = await blobs.put(DATA)
        await objects.put(piece_name(blake3(DATA[:PIECE_BYTES]).digest()), b"others")
        with pytest.raises(StoreCorrupt, match="again=True"):
            await blobs.fetch(blob)
        with pytest.raises(StoreCorrupt):  # the very first chunk: none is given out unverified
            await anext(blobs.stream(blob))
        with pytest.raises(StoreCorrupt):
            await blobs.fetch_to(blob, path)
        assert not path.exists()
        await blobs.put(DATA, again=True)
        assert await blobs.fetch(blob) == DATA

    @in_a_loop
    async def test_a_full_store_takes_nothing_more(self, open_store: OpenStore) -> None:
        objects = await (await open_store()).objects(BUCKET)
        blobs = blobs_on(objects, BlobSettings(bytes_max=len(DATA) + 10))
        blob = await blobs.put(DATA)
        with pytest.raises(StoreFull, match="blob gc"):
            await blobs.put(b"12345678901")
        assert await blobs.fetch(await blobs.put(b"1234567890")) == b"1234567890"
        assert await blobs.fetch(blob) == DATA
