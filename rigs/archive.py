"""An archive and a record of holds on a simulated disk: they run out of room, fail and lose power as it does."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from stigmergy.base.errors import JournalCorrupt, JournalError, JournalFull
from stigmergy.sim.disk import SimDisk


class SimArchive:
    """Implements the Archive port. It may share the disk of the journal, or have one of its own."""

    def __init__(self, disk: SimDisk, folder: str = "archive") -> None:
        self._disk = disk
        self._folder = folder

    async def keep(self, name: str, data: bytes) -> None:
        path = f"{self._folder}/{name}"
        _write(self._disk, path, data)
        with _translating(path):
            if self._disk.read(path, 0, len(data) + 1) != data:
                raise JournalCorrupt(f"{path}: what was written does not read back")

    async def close(self) -> None:
        """A disk has no connection."""

    def names(self) -> list[str]:
        """What is in it, without asking the disk."""
        return [path for path in self._disk.paths() if path.startswith(f"{self._folder}/")]


class SimHolds:
    """Implements the HoldStore port."""

    def __init__(self, disk: SimDisk, path: str = "fleet.db-holds") -> None:
        self._disk = disk
        self._path = path

    def load(self) -> bytes:
        with _translating(self._path):
            size = self._disk.size(self._path)
            return b"" if size is None else self._disk.read(self._path, 0, size)

    def save(self, data: bytes) -> None:
        _write(self._disk, self._path, data)


def _write(disk: SimDisk, path: str, data: bytes) -> None:
    """Whole or not at all, as the shipping code does it."""
    fresh = f"{path}.new"
    with _translating(path):
        try:
            disk.remove(fresh)
            file = disk.open(fresh)
            file.write_at(0, data)
            file.sync()
            disk.replace(fresh, path)
        except OSError:
            with contextlib.suppress(OSError):
                disk.remove(fresh)
            raise


@contextlib.contextmanager
def _translating(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise JournalFull(f"{path}: no room") from error
        raise JournalError(f"{path}: {error.strerror}") from error
