"""Blobs of a fleet on workers: on the servers of the logs, kept by what the shards' logs refer to."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy import BlobSettings, Settings
from stigmergy.app.blobs import BlobsAt
from stigmergy.app.config import Config, FleetConfig
from stigmergy.app.node_config import NodeConfig
from stigmergy.app.workers import NatsWorker
from stigmergy.base.errors import BlobMissing, ConfigError
from stigmergy.base.system import SystemClock, SystemThreads
from stigmergy.store.garbage import collect, read_references
from stigmergy.testing.nats import NatsCluster, start_single
from tests.app.test_blobs import PHOTO, Eye, Look, make_fleet

WITHIN_S = 240.0
SETTINGS = Settings(lease_s=60, blobs=BlobSettings(grace_s=4.0, references_every_s=0.1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with start_single(tmp_path_factory.mktemp("server")) as running:
        yield running


async def test_a_worker_keeps_what_its_log_refers_to(server: NatsCluster, tmp_path: Path) -> None:
    shown: list[bytes] = []
    made = NatsWorker(make_fleet(shown), server.url, Config(settings=SETTINGS), key=tmp_path / "key")
    far = BlobsAt(server.url, "eyes", SystemClock(), SystemThreads(), SETTINGS.blobs)
    async with made as worker, asyncio.timeout(WITHIN_S):
        task = asyncio.ensure_future(worker.run())
        while not worker.owned():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.05)
        assert await far.blobs.find_objects() is None, "without blobs there is no bucket"
        photo, lost = await far.blobs.put(PHOTO), await far.blobs.put(b"nobody refers to it")
        live = worker.live(0)
        await live.send("Eye/e", Look(photo=photo))
        while not shown:  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.05)
        while await far.blobs.has(lost):
            await collect(far.blobs)
            await asyncio.sleep(0.1)
        objects = await far.blobs.find_objects()
        assert objects is not None
        (told,) = await read_references(objects)
        assert told.owner.startswith("local/shard-0/")
        thumbnail = live.query("Eye/e", Eye).thumbnail
        assert thumbnail is not None
        assert await far.blobs.fetch(photo) == PHOTO
        assert await far.blobs.fetch(thumbnail) == PHOTO[::100]
        with pytest.raises(BlobMissing):
            await far.blobs.fetch(lost)
        worker.stop()
        await task
    await far.stop()


def test_what_workers_cannot_share_is_refused(tmp_path: Path) -> None:
    config = Config(fleet=FleetConfig())
    with pytest.raises(ConfigError, match="shards move"):
        NatsWorker(
            make_fleet([]), "nats://127.0.0.1:1", config, key=tmp_path / "k", node_config=NodeConfig(blobs="memory:x")
        )
