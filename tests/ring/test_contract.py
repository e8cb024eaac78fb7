"""The ring contract, on the ring between processes and on the one in memory."""

from pathlib import Path

import pytest

from rigs.ring_contract import CAPACITY_BYTES, Ring, RingContract
from stigmergy import ring as rings


class FileRing:
    """A ring at a path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open_producer(self) -> rings.Producer:
        return rings.open_producer(self.path, capacity_bytes=CAPACITY_BYTES)

    def open_consumer(self) -> rings.Consumer:
        return rings.open_consumer(self.path, capacity_bytes=CAPACITY_BYTES)


class TestRingOnAFile(RingContract):
    @pytest.fixture
    def ring(self, tmp_path: Path) -> Ring:
        return FileRing(tmp_path / "ring")


class TestRingInMemory(RingContract):
    @pytest.fixture
    def ring(self) -> Ring:
        return rings.MemoryRing(capacity_bytes=CAPACITY_BYTES)
