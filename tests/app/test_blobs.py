"""Blobs on a running node: from the program, from sensors and workers, on two nodes, across restarts."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from stigmergy import (
    Action,
    Agent,
    Blob,
    BlobMissing,
    BlobSettings,
    Command,
    Effects,
    Event,
    Events,
    Fleet,
    Live,
    NotRunning,
    Order,
    Retention,
    Settings,
    Snapshots,
    Work,
    decide,
    evolve,
    react,
)
from stigmergy.app.blobs import blobs_url
from stigmergy.base.errors import ConfigError, StoreUnavailable

PHOTO = bytes(range(256)) * 5_000
WITHIN_S = 240.0


class Look(Command):
    photo: Blob


class PhotoTaken(Event):
    photo: Blob


class Looked(Event):
    photo: Blob
    thumbnail: Blob


class Shrink(Work):
    photo: Blob


class Show(Action):
    photo: Blob


class Eye(Agent):
    last: Blob | None = None
    thumbnail: Blob | None = None

    @decide
    def look(self, command: Look) -> Events:
        yield PhotoTaken(photo=command.photo)

    @evolve
    def taken(self, event: PhotoTaken) -> None:
        self.last = event.photo

    @react
    def shrink(self, event: PhotoTaken) -> Effects:
        yield Shrink(photo=event.photo)

    @evolve
    def looked(self, event: Looked) -> None:
        self.thumbnail = event.thumbnail

    @react
    def show(self, event: Looked) -> Effects:
        yield Show(photo=event.thumbnail)


def make_fleet(shown: list[bytes]) -> Fleet:
    fleet = Fleet("eyes", agents=[Eye])

    @fleet.worker(Shrink)
    async def shrink(order: Order[Shrink]) -> Looked:
        photo = await fleet.blobs.fetch(order.effect.photo)
        return Looked(photo=order.effect.photo, thumbnail=await fleet.blobs.put(photo[::100], media_type="image/x"))

    @fleet.actuator(Show)
    async def show(order: Order[Show]) -> None:
        shown.append(await fleet.blobs.fetch(order.effect.photo))

    return fleet


async def wait_for(what: Any) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not what():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


async def test_a_worker_and_an_actuator_reach_the_blobs_of_their_node(tmp_path: Path) -> None:
    shown: list[bytes] = []
    fleet = make_fleet(shown)
    url = f"sqlite:{tmp_path / 'eyes.db'}"
    async with fleet.running(journal=url) as live:
        assert not (tmp_path / "eyes.db-blobs").exists(), "made with the first blob"
        photo = await live.put(PHOTO, media_type="image/x")
        await live.send("Eye/e", Look(photo=photo))
        await wait_for(lambda: shown)
        assert shown == [PHOTO[::100]]
        with pytest.raises(NotRunning, match=r"live\.put"):
            _ = fleet.blobs
    async with fleet.running(journal=url) as live:
        eye = live.query("Eye/e", Eye)
        assert eye.last == photo
        assert eye.thumbnail is not None
        assert await live.fetch(eye.thumbnail) == PHOTO[::100]
        await live.fetch_to(photo, tmp_path / "photo")
        assert (tmp_path / "photo").read_bytes() == PHOTO


async def test_a_sensor_puts_what_it_has_seen(tmp_path: Path) -> None:
    fleet = Fleet("eyes", agents=[Eye])

    @fleet.sensor(Eye, every_s=0.02, agents=["e"])
    async def camera(eye: str) -> PhotoTaken:
        return PhotoTaken(photo=await fleet.blobs.put(PHOTO))

    @fleet.worker(Shrink)
    async def shrink(order: Order[Shrink]) -> Looked:
        return Looked(photo=order.effect.photo, thumbnail=order.effect.photo)

    async with fleet.running(journal="memory:") as live:
        await wait_for(lambda: live.query("Eye/e", Eye).last is not None)
        last = live.query("Eye/e", Eye).last
        assert last is not None
        assert await live.fetch(last) == PHOTO


async def test_an_event_may_refer_to_what_is_not_there(tmp_path: Path) -> None:
    """It is taken: the store may be elsewhere, and out of reach. Who fetches is told."""
    fleet = make_fleet([])
    async with fleet.running(journal="memory:") as live:
        missing = Blob(bytes(32), 5)
        await live.send("Eye/e", Look(photo=missing))
        assert live.query("Eye/e", Eye).last == missing
        with pytest.raises(BlobMissing, match="never put"):
            await live.fetch(missing)


async def test_two_nodes_in_one_program_have_stores_of_their_own(tmp_path: Path) -> None:
    fleet, other = make_fleet([]), make_fleet([])
    (tmp_path / "shared").mkdir()
    one = fleet.running(journal=f"sqlite:{tmp_path / 'a.db'}", blobs=f"folder:{tmp_path / 'shared'}")
    two = other.running(journal=f"sqlite:{tmp_path / 'b.db'}", blobs=f"folder:{tmp_path / 'shared'}")
    async with one as live, two as far, make_fleet([]).running(journal="memory:") as alone:
        photo = await live.put(PHOTO)
        assert await far.fetch(photo) == PHOTO
        with pytest.raises(BlobMissing):
            await alone.fetch(photo)


@pytest.mark.parametrize("wrong", ["photo.jpg", 5, None])
async def test_what_cannot_be_put_is_refused(wrong: Any) -> None:
    async with make_fleet([]).running(journal="memory:") as live:
        with pytest.raises(ConfigError, match="Path"):
            await live.put(wrong)
        with pytest.raises(ConfigError, match="Blob"):
            await live.fetch(wrong)


def test_a_store_that_nobody_has_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="no adapter"):
        make_fleet([]).running(journal="memory:", blobs="ftp://nowhere")


async def put_in_time(live: Live, data: bytes) -> Blob:
    """Puts until it is done within half the grace period, which is short here."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await live.put(data)


