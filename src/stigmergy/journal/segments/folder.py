"""The folder of a journal in segments, as the adapter needs it: named files, opened, replaced, removed, synced.

Everything here raises only OSError; the caller translates it. The simulated disk has the same methods.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from typing import Protocol

from stigmergy.journal.files import (
    FOLDER_MODE,
    FileLock,
    Files,
    OsFileLock,
    OsFiles,
    open_own,
    read_exactly,
    write_exactly,
)

DIRECT_BYTES_MIN = 1 << 16
BLOCK_BYTES = 4096
PIECES_MAX = 512
"""The system takes 1,024 in one call and refuses more; a group has one for each of its shards."""
_UNTRIED, _UNABLE = -2, -1


class OpenFile(Protocol):
    """A file that is read and written in place."""

    def read_at(self, offset: int, size: int) -> bytes:
        """At most so many bytes; fewer at the end of the file."""
        ...

    def write_at(self, offset: int, data: bytes) -> None:
        """All of the data, or an error and perhaps some of it."""
        ...

    def write_pieces(self, offset: int, pieces: Sequence[bytes]) -> None:
        """The same for pieces that follow each other, without putting them together first."""
        ...

    def reserve(self, size: int) -> None:
        """Makes the file so long, with room for all of it that nobody else can take; what is new reads as zeros."""
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
    files: Files
    """The file system that it is on, for what lies beside it."""

    def make(self) -> None:
        """Makes the folder, durably, if it is missing."""
        ...

    def names(self) -> list[str]:
        """What is there, sorted. Raises FileNotFoundError if there is no folder."""
        ...

    def size(self, name: str) -> int | None:
        """How many bytes a file has, or None if there is no such file."""
        ...

    def claim(self, name: str) -> FileLock:
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


class AlignedBuffers:
    """Memory that begins at a page, as writes past the page cache need it. Shared by the files of a folder, of which
    one is written at a time."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, BLOCK_BYTES)
        self._address = _address_of(self._memory)

    def filled(self, pieces: Sequence[bytes], size_bytes: int) -> memoryview:
        """The pieces, put together there."""
        if len(self._memory) < size_bytes:
            self._memory = mmap.mmap(-1, size_bytes)
            self._address = _address_of(self._memory)
        at = 0
        for piece in pieces:
            # Copied like this, and not by a slice, because it lets the interpreter go on meanwhile.
            ctypes.memmove(self._address + at, piece, len(piece))
            at += len(piece)
        return memoryview(self._memory)[:size_bytes]


def _address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class OsFile:
    """An open file of the operating system. Large writes of whole blocks go past the page cache, where that can be:
    they would only push out of it what is needed."""

    def __init__(self, path: str, *, create: bool, blocks: AlignedBuffers | None = None) -> None:
        self._path = path
        self._file = open_own(path, os.O_RDWR | (os.O_CREAT if create else 0))
        self._direct = _UNTRIED
        self._blocks = blocks or AlignedBuffers()

    def read_at(self, offset: int, size: int) -> bytes:
        return read_exactly(self._file, offset, size)

    def write_at(self, offset: int, data: bytes) -> None:
        write_exactly(self._file, offset, data)

    def write_pieces(self, offset: int, pieces: Sequence[bytes]) -> None:
        size_bytes = sum(len(piece) for piece in pieces)
        whole = size_bytes >= DIRECT_BYTES_MIN and not offset % BLOCK_BYTES and not size_bytes % BLOCK_BYTES
        if whole and self._write_direct(offset, pieces, size_bytes):
            return
        if len(pieces) > PIECES_MAX:
            pieces = [b"".join(pieces)]
        written = os.pwritev(self._file, pieces, offset)
        if written < size_bytes:
            write_exactly(self._file, offset + written, b"".join(pieces)[written:])

    def _write_direct(self, offset: int, pieces: Sequence[bytes], size_bytes: int) -> bool:
        """Whether it was written past the page cache. Not every file system can."""
        if self._direct == _UNTRIED:
            try:
                self._direct = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT | os.O_NOFOLLOW)
            except OSError:
                self._direct = _UNABLE
        if self._direct == _UNABLE:
            return False
        try:
            # A write that stops half way through is done again, the other way.
            return os.pwrite(self._direct, self._blocks.filled(pieces, size_bytes), offset) == size_bytes
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            os.close(self._direct)
            self._direct = _UNABLE
            return False

    def reserve(self, size: int) -> None:
        os.posix_fallocate(self._file, 0, size)

    def sync(self) -> None:
        # Where the file is long enough already, this writes nothing but the data.
        os.fdatasync(self._file)

    def size(self) -> int:
        return os.fstat(self._file).st_size

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._direct >= 0:
            os.close(self._direct)
            self._direct = _UNABLE


class OsFolder:
    """A folder of the operating system."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        self.files: Files = OsFiles()
        self._blocks = AlignedBuffers()

    def make(self) -> None:
        _make_folder(self.path)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path))

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self._of(name)).st_size
        except FileNotFoundError:
            return None

    def claim(self, name: str) -> FileLock:
        return OsFileLock(self._of(name))

    def open(self, name: str, *, create: bool = False) -> OpenFile:
        return OsFile(self._of(name), create=create, blocks=self._blocks)

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
        os.mkdir(path, FOLDER_MODE)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, "a file is where the folder should be", path)
    _sync_folder(above)


def _sync_folder(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
