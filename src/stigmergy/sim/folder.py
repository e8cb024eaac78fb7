"""A folder of a simulated disk, as the journal in segments needs it."""

from __future__ import annotations

from stigmergy.adapters.filing.files import Files
from stigmergy.sim.disk import SimDisk, SimFile


class SimFolder:
    """The files of a disk whose names begin with the folder's."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self.files: Files = disk
        self.path = path

    def make(self) -> None:
        """A folder of a simulated disk is there once a file is in it."""

    def names(self) -> list[str]:
        """What is there, sorted."""
        prefix = f"{self.path}/"
        return [path.removeprefix(prefix) for path in self._disk.paths() if path.startswith(prefix)]

    def size(self, name: str) -> int | None:
        """How many bytes a file has, or None if there is no such file."""
        return self._disk.size(self._of(name))

    def claim(self, name: str) -> SimFile:
        """Claims the file."""
        return self._disk.claim(self._of(name))

    def open(self, name: str, *, create: bool = False) -> SimFile:
        """Opens a file."""
        return self._disk.open(self._of(name), create=create)

    def replace(self, source: str, target: str) -> None:
        """Syncs the source and gives it the target's name, durably."""
        self._disk.replace(self._of(source), self._of(target))

    def remove(self, name: str) -> None:
        """Removes the file."""
        self._disk.remove(self._of(name))

    def sync(self) -> None:
        """Makes names durable."""
        self._disk.sync_folder(self.path)

    def free_bytes(self) -> int:
        """How much room is left."""
        return self._disk.free_bytes(self.path)

    def _of(self, name: str) -> str:
        return f"{self.path}/{name}"
