"""A journal copied to S3, archived there, and built anew from there; and blobs there, on two nodes."""

import asyncio
from pathlib import Path

import pytest

from stigmergy import Settings
from stigmergy.app.copies import CopiesAt, StoreArchive, restore
from stigmergy.app.fleet import verifier
from stigmergy.audit.flight_journal import open_flight
from stigmergy.audit.restore import find_copies
from stigmergy.base.errors import JournalError
from stigmergy.base.system import SystemClock
from stigmergy.node.settings import Retention
from tests.app.test_copies import OFTEN, count, counts, fleet_of
from tests.store.s3_server import S3Server

WITHIN_S = 240.0


async def test_a_node_comes_back_from_its_copies(s3: S3Server, tmp_path: Path) -> None:
    url, journal = s3.url("copies"), f"sqlite:{tmp_path / 'town.db'}"
    async with fleet_of().running(journal=journal, copies=[url], node="n", site="s") as live:
        await count(live, range(100))
        before, heads = counts(live), live.standing().heads
        async with asyncio.timeout(WITHIN_S):
            while True:
                async with CopiesAt(url, "town") as objects:
                    found = [one.manifest for one in await find_copies(objects, "s/n") if one.manifest is not None]
                if found and sum(shard.last.position for shard in found[-1].copied) >= sum(h.position for h in heads):
                    break
    (tmp_path / "new").mkdir()
    async with CopiesAt(url, "town") as objects:
        await restore(objects, found[-1], f"sqlite:{tmp_path / 'new' / 'town.db'}", verifier())
    key = tmp_path / "town.key"
    async with fleet_of().running(journal=f"sqlite:{tmp_path / 'new' / 'town.db'}", key=key) as live:
        assert counts(live) == before


async def test_the_log_is_archived_before_it_is_dropped(s3: S3Server, tmp_path: Path) -> None:
    settings = Settings(
        snapshots=OFTEN.snapshots,
        retention=Retention(keep_bytes=1, check_every_s=0.05, archive=s3.url("archive")),
    )
    async with fleet_of(settings).running(journal=f"sqlite:{tmp_path / 'town.db'}") as live:
        numbers = iter(range(1_000_000))
        async with asyncio.timeout(WITHIN_S):
            while not live.standing().counters.get("commits_dropped"):
                await count(live, range(next(numbers), next(numbers) + 1))
        assert live.standing().counters["segments_archived"]
    client = s3.client("s3")
    keys = [one["Key"] for one in client.list_objects_v2(Bucket=s3.bucket, Prefix="archive/")["Contents"]]
    for number, key in enumerate(keys):
        path = tmp_path / f"{number}.flight"
        path.write_bytes(client.get_object(Bucket=s3.bucket, Key=key)["Body"].read())
        flight = open_flight(path)
        assert not flight.flaws
        await flight.close()


async def test_an_archive_that_refuses_is_named(s3: S3Server) -> None:
    archive = StoreArchive(s3.url("archive", secret="wrong"), "town", SystemClock())
    with pytest.raises(JournalError, match="AWS_SECRET_ACCESS_KEY"):
        await archive.keep("a.flight", b"1")
    await archive.close()


async def test_two_nodes_share_their_blobs(s3: S3Server, tmp_path: Path) -> None:
    url, data = s3.url("blobs"), bytes(range(256)) * 10_000
    one = fleet_of().running(journal=f"sqlite:{tmp_path / 'a.db'}", blobs=url)
    async with one as live, fleet_of().running(journal="memory:", blobs=url) as far:
        blob = await live.put(data)
        assert await far.fetch(blob) == data
