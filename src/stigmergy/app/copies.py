"""Copies and archives of journals by the URLs of stores: makes them for a node, lists copies, restores a journal.

    Copiers(host, ("nats://hub:4222", "folder:/mnt/peer"), "north/gateway").start()
    async with CopiesAt("nats://hub:4222", "delivery") as objects:
        await restore(objects, manifest, "sqlite:fleet.db", verifier)

A restored journal is built under another name, verified from end to end, and only then renamed. It is a new life of the
node with a new incarnation: others must not confuse it with the one that knew more.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from stigmergy.app.journals import inspect_journal, open_journal
from stigmergy.app.node_config import check_store, open_store, shown
from stigmergy.app.parts import SEGMENTS, SQLITE, journal_path
from stigmergy.audit.archive_folder import FolderArchive, sync_folder
from stigmergy.audit.archive_port import Archive
from stigmergy.audit.copier import Copier, CopyStanding
from stigmergy.audit.copy_format import CopyManifest
from stigmergy.audit.restore import build_journal, fetch_pieces
from stigmergy.audit.verification import Verification, Verified
from stigmergy.base.clock import Clock
from stigmergy.base.errors import Bug, ConfigError, JournalCorrupt, JournalError, StoreCorrupt, StoreError
from stigmergy.base.system import SystemClock
from stigmergy.base.trust import Verifier
from stigmergy.journal.segments import SegmentJournal
from stigmergy.journal.sqlite import SqliteJournal
from stigmergy.nats.naming import archive_bucket, copies_bucket
from stigmergy.node.host import Host
from stigmergy.store.memory import MemoryStore, MemoryStoreServer
from stigmergy.store.port import Objects, Store

RESTORING = ".restoring"
"""The folder beside a journal in which it is restored."""
MARK = "-mark"
"""What lies beside a journal and says how far it has come."""
PROBLEMS_SHOWN = 3


def check_copied(url: str, copies: Sequence[str]) -> None:
    """Refuses copies of a journal that need none, and stores that nobody knows."""
    for store in copies:
        check_store(store)
    if copies and journal_path(url) is None and not url.startswith("memory:"):
        raise ConfigError(
            f"the journal {shown(url)} is on servers already, which keep as many copies of it as its replicas say; "
            f"take the copies at {shown(copies[0])} out, or keep the journal on a disk"
        )


class Copiers:
    """Those of one node, with the stores that they have opened."""

    def __init__(self, host: Host, urls: Sequence[str], node: str) -> None:
        self._stores: list[Store] = []
        self._bucket = copies_bucket(host.journal.identity.fleet)
        settings, safeguards = host.settings.copies, host.housekeeper.safeguards
        self.copiers: list[Copier] = []
        for url in urls:
            opening = _Opening(url, self._bucket, host.clock, self._stores)
            self.copiers.append(Copier(host.journal, shown(url), opening.open, node, host.clock, settings, safeguards))

    def standings(self) -> list[CopyStanding]:
        """How far the copies in each store are."""
        return [copier.standing for copier in self.copiers]

    def start(self) -> None:
        """Begins to copy to each of them."""
        for copier in self.copiers:
            copier.start()

    async def stop(self) -> None:
        """Ends all of it."""
        for copier in self.copiers:
            await copier.close()
        for store in self._stores:
            await store.close()
        self._stores.clear()


class _Opening:
    """Opens one store, once somebody needs it, and only once: its connection mends itself."""

    def __init__(self, url: str, bucket: str, clock: Clock, opened: list[Store]) -> None:
        self._url = url
        self._bucket = bucket
        self._clock = clock
        self._opened = opened
        self._store: Store | None = None

    async def open(self) -> Objects:
        if self._store is None:
            self._store = await open_store(self._url, self._clock)
            self._opened.append(self._store)
        return await self._store.objects(self._bucket)


class StoreArchive:
    """The Archive port on a store: each flight log is an object, which S3's and NATS's own tools fetch as a file."""

    def __init__(self, url: str, fleet: str, clock: Clock) -> None:
        check_store(url)
        self._url = url
        self._stores: list[Store] = []
        self._opening = _Opening(url, archive_bucket(fleet), clock, self._stores)

    async def keep(self, name: str, data: bytes) -> None:
        try:
            objects = await self._opening.open()
            about = await objects.put(name, data)
            found = await objects.get(name, about.version)
        except StoreCorrupt as error:
            raise JournalCorrupt(str(error)) from None
        except (StoreError, ConfigError) as error:
            raise JournalError(f"archive {shown(self._url)}: {error}") from None
        if found != data:
            raise JournalCorrupt(f"archive {shown(self._url)}: what was written of {name} does not read back")

    async def close(self) -> None:
        while self._stores:
            await self._stores.pop().close()


def open_archive(place: str, fleet: str, clock: Clock) -> Archive:
    """The archive at a URL of a store such as s3://logs?region=…, else in a folder."""
    return StoreArchive(place, fleet, clock) if "://" in place else FolderArchive(Path(place))


