"""What journals do to files: look, claim, read, write, replace.

Everything here raises OSError and nothing else; the caller translates. The simulated disk has the same methods.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import Protocol

_CHUNK_BYTES = 1 << 20
FILE_MODE = 0o600
FOLDER_MODE = 0o700
OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Files of a journal are for their owner only: made so, and made so again where they are found open to others."""


class Claim(Protocol):
    """A small file that nobody else can claim until it is closed, or its process ends."""

    def read(self) -> bytes:
        """All of it."""
        ...

    def write(self, data: bytes) -> None:
        """Puts these bytes at the start. They reach the disk some day: survives the process, not the power."""
        ...

    def close(self) -> None:
        """Gives the claim up; the file stays. Closing twice does nothing."""
        ...


class Files(Protocol):
    """The file system as this adapter needs it."""

    def size(self, path: str) -> int | None:
        """How many bytes the file has, or None if there is no such file."""
        ...

    def inode(self, path: str) -> tuple[int, int] | None:
        """The device and the number of the file that has this name; None if none has."""
        ...

    def read(self, path: str, offset: int, size: int) -> bytes:
        """At most so many bytes; fewer at the end of the file."""
        ...

    def rewrite(self, path: str, size: int) -> None:
        """Writes the first bytes of the file over themselves and syncs: what was read is then also on the disk."""
        ...

    def make(self, path: str) -> None:
        """Makes an empty file that only its owner may read and write."""
        ...

    def close_to_others(self, path: str) -> None:
        """Takes the rights away that group and others have to a file or folder of ours; a link is left alone."""
        ...

    def claim(self, path: str) -> Claim:
        """Claims the file, made if it is missing. Raises BlockingIOError if somebody has it."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Syncs the source and gives it the target's name, all or nothing, durably."""
        ...

    def remove(self, path: str) -> None:
        """Removes the file; nothing happens if there is none."""
        ...

    def reserve(self, path: str, size: int) -> None:
        """Makes a file of so many bytes, with room for all of it that nobody else can take."""
        ...

    def sync_folder(self, path: str) -> None:
        """Makes durable which names the folder of this file has."""
        ...

    def free_bytes(self, path: str) -> int:
        """How much room the device of this file has left for us."""
        ...


class OsClaim:
    """A claim by flock: it ends with the process, however that ends, and holds against this process too."""

    def __init__(self, path: str) -> None:
        self._file = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise

    def read(self) -> bytes:
        return os.pread(self._file, _CHUNK_BYTES, 0)

    def write(self, data: bytes) -> None:
        os.pwrite(self._file, data, 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class OsFiles:
    """The operating system's files."""

    def size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def inode(self, path: str) -> tuple[int, int] | None:
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (found.st_dev, found.st_ino) if found.st_nlink else None

    def read(self, path: str, offset: int, size: int) -> bytes:
        file = open_unlinked(path, os.O_RDONLY)
        try:
            return read_exactly(file, offset, size)
        finally:
            os.close(file)

    def rewrite(self, path: str, size: int) -> None:
        file = open_unlinked(path, os.O_RDWR)
        try:
            for offset in range(0, size, _CHUNK_BYTES):
                write_exactly(file, offset, read_exactly(file, offset, min(_CHUNK_BYTES, size - offset)))
            os.fsync(file)
        finally:
            os.close(file)

    def make(self, path: str) -> None:
        os.close(open_own(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    def close_to_others(self, path: str) -> None:
        # By its name: whoever opens a database of SQLite and closes it takes the locks of this process away.
        with contextlib.suppress(OSError):
            mode = os.lstat(path).st_mode
            if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and mode & OTHERS:
                os.chmod(path, stat.S_IMODE(mode) & ~OTHERS)

    def claim(self, path: str) -> Claim:
        return OsClaim(path)

    def replace(self, source: str, target: str) -> None:
        _sync(source, os.O_RDWR)
        os.replace(source, target)
        self.sync_folder(target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def reserve(self, path: str, size: int) -> None:
        file = open_own(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            os.posix_fallocate(file, 0, size)
        finally:
            os.close(file)

    def sync_folder(self, path: str) -> None:
        _sync(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)

    def free_bytes(self, path: str) -> int:
        room = os.statvfs(os.path.dirname(path) or ".")
        return room.f_bavail * room.f_frsize


def open_unlinked(path: str, flags: int) -> int:
    """Opens a file of a journal, never through a link; what it makes is for its owner only."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            text = f"{path} is a symbolic link, which is not followed: remove it, or put the file itself there"
            raise OSError(errno.ELOOP, text) from None
        raise


def open_own(path: str, flags: int) -> int:
    """The same, to write to it: one that is found open to others is closed to them."""
    file = open_unlinked(path, flags)
    with contextlib.suppress(OSError):  # one of another user, which we may use all the same
        mode = os.fstat(file).st_mode
        if mode & OTHERS:
            os.fchmod(file, stat.S_IMODE(mode) & ~OTHERS)
    return file


def _sync(path: str, flags: int) -> None:
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def read_exactly(file: int, offset: int, size: int) -> bytes:
    """The kernel may return less than asked before the end of the file."""
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(file, size, offset)):
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


def write_exactly(file: int, offset: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        offset += written
        view = view[written:]
