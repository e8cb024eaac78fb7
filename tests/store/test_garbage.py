"""Garbage collection of blobs: what is referred to stays, whatever happens; the rest goes, in time."""

from __future__ import annotations

import pytest

from stigmergy.agents.messages import Blob
from stigmergy.base.errors import BlobMissing, StoreConflict, StoreCorrupt
from stigmergy.base.system import SystemThreads
from stigmergy.store.blobs import PIECES, Blobs, BlobSettings
from stigmergy.store.garbage import MARKS, REFERENCES, Collected, collect, forget_owner, tell_references
from stigmergy.store.memory import MemoryStore, MemoryStoreServer
from stigmergy.store.port import Objects, ObjectVersion
from stigmergy.testing.store_contract.blobs import DATA

HOUR_NS = 3_600 * 1_000_000_000
GRACE_H = 24
START_NS = 1_800_000_000 * 1_000_000_000


class Hours:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.ns = START_NS

    def wall_ns(self) -> int:
        return self.ns

    def monotonic_ns(self) -> int:
        return self.ns

    def pass_hours(self, count: float) -> None:
        self.ns += int(count * HOUR_NS)


class Killed(Exception):
    """The process ends here."""


class MortalObjects:
    """Objects whose user is killed at one of its calls that change something, before or after it is done."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.left = 1_000_000

    def _live_on(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    @property
    def bucket(self) -> str:
        return self._objects.bucket

    async def put(self, name: str, data: bytes, *, label: str = "", versions_kept: int = 1) -> ObjectVersion:
        self._live_on()
        about = await self._objects.put(name, data, label=label, versions_kept=versions_kept)
        self._live_on()
        return about

    async def delete(self, name: str, version: int | None = None) -> None:
        self._live_on()
        await self._objects.delete(name, version)
        self._live_on()

    async def get(self, name: str, version: int | None = None) -> bytes | None:
        return await self._objects.get(name, version)

    async def versions(self, name: str) -> list[ObjectVersion]:
        return await self._objects.versions(name)

    async def names(self, prefix: str = "") -> list[str]:
        return await self._objects.names(prefix)


class Place:
    """A store with blobs, and the nodes that use it."""

    def __init__(self, clock: Hours, objects: Objects) -> None:
        self.clock = clock
        self.objects = MortalObjects(objects)
        self.told: dict[str, list[Blob]] = {}

        async def opened() -> Objects:
            return self.objects

        settings = BlobSettings(grace_s=GRACE_H * 3600.0, patience_s=0.001)
        self.blobs = Blobs("here", opened, opened, clock, SystemThreads(), settings)

    async def tell(self, *owners: str) -> None:
        """These nodes tell what they refer to."""
        for owner in owners:
            digests = [blob.digest for blob in self.told.get(owner, [])]
            await tell_references(self.objects, owner, self.clock.wall_ns(), digests)

    async def collect_for(self, hours: int, *owners: str) -> Collected:
        """So many hours pass; every hour all tell, and garbage is collected."""
        found = Collected()
        for _ in range(hours):
            self.clock.pass_hours(1)
            await self.tell(*owners)
            one = await collect(self.blobs)
            found = one if one.deleted or not found.deleted else found
        return found


async def make_place() -> Place:
    clock = Hours()
    store = MemoryStore(MemoryStoreServer(clock), clock)
    return Place(clock, await store.objects("b"))


async def test_what_is_referred_to_stays_and_the_rest_goes_after_its_grace() -> None:
    place = await make_place()
    kept, lost = await place.blobs.put(DATA + b"kept"), await place.blobs.put(DATA + b"lost")
    place.told = {"a": [kept], "b": []}
    await place.collect_for(GRACE_H, "a", "b")
    assert await place.blobs.fetch(lost) == DATA + b"lost", "within its grace"
    found = await place.collect_for(2 * GRACE_H + 2, "a", "b")
    assert (found.deleted, found.deleted_bytes) == (1, lost.size_bytes)
    with pytest.raises(BlobMissing):
        await place.blobs.fetch(lost)
    assert await place.blobs.fetch(kept) == DATA + b"kept", "they share pieces"
    assert len(await place.objects.names(PIECES)) == 3
    place.told = {"a": [], "b": [kept]}
    await place.collect_for(100, "a", "b")
    assert await place.blobs.fetch(kept) == DATA + b"kept"


async def test_nothing_is_deleted_before_everybody_has_told() -> None:
    place = await make_place()
    blob = await place.blobs.put(b"1")
    await place.tell("away")
    found = await place.collect_for(200, "here")
    assert found.deleted == 0
    assert found.waits_for == ("away",)
    assert await place.blobs.has(blob)
    assert await forget_owner(place.objects, "away")
    assert not await forget_owner(place.objects, "away")
    assert (await place.collect_for(2, "here")).deleted == 1


async def test_a_store_that_nobody_told_anything_keeps_all() -> None:
    place = await make_place()
    await place.blobs.put(b"1")
    found = await place.collect_for(200)
    assert (found.deleted, found.owners) == (0, 0)


async def test_a_reference_that_travels_is_not_lost() -> None:
    """One node has passed it on and forgotten it; the other one tells it for the first time, late."""
    place = await make_place()
    blob = await place.blobs.put(b"1")
    place.told = {"a": [blob], "b": []}
    await place.collect_for(10 * GRACE_H, "a", "b")
    await place.tell("b")
    place.told = {"a": [], "b": [blob]}
    await place.collect_for(3 * GRACE_H, "a")
    assert await place.blobs.has(blob), "b was away, and has not told since"
    await place.collect_for(3 * GRACE_H, "a", "b")
    assert await place.blobs.has(blob)


async def test_what_was_referred_to_again_begins_its_grace_anew() -> None:
    place = await make_place()
    blob = await place.blobs.put(b"1")
    await place.collect_for(GRACE_H, "a")
    place.told = {"a": [blob]}
    await place.collect_for(5, "a")
    place.told = {}
    found = await place.collect_for(GRACE_H, "a")
    assert (found.deleted, found.marked) == (0, 1)
    assert (await place.collect_for(3, "a")).deleted == 1


async def test_what_is_put_again_stays() -> None:
    place = await make_place()
    blob = await place.blobs.put(DATA)
    await place.collect_for(GRACE_H - 1, "a")
    assert await place.blobs.put(DATA) == blob
    found = await place.collect_for(GRACE_H - 1, "a")
    assert (found.deleted, found.pieces_deleted) == (0, 0)
    assert await place.blobs.fetch(blob) == DATA


async def test_an_upload_that_was_never_finished_goes_too() -> None:
    place = await make_place()
    place.objects.left = 3
    with pytest.raises(Killed):
        await place.blobs.put(DATA)
    place.objects.left = 1_000_000
    assert len(await place.objects.names(PIECES)) == 2
    await place.collect_for(GRACE_H, "a")
    assert len(await place.objects.names(PIECES)) == 2
    assert (await place.collect_for(1, "a")).pieces_deleted == 2
    assert await place.objects.names(PIECES) == []


async def test_killed_at_any_point_nothing_that_is_referred_to_is_lost() -> None:
    calls = 0
    while True:
        place = await make_place()
        kept, lost = await place.blobs.put(DATA + b"kept"), await place.blobs.put(DATA + b"lost")
        place.told = {"a": [kept]}
        await place.collect_for(GRACE_H, "a")
        assert await place.blobs.has(lost)
        place.clock.pass_hours(1)
        await place.tell("a")
        place.objects.left = calls
        try:
            await collect(place.blobs)
            survived = True
        except Killed:
            survived = False
        place.objects.left = 1_000_000
        assert await place.blobs.fetch(kept) == DATA + b"kept", f"killed at call {calls}"
        await place.collect_for(2, "a")
        assert await place.blobs.fetch(kept) == DATA + b"kept", f"killed at call {calls}"
        assert not await place.blobs.has(lost)
        assert len(await place.objects.names(PIECES)) == 3, f"killed at call {calls}"
        if survived:
            break
        calls += 1
    assert calls > 5, "the kills were in the middle of it"


async def test_of_two_collections_one_gives_way() -> None:
    place = await make_place()
    await place.blobs.put(b"1")
    put = place.objects.put

    async def put_and_be_overtaken(name: str, data: bytes, *, label: str = "", versions_kept: int = 1) -> ObjectVersion:
        about = await put(name, data, label=label, versions_kept=versions_kept)
        await put(name, data, versions_kept=versions_kept)
        return about

    place.objects.put = put_and_be_overtaken  # type: ignore[method-assign]
    with pytest.raises(StoreConflict, match="another collection"):
        await collect(place.blobs)


@pytest.mark.parametrize("name", [MARKS, f"{REFERENCES}a"])
async def test_what_cannot_be_read_stops_it(name: str) -> None:
    place = await make_place()
    await place.blobs.put(b"1")
    await place.tell("a")
    await place.objects.put(name, b"nonsense")
    with pytest.raises(StoreCorrupt, match="nothing is deleted"):
        await collect(place.blobs)


async def test_a_dry_run_changes_nothing() -> None:
    place = await make_place()
    await place.blobs.put(b"1")
    await place.tell("a")
    place.objects.left = 0
    found = await collect(place.blobs, dry_run=True)
    assert (found.blobs, found.marked, found.deleted) == (1, 1, 0)
