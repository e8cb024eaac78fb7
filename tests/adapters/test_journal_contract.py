"""The journal contract, on every journal we have, the simulated disk included."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from stigmergy.adapters import memory, segments, sqlite
from stigmergy.ports.journal import JournalIdentity
from stigmergy.sim.disk import SimDisk
from stigmergy.sim.folder import SimFolder
from stigmergy.testing.journal_contract import JournalContract, OpenJournal


class TestMemoryJournal(JournalContract):
    @pytest.fixture
    def open_journal(self) -> OpenJournal:
        stores: list[memory.MemoryStore] = []

        def open_same(identity: JournalIdentity) -> memory.MemoryJournal:
            if not stores:
                stores.append(memory.MemoryStore(identity))
            return memory.open_journal("memory:", identity, store=stores[0])

        return open_same


class TestSqliteJournal(JournalContract):
    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda identity: sqlite.open_journal(f"sqlite:{tmp_path}/fleet.db", identity)


class TestSqliteJournalWithSmallWal(JournalContract):
    """A checkpoint after nearly every write."""

    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda identity: sqlite.open_journal(f"sqlite:{tmp_path}/fleet.db", identity, wal_bytes_max=1)


class TestSqliteJournalOnSimulatedDisk(JournalContract):
    @pytest.fixture
    def open_journal(self) -> Iterator[OpenJournal]:
        disk = SimDisk(random.Random(1))
        yield lambda identity: sqlite.open_journal(
            "sqlite:fleet.db", identity, inline=True, vfs=disk.vfs, files=disk, wal_bytes_max=100_000
        )
        disk.close()


class TestSegmentJournal(JournalContract):
    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda identity: segments.open_journal(f"segments:{tmp_path}/fleet", identity)


class TestSegmentJournalWithSmallSegments(JournalContract):
    """A new segment after nearly every write."""

    @pytest.fixture
    def open_journal(self, tmp_path: Path) -> OpenJournal:
        return lambda identity: segments.open_journal(f"segments:{tmp_path}/fleet", identity, segment_bytes=4096)


class TestSegmentJournalOnSimulatedDisk(JournalContract):
    @pytest.fixture
    def open_journal(self) -> Iterator[OpenJournal]:
        disk = SimDisk(random.Random(1))
        yield lambda identity: segments.open_journal(
            "segments:fleet",
            identity,
            inline=True,
            folder=SimFolder(disk, "fleet"),
            key=bytes(32),
            segment_bytes=20_000,
        )
        disk.close()