SOON = Settings(
    snapshots=Snapshots(every_events=5, every_s=1e9, tail_ratio=0.0, share_max=1e9),
    retention=Retention(keep_bytes=1, check_every_s=0.02),
    blobs=BlobSettings(grace_s=3.0, references_every_s=0.05),
)


async def test_a_node_collects_what_its_log_refers_to_no_more(tmp_path: Path) -> None:
    """The state, in a snapshot only, refers to the last photo; the ones before are gone with the log."""
    fleet = make_fleet([])
    url = f"sqlite:{tmp_path / 'eyes.db'}"
    async with fleet.running(journal=url, settings=SOON) as live:
        photos = [await put_in_time(live, b"%d" % number * 100) for number in range(3)]
        for photo in photos:
            await live.send("Eye/e", Look(photo=photo))
        other = await put_in_time(live, b"of others")

        async def until_gone(*gone: Blob) -> None:
            """Other agents make log, so that retention drops what is before the snapshot."""
            while any([await live.blobs.has(blob) for blob in gone]):
                await live.send("Eye/other", Look(photo=other))
                await asyncio.sleep(0.01)

        async with asyncio.timeout(WITHIN_S):
            await until_gone(*photos[:2])
            await until_gone(await put_in_time(live, b"unreferenced, and put when the log was dropped"))
        eye = live.query("Eye/e", Eye)
        assert eye.last == photos[2]
        assert eye.thumbnail is not None
        assert await live.fetch(photos[2]) == b"2" * 100
        assert await live.fetch(eye.thumbnail) == (b"2" * 100)[::100]
        assert live.standing().counters["commits_dropped"]
        assert live.troubles() == []


async def test_an_archive_keeps_what_was_ever_referred_to(tmp_path: Path) -> None:
    fleet = make_fleet([])
    retention = structs.replace(SOON.retention, archive=str(tmp_path / "archive"))
    settings = structs.replace(SOON, retention=retention)
    url, folder = f"sqlite:{tmp_path / 'eyes.db'}", tmp_path / "eyes.db-blobs"
    photos: list[Blob] = []
    for _ in range(2):
        async with fleet.running(journal=url, settings=settings) as live:
            photos.append(await put_in_time(live, b"%d" % len(photos) * 100))
            await live.send("Eye/e", Look(photo=photos[-1]))
            unreferenced = await put_in_time(live, b"nobody")
            async with asyncio.timeout(WITHIN_S):
                while await live.blobs.has(unreferenced) or not live.standing().counters["commits_dropped"]:
                    await live.send("Eye/f", Look(photo=photos[-1]))
                    await asyncio.sleep(0.01)
            assert [await live.blobs.has(photo) for photo in photos] == [True] * len(photos)
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("named", "url"),
    [
        ("nats://a:1,b:2,c:3", "nats://a:1,b:2,c:3?replicas=3"),
        ("nats://u:p@a:1?domain=gw", "nats://u:p@a:1?domain=gw&replicas=1"),
        ("nats://a:1,b:2,c:3?replicas=1", "nats://a:1,b:2,c:3?replicas=1"),
        ("folder:/mnt/x", "folder:/mnt/x"),
    ],
)
def test_who_names_the_same_servers_means_the_same_bucket(named: str, url: str) -> None:
    """Else the command line makes a bucket with one replica, which workers refuse."""
    assert blobs_url(named, "sqlite:fleet.db") == url


class Stumble(Command):
    photo: Blob


class Clumsy(Agent):
    steps: int = 0

    @decide
    def stumble(self, command: Stumble) -> Events:
        if command.photo.size_bytes:
            raise RuntimeError("a bug of the handler")
        yield PhotoTaken(photo=command.photo)

    @decide
    def look(self, command: Look) -> Events:
        yield PhotoTaken(photo=command.photo)

    @evolve
    def taken(self, event: PhotoTaken) -> None:
        self.steps += 1


async def test_a_dead_letter_keeps_its_blob(tmp_path: Path) -> None:
    """Its input may be given to the agent again, long after its commit was dropped."""
    fleet = Fleet("eyes", agents=[Clumsy])
    async with fleet.running(journal=f"sqlite:{tmp_path / 'eyes.db'}", settings=SOON) as live:
        failed, other = await put_in_time(live, b"failed"), await put_in_time(live, b"other")
        await live.send("Clumsy/c", Stumble(photo=failed))
        (letter,) = live.dead_letters()
        async with asyncio.timeout(WITHIN_S):
            for number in range(2):
                unreferenced = await put_in_time(live, b"unreferenced %d" % number)
                while await live.blobs.has(unreferenced):
                    await live.send("Clumsy/d", Look(photo=other))
                    await asyncio.sleep(0.01)
        assert live.standing().counters["commits_dropped"]
        assert live.dead_letters() == [letter]
        assert await live.fetch(failed) == b"failed"
