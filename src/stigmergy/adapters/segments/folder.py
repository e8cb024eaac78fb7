"""The folder of a journal in segments, as the adapter needs it: named files, opened, replaced, removed, synced.

Everything here raises OSError and nothing else; the caller translates. The simulated disk has the same methods.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Protocol

from stigmergy.adapters.filing.files import Claim, OsClaim, read_exactly, write_exactly


class OpenFile(Protocol):
    """A file that is read and written in place."""

    def read_at(self, offset: int, size: int) -> bytes:
        """At most so many bytes; fewer at the end of the file."""
        ...

    def write_at(self, offset: int, data: bytes) -> None:
        """All of the data, or an error and perhaps some of it."""
        ...

    def sync(self) -> None:
        """Makes what was written durable, and how long the file is."""
        ...

    def size(self) -> int:
        """How long the file is now."""
        ...

    def close(self) -> None:
        """Lets go of it. Closing twice does nothing."""
        ...


class Folder(Protocol):
    """All files of one journal, by name."""

    path: str

    def names(self) -> list[str]:
        """What is there, sorted."""
        ...

    def size(self, name: str) -> int | None:
        """How many bytes a file has, or None if there is no such file."""
        ...

    def claim(self, name: str) -> Claim:
        """Claims the file, made if it is missing. Raises BlockingIOError if somebody has it."""
        ...

    def open(self, name: str, *, create: bool = False) -> OpenFile:
        """Opens a file. Raises FileNotFoundError if there is none and none may be made."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Syncs the source and gives it the target's name, all or nothing, durably."""
        ...

    def remove(self, name: str) -> None:
        """Removes the file; nothing happens if there is none."""
        ...

    def sync(self) -> None:
        """Makes names durable: what was made, and what was removed."""
        ...

    def free_bytes(self) -> int:
        """How much room the device has left for us."""
        ...


class OsFile:
    """An open file of the operating system."""

    def __init__(self, path: str, *, create: bool) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._file = os.open(path, flags, 0o644)

    def read_at(self, offset: int, size: int) -> bytes:
        return read_exactly(self._file, offset, size)

    def write_at(self, offset: int, data: bytes) -> None:
        write_exactly(self._file, offset, data)

    def sync(self) -> None:
        # Where the file is long enough already, this writes nothing but the data.
        os.fdatasync(self._file)

    def size(self) -> int:
        return os.fstat(self._file).st_size

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class OsFolder:
    """A folder of the operating system, made if it is missing."""

    def __init__(self, path: str, *, create: bool) -> None:
        self.path = os.path.realpath(path)
        if create:
            _make_folder(self.path)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path))

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self._of(name)).st_size
        except FileNotFoundError:
            return None

    def claim(self, name: str) -> Claim:
        return OsClaim(self._of(name))

    def open(self, name: str, *, create: bool = False) -> OpenFile:
        return OsFile(self._of(name), create=create)

    def replace(self, source: str, target: str) -> None:
        file = OsFile(self._of(source), create=False)
        try:
            file.sync()
        finally:
            file.close()
        os.replace(self._of(source), self._of(target))
        self.sync()

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._of(name))

    def sync(self) -> None:
        _sync_folder(self.path)

    def free_bytes(self) -> int:
        room = os.statvfs(self.path)
        return room.f_bavail * room.f_frsize

    def _of(self, name: str) -> str:
        return os.path.join(self.path, name)


def _make_folder(path: str) -> None:
    """Makes it and those above it, each durable in the one that holds it: else all that is in it could go with it."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    _make_folder(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, "a file is where the folder should be", path)
    _sync_folder(above)


def _sync_folder(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
