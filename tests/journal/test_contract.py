"""The journal contract, on every journal we have, the simulated disk included."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.journal import memory, segments, sqlite
from stigmergy.journal.port import JournalIdentity
from stigmergy.sim.disk import SimDisk, SimFolder
from stigmergy.testing.journal_contract import DiskFiles, FileJournalContract, JournalContract, OpenJournal


class OsPlace:
    """The files of a journal on the disk of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def paths(self) -> list[str]:
        return sorted(str(path.relative_to(self._folder)) for path in self._folder.rglob("*") if path.is_file())

    def read(self, path: str) -> bytes:
        return (self._folder / path).read_bytes()

    def put(self, path: str, content: bytes) -> None:
        fresh = self._folder / "put"
        fresh.write_bytes(content)
        fresh.rename(self._folder / path)

    def take_away(self, path: str, to: str | None = None) -> None:
        if to is None:
            (self._folder / path).unlink()
        else:
            (self._folder / path).rename(self._folder / to)


class SimPlace:
    """The files of a journal on a simulated disk."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.paths, self.read, self.put, self.take_away = disk.paths, disk.content, disk.put, disk.take_away


@pytest.fixture
def disk() -> Iterator[SimDisk]:
    disk = SimDisk(random.Random(1))
    yield disk
    disk.close()


class TestMemoryJournal(JournalContract):
    @pytest.fixture
    def open_journal(self) -> OpenJournal:
        stores: list[memory.MemoryJournalStore] = []

        def open_same(identity: JournalIdentity) -> memory.MemoryJournal:
            if not stores:
                stores.append(memory.MemoryJournalStore(identity))
            return memory.open_journal("memory:", identity, store=stores[0])

        return open_same


class TestSqliteJournal(FileJournalContract):
    mark = "fleet.db-mark"

    @pytest.fixture
    def place(self, tmp_path: Path) -> DiskFiles:
        return OsPlace(tmp_path)

    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda identity: sqlite.open_journal(f"sqlite:{tmp_path}/fleet.db", identity)


class TestSqliteJournalWithSmallWal(FileJournalContract):
    """A checkpoint after nearly every write."""

    mark = "fleet.db-mark"

    @pytest.fixture
    def place(self, tmp_path: Path) -> DiskFiles:
        return OsPlace(tmp_path)

    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda identity: sqlite.open_journal(f"sqlite:{tmp_path}/fleet.db", identity, wal_bytes_max=1)


class TestSqliteJournalOnSimulatedDisk(FileJournalContract):
    mark = "fleet.db-mark"

    @pytest.fixture
    def place(self, disk: SimDisk) -> DiskFiles:
        return SimPlace(disk)

    @pytest.fixture
    def open_journal(self, disk: SimDisk) -> OpenJournal:
        return lambda identity: sqlite.open_journal(
            "sqlite:fleet.db", identity, inline=True, vfs=disk.vfs, files=disk, wal_bytes_max=100_000
        )


class TestSegmentJournal(FileJournalContract):
    mark = "fleet-mark"

    @pytest.fixture
    def place(self, tmp_path: Path) -> DiskFiles:
        return OsPlace(tmp_path)

    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda identity: segments.open_journal(f"segments:{tmp_path}/fleet", identity)


class TestSegmentJournalWithSmallSegments(FileJournalContract):
    """A new segment after nearly every write."""

    mark = "fleet-mark"

    @pytest.fixture
    def place(self, tmp_path: Path) -> DiskFiles:
        return OsPlace(tmp_path)

    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda identity: segments.open_journal(f"segments:{tmp_path}/fleet", identity, segment_bytes=4096)


class TestSegmentJournalOnSimulatedDisk(FileJournalContract):
    mark = "fleet-mark"

    @pytest.fixture
    def place(self, disk: SimDisk) -> DiskFiles:
        return SimPlace(disk)

    @pytest.fixture
    def open_journal(self, disk: SimDisk) -> OpenJournal:
        return lambda identity: segments.open_journal(
            "segments:fleet",
            identity,
            inline=True,
            folder=SimFolder(disk, "fleet"),
            key=bytes(32),
            segment_bytes=20_000,
        )
