"""A node's journal copied elsewhere while it works, and built anew from there, on both kinds of files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from stigmergy import Agent, Event, Fleet, Settings, evolve
from stigmergy.app.copies import CopiesAt, restore
from stigmergy.app.fleet import verifier
from stigmergy.app.keyring import read_key
from stigmergy.audit.copier import Copier
from stigmergy.audit.copy_format import CopiedShard, CopyManifest, CopySettings
from stigmergy.audit.restore import CopyFound, choose_copy, find_copies
from stigmergy.audit.retention import Safeguards
from stigmergy.base.errors import ConfigError, JournalCorrupt, StoreCorrupt
from stigmergy.base.system import SystemClock
from stigmergy.control.live import Live
from stigmergy.keys.ed25519 import Ed25519Signer
from stigmergy.nats.naming import copies_bucket
from stigmergy.node.settings import Retention, Snapshots
from stigmergy.store import folder as folder_store
from stigmergy.store.memory import MemoryStore, MemoryStoreServer
from stigmergy.store.port import Objects

KINDS = ("sqlite", "segments")
AGENTS = 40
OFTEN = Settings(
    snapshots=Snapshots(every_events=30, every_s=1e9, tail_ratio=0.0, share_max=1e9, incremental_max=2),
    copies=CopySettings(every_s=0.02, point_every_s=1e6, points_kept=2),
)


class Counted(Event):
    number: int
    padding: bytes = b""


class Counter(Agent):
    count: int = 0
    last: int = 0

    @evolve
    def counted(self, event: Counted) -> None:
        self.count += 1
        self.last = event.number


def url_of(kind: str, folder: Path, name: str = "town") -> str:
    return f"{kind}:{folder / name}{'.db' if kind == 'sqlite' else ''}"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fleet_of(settings: Settings = OFTEN) -> Fleet:
    return Fleet("town", agents=[Counter], shards=4, settings=settings)


async def count(live: Live, numbers: range) -> None:
    for number in numbers:
        await live.observe(f"Counter/{number % AGENTS}", Counted(number=number, padding=bytes(100)))


def counts(live: Live) -> dict[str, tuple[int, int]]:
    found = {f"Counter/{number}": live.query(f"Counter/{number}", Counter) for number in range(AGENTS)}
    return {address: (agent.count, agent.last) for address, agent in found.items()}


@asynccontextmanager
async def objects_in(folder: Path) -> AsyncIterator[Objects]:
    store = await folder_store.open_store(f"folder:{folder}", SystemClock())
    yield await store.objects(copies_bucket("town"))
    await store.close()


async def wait_copied(live: Live, objects: Objects) -> CopyFound:
    """Until a copy has everything that is durable; returns it."""
    commits = sum(head.position for head in live.standing().heads)
    for _ in range(2_000):
        found = await find_copies(objects)
        if found and found[-1].manifest is not None and found[-1].manifest.commits >= commits:
            return found[-1]
        await asyncio.sleep(0.01)
    raise AssertionError(f"not copied: {live.standing().troubles}")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_journal_that_is_lost_is_restored_and_goes_on(tmp_path: Path, kind: str) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    fleet, url, key = fleet_of(), url_of(kind, tmp_path), tmp_path / "town.key"
    async with (
        fleet.running(journal=url, key=key, node="n1", copies=[f"folder:{copies}"]) as live,
        objects_in(copies) as objects,
    ):
        await count(live, range(400))
        before = counts(live)
        assert live.standing().counters["snapshots"] > 0
        found = await wait_copied(live, objects)
        (standing,) = live.standing().copies
        assert standing.points >= 1
        assert standing.copies >= 1
        assert not standing.trouble
    assert found.node == "local/n1"
    assert found.manifest is not None
    assert any(shard.before.position for shard in found.manifest.copied), "from a snapshot on"
    async with CopiesAt(f"folder:{copies}", "town") as objects:
        again = url_of(kind, tmp_path, "again")
        restored = await restore(objects, found.manifest, again, verifier(), _trusted(key))
        with pytest.raises(ConfigError, match="never overwrites"):
            await restore(objects, found.manifest, again, verifier())
        with pytest.raises(ConfigError, match="never overwrites"):
            await restore(objects, found.manifest, url, verifier())
    assert restored.verified.sound
    assert restored.incarnation != found.manifest.incarnation
    assert not [name for name in names_in(tmp_path) if name.endswith(".restoring")]
    async with fleet.running(journal=again, key=key, node="n1", copies=[f"folder:{copies}"]) as live:
        assert counts(live) == before
        await count(live, range(400, 450))
        assert live.query("Counter/0", Counter) is not None
        async with objects_in(copies) as objects:
            newest = await wait_copied(live, objects)
        assert newest.manifest is not None
        assert newest.manifest.incarnation == restored.incarnation


async def test_a_node_whose_only_key_would_be_lost_with_its_disk_says_so(tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    fleet, url, key = fleet_of(), url_of("sqlite", tmp_path), tmp_path / "town.key"
    said: list[str] = []

    async def run(*copies: str, enrol: bytes = b"") -> list[str]:
        said.clear()
        running = fleet.running(journal=url, key=key, copies=copies)
        running.say = said.append
        async with running as live:
            if enrol:
                live.enroll_signer(1, enrol)
        return [one for one in said if "is on the journal's disk and is not copied" in one]

    copies = f"folder:{tmp_path / 'copies'}"
    assert len(await run(copies)) == 1, "of a new journal, which has enrolled no key yet"
    assert await run() == []
    assert len(await run(copies, enrol=Ed25519Signer(b"r" * 32).public_key)) == 1
    assert await run(copies) == []


def _trusted(key: Path) -> tuple[int, bytes]:
    public = read_key(str(key))
    return public.algorithm, public.key


@pytest.mark.parametrize("kind", KINDS)
async def test_copies_made_under_load_all_hold_together(tmp_path: Path, kind: str) -> None:
    """Every version that was ever made is restored: its snapshots, notes and signatures fit, whenever it was made."""
    settings = structs.replace(
        OFTEN,
        retention=Retention(keep_s=0.0, reserve_bytes=0, check_every_s=0.05),
        copies=CopySettings(every_s=0.01, point_every_s=1e-6, points_kept=400),
    )
    copies = tmp_path / "copies"
    copies.mkdir()
    fleet = fleet_of(settings)
    async with (
        fleet.running(
            journal=url_of(kind, tmp_path), key=tmp_path / "k", node="n1", copies=[f"folder:{copies}"]
        ) as live,
        objects_in(copies) as objects,
    ):
        for start in range(0, 600, 100):
            await asyncio.gather(count(live, range(start, start + 50)), count(live, range(start + 50, start + 100)))
        async with asyncio.timeout(240):
            while not live.standing().counters["commits_dropped"]:
                await count(live, range(600, 650))
                await asyncio.sleep(0.05)
        await wait_copied(live, objects)
        assert live.standing().troubles == []
        found = await find_copies(objects)
        assert len(found) > 5
        for number in range(0, len(found), max(1, len(found) // 8)):
            manifest = found[number].manifest
            assert manifest is not None
            restored = await restore(objects, manifest, url_of(kind, tmp_path, f"r{number}"), verifier())
            assert restored.verified.sound
            assert {head.shard: head for head in restored.verified.heads} == {
                shard.last.shard: shard.last for shard in manifest.copied
            }


def copier_of(live: Live, store: MemoryStore, settings: CopySettings) -> Copier:
    """Copies when it is told to, and not by itself."""

    async def open_objects() -> Objects:
        return await store.objects(copies_bucket("town"))

    return Copier(live.host.journal, "memory:", open_objects, "local/n1", live.host.clock, settings, Safeguards())


async def digests_in(objects: Objects) -> dict[str, None]:
    return dict.fromkeys(name.rpartition(":")[2] for name in await objects.names("local/n1:"))


def manifest_of(found: CopyFound) -> CopyManifest:
    assert found.manifest is not None
    return found.manifest


async def test_points_are_bounded_and_pieces_that_nobody_needs_go(tmp_path: Path) -> None:
    store = MemoryStore(MemoryStoreServer(SystemClock()), SystemClock())
    objects = await store.objects(copies_bucket("town"))
    rule = CopySettings(point_every_s=1e-6, points_kept=2)
    fleet = fleet_of()
    async with fleet.running(journal=url_of("sqlite", tmp_path), key=tmp_path / "k") as live:
        copier = copier_of(live, store, rule)
        for start in range(0, 500, 100):
            await count(live, range(start, start + 100))
            assert await copier.copy()
            assert await copier.copy(), "nothing is new"
        found = await find_copies(objects)
        assert copier.standing.copies == 5
        assert copier.standing.points == len(found) == 2
        needed = dict.fromkeys(digest.hex() for one in found for digest in manifest_of(one).digests)
        assert await digests_in(objects) == needed
        oldest = manifest_of(found[0])
    # A node that lost its disk and begins anew by mistake must not push out what it can be restored from.
    async with fleet.running(journal=url_of("sqlite", tmp_path, "new"), key=tmp_path / "k") as live:
        copier = copier_of(live, store, rule)
        for start in range(0, 250, 50):
            await count(live, range(start, start + 50))
            assert await copier.copy()
        lives = [manifest_of(one).incarnation for one in await find_copies(objects)]
    assert lives.count(oldest.incarnation) == 1
    assert len(lives) == 3
    newest_of_old = choose_copy(await find_copies(objects), (await find_copies(objects))[0].version)
    restored = await restore(objects, manifest_of(newest_of_old), url_of("sqlite", tmp_path, "back"), verifier())
    assert restored.verified.sound


async def test_a_node_that_goes_on_takes_no_pieces_from_the_one_restored_in_its_place(tmp_path: Path) -> None:
    """It was thought to be lost. Both copy under one name, and have the same pieces of what they have in common."""
    store = MemoryStore(MemoryStoreServer(SystemClock()), SystemClock())
    objects = await store.objects(copies_bucket("town"))
    rule = CopySettings(point_every_s=1e-6, points_kept=1)
    fleet = fleet_of()
    async with fleet.running(journal=url_of("sqlite", tmp_path), key=tmp_path / "k") as live:
        copier = copier_of(live, store, rule)
        await count(live, range(200))
        assert await copier.copy()
        (found,) = await find_copies(objects)
        restored = await restore(objects, manifest_of(found), url_of("sqlite", tmp_path, "twin"), verifier())
        async with fleet.running(journal=url_of("sqlite", tmp_path, "twin"), key=tmp_path / "k") as twin:
            assert await copier_of(twin, store, rule).copy()
        for start in range(200, 700, 100):
            await count(live, range(start, start + 100))
            assert await copier.copy()
    lives = {manifest_of(one).incarnation: one for one in await find_copies(objects)}
    assert len(lives) == 2
    again = url_of("sqlite", tmp_path, "again")
    assert (await restore(objects, manifest_of(lives[restored.incarnation]), again, verifier())).verified.sound


async def test_a_point_moves_along_until_it_is_time_for_another(tmp_path: Path) -> None:
    store = MemoryStore(MemoryStoreServer(SystemClock()), SystemClock())
    objects = await store.objects(copies_bucket("town"))
    async with fleet_of().running(journal=url_of("sqlite", tmp_path), key=tmp_path / "k") as live:
        copier = copier_of(live, store, CopySettings(point_every_s=3_600.0))
        for start in range(0, 300, 50):
            await count(live, range(start, start + 50))
            assert await copier.copy()
        (only,) = await find_copies(objects)
        assert manifest_of(only).commits == copier.standing.commits == sum(h.position for h in live.standing().heads)


async def test_a_store_out_of_reach_holds_up_nobody_and_is_caught_up_with(tmp_path: Path) -> None:
    store = MemoryStore(MemoryStoreServer(SystemClock()), SystemClock())
    objects = await store.objects(copies_bucket("town"))
    async with fleet_of().running(journal=url_of("sqlite", tmp_path), key=tmp_path / "k") as live:
        copier = copier_of(live, store, CopySettings())
        store.line.cut_off = True
        await count(live, range(100))
        assert not await copier.copy()
        assert copier.standing.failures == 1
        assert "unreachable" in copier.standing.trouble
        store.line.cut_off = False
        await count(live, range(100, 200))
        assert await copier.copy()
        assert copier.standing.trouble == ""
        store.line.cut_off = True
        await count(live, range(200, 300))
        assert not await copier.copy()
        store.line.cut_off = False
        assert await copier.copy()
        before = counts(live)
        found = await find_copies(objects)
    restored = await restore(objects, manifest_of(found[-1]), url_of("segments", tmp_path, "again"), verifier())
    async with fleet_of().running(journal=restored.url, key=tmp_path / "k") as live:
        assert counts(live) == before


async def test_a_copy_that_is_damaged_or_forged_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    store = MemoryStore(MemoryStoreServer(SystemClock()), SystemClock())
    objects = await store.objects(copies_bucket("town"))
    async with fleet_of().running(journal=url_of("sqlite", tmp_path), key=tmp_path / "k") as live:
        copier = copier_of(live, store, CopySettings())
        await count(live, range(300))
        assert await copier.copy()
    manifest = manifest_of((await find_copies(objects))[-1])
    again = url_of("sqlite", tmp_path, "again")

    async def refused(other: CopyManifest, match: str, trusted: tuple[int, bytes] | None = None) -> None:
        with pytest.raises((JournalCorrupt, StoreCorrupt), match=match):
            await restore(objects, other, again, verifier(), trusted)
        assert names_in(tmp_path) == left

    left = names_in(tmp_path)
    for digest in manifest.digests[:1] + manifest.digests[-1:]:
        name = f"local/n1:{digest.hex()}"
        data = await objects.get(name)
        assert data is not None
        await objects.put(name, data[:-1] + bytes([data[-1] ^ 1]))
        await refused(manifest, "other bytes")
        await objects.delete(name)
        await refused(manifest, "not there any more")
        await objects.put(name, data)
    shard = manifest.copied[0]
    assert shard.snapshots
    await refused(changed(manifest, structs.replace(shard, log=shard.log[:-1])), "ends at|hold together|covers")
    await refused(changed(manifest, structs.replace(shard, snapshots=[])), "does not begin where")
    other = structs.replace(shard.before, digest=bytes(32))
    await refused(changed(manifest, structs.replace(shard, before=other)), "does not begin where")
    await refused(structs.replace(manifest, fleet="another"), "hold together|does not begin")
    await refused(manifest, "neither began this log nor signed its end", (1, bytes(32)))
    with pytest.raises(ConfigError, match="to a disk"):
        await restore(objects, manifest, "memory:", verifier())
    assert (await restore(objects, manifest, again, verifier())).verified.sound


def changed(manifest: CopyManifest, shard: CopiedShard) -> CopyManifest:
    """With another first shard."""
    return structs.replace(manifest, copied=[shard, *manifest.copied[1:]])


async def test_which_copy_is_meant_must_be_clear() -> None:
    one, two = CopyFound("local/n1", 4, 0, None), CopyFound("local/n1", 7, 0, None)
    assert choose_copy([one, two], None) == two
    assert choose_copy([one, two], 4) == one
    with pytest.raises(ConfigError, match="no version 5"):
        choose_copy([one, two], 5)
    with pytest.raises(ConfigError, match="no copy here"):
        choose_copy([], None)
    with pytest.raises(ConfigError, match="local/n1, local/n2"):
        choose_copy([one, CopyFound("local/n2", 4, 0, None)], None)


async def test_a_store_that_nobody_knows_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no adapter for 'ftp'"):
        fleet_of().running(journal=url_of("sqlite", tmp_path), key=tmp_path / "k", copies=["ftp://peer"])
    with pytest.raises(ConfigError, match=r"nats://hub:4222 is on servers already"):
        fleet_of().running(journal="nats://me:word@hub:4222", key=tmp_path / "k", copies=["folder:peer"])