class CopiesAt:
    """The copies of a fleet in a store, for who lists and restores them. An async context manager."""

    def __init__(self, url: str, fleet: str) -> None:
        self._url = url
        self._fleet = fleet
        self._store: Store | None = None

    async def __aenter__(self) -> Objects:
        self._store = await open_store(self._url, SystemClock())
        bucket = copies_bucket(self._fleet)
        # Who looks for copies makes no place for them.
        return await self._store.find_objects(bucket) or await _nothing(bucket)

    async def __aexit__(self, *_: object) -> None:
        if self._store is not None:
            await self._store.close()


async def _nothing(bucket: str) -> Objects:
    clock = SystemClock()
    return await MemoryStore(MemoryStoreServer(clock), clock).objects(bucket)


class Restored(Struct, frozen=True):
    """What was built."""

    url: str
    incarnation: int
    verified: Verified
    fetched_bytes: int


async def restore(
    objects: Objects,
    manifest: CopyManifest,
    url: str,
    verifier: Verifier,
    trusted_key: tuple[int, bytes] | None = None,
) -> Restored:
    """Builds a new journal at this URL from a copy. Raises ConfigError if something is there already, JournalCorrupt
    with nothing changed if the copy does not hold together."""
    path = journal_path(url)
    if path is None:
        raise ConfigError(
            f"journal {url!r}: a copy is restored to a disk; give one like sqlite:fleet.db or segments:fleet"
        )
    _check_free(url, path)
    work = path.with_name(f"{path.name}{RESTORING}")
    # What a restore that was killed has left; nothing else has this name.
    shutil.rmtree(work, ignore_errors=True)
    try:
        pieces = work / "pieces"
        work.mkdir(mode=0o700, parents=True)
        pieces.mkdir()
        fetched = await fetch_pieces(objects, manifest, lambda digest, data: _write_piece(pieces / digest.hex(), data))
        scheme = SQLITE if url.startswith(SQLITE) else SEGMENTS
        built = work / "journal"
        incarnation = await _build(f"{scheme}{built}", manifest, pieces)
        verified = await _verify(f"{scheme}{built}", verifier, trusted_key)
        _check_free(url, path)
        _move(scheme, built, path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be restored here ({error.strerror}); make room, or name another place"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Restored(url, incarnation, verified, fetched)


def _check_free(url: str, path: Path) -> None:
    beside = [path] if url.startswith(SEGMENTS) else [path, Path(f"{path}-wal")]
    for one in beside:
        if one.exists() and (one.is_file() or any(one.iterdir())):
            raise ConfigError(f"{one} is there; a copy never overwrites a journal: move it away, or name another place")


async def _build(url: str, manifest: CopyManifest, pieces: Path) -> int:
    journal = open_journal(url, manifest.fleet, manifest.shards, manifest.part, manifest.shard_by)
    try:
        if not isinstance(journal, SqliteJournal | SegmentJournal):
            raise Bug(f"{url}: a journal that cannot begin in the middle")
        await build_journal(journal, manifest, lambda digest: (pieces / digest.hex()).read_bytes())
        return journal.identity.incarnation
    finally:
        await journal.close()


async def _verify(url: str, verifier: Verifier, trusted_key: tuple[int, bytes] | None) -> Verified:
    journal = inspect_journal(url)
    try:
        found = Verification(journal, verifier, trusted_key=trusted_key).run()
    finally:
        await journal.close()
    if found.problems:
        shown_problems = [
            f"shard {one.shard}, position {one.position}: {one.what}" for one in found.problems[:PROBLEMS_SHOWN]
        ]
        raise JournalCorrupt(f"this copy does not hold together ({'; '.join(shown_problems)}); nothing was restored")
    return found


def _move(scheme: str, built: Path, path: Path) -> None:
    """Gives what was built its name; the mark of the journal that was lost says nothing about it."""
    os.replace(f"{built}{MARK}", f"{path}{MARK}")
    if scheme == SEGMENTS and path.exists():
        path.rmdir()
    os.replace(built, path)
    sync_folder(path.parent)


def _write_piece(path: Path, data: bytes) -> None:
    path.write_bytes(data)
