"""Blobs between nodes on a real broker, each with a folder of its own: by reference, in pieces, across cuts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from stigmergy import Blob, BlobMissing, BlobSettings, Settings
from stigmergy.base.errors import StoreCorrupt, StoreUnavailable
from stigmergy.store.blobs import PIECES
from stigmergy.testing.brokers import Broker
from stigmergy.testing.proxy import LinkProxy
from stigmergy.testing.store_contract.blobs import DATA
from tests.app.test_blobs import make_fleet

WITHIN_S = 240.0
SETTINGS = Settings(blobs=BlobSettings(patience_s=4.0))


@pytest.fixture(params=[pytest.param("nats", marks=pytest.mark.prove), "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(request.param)
    return found


def node(folder: Path, name: str, url: str) -> Any:
    """A node with a folder of its own."""
    return make_fleet([]).running(journal=f"sqlite:{folder / name}.db", bus=url, node=name, settings=SETTINGS)


async def wait_members(live: Any, count: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while len(live.link.members()) < count:  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.05)


async def test_a_node_gets_what_another_one_has(tmp_path: Path, broker: Broker) -> None:
    async with node(tmp_path, "a", broker.url) as a, node(tmp_path, "b", broker.url) as b:
        blob = await a.put(DATA, media_type="image/png")
        await wait_members(b, 2)
        assert not await b.blobs.has(blob)
        async with asyncio.timeout(WITHIN_S):
            assert await b.fetch(blob) == DATA
        assert await b.blobs.has(blob), "it is kept"
        assert [one.blob for one in await b.blobs.kept()] == [blob]
        with pytest.raises(BlobMissing, match="no node on the bus has it"):
            await b.fetch(Blob(blake3(b"other").digest(), 5))
    async with node(tmp_path, "b", broker.url) as b:
        assert await b.fetch(blob) == DATA, "without the other one"


async def test_a_cut_in_the_middle_costs_what_was_not_there_yet(tmp_path: Path, broker: Broker) -> None:
    proxy = LinkProxy(broker.port)
    port = await proxy.start()
    far = broker.url.replace(str(broker.port), str(port))
    async with node(tmp_path, "a", broker.url) as a, node(tmp_path, "b", far) as b:
        blob = await a.put(DATA)
        await wait_members(b, 2)
        exchange = b.blobs.elsewhere
        get, asked = exchange.get, list[str]()

        async def get_and_cut(name: str) -> bytes | None:
            asked.append(name)
            if len(asked) == 3:  # the manifest, a piece, and this one
                proxy.cut()
            found: bytes | None = await get(name)
            return found

        exchange.get = get_and_cut
        with pytest.raises((StoreUnavailable, BlobMissing)):
            await b.fetch_to(blob, tmp_path / "got")
        objects = await b.blobs.find_objects()
        kept = {name: await objects.versions(name) for name in await objects.names(PIECES)}
        assert len(kept) == 1, "it was cut in the middle"
        proxy.restore()
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    await b.fetch_to(blob, tmp_path / "got")
                    break
                except (StoreUnavailable, BlobMissing):  # the link is not back yet, or nobody was heard
                    await asyncio.sleep(0.1)
        assert (tmp_path / "got").read_bytes() == DATA
        assert {name: await objects.versions(name) for name in kept} == kept
        assert not [name for name in asked[3:] if name in kept], "what was there was not asked for again"
    await proxy.close()


async def test_a_node_that_lies_is_found_out(tmp_path: Path, broker: Broker) -> None:
    async with node(tmp_path, "a", broker.url) as a, node(tmp_path, "b", broker.url) as b:
        blob = await a.put(DATA)
        objects = await a.blobs.find_objects()
        assert objects is not None
        (first, *_) = await objects.names(PIECES)
        await objects.put(first, b"other bytes")
        await wait_members(b, 2)
        with pytest.raises(StoreCorrupt):
            await b.fetch(blob)
        mine = await b.blobs.find_objects()
        assert mine is None or first not in await mine.names(PIECES)
