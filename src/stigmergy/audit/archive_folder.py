"""An archive in a folder, and the file of holds beside a journal. The archive works in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import glob
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from stigmergy.base.errors import Bug, JournalCorrupt, JournalError, JournalFull

# Writes files completely or not at all: under another name, synced, then renamed. Raises the journal's errors.

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FAILED_WRITES = (*NO_ROOM, errno.EIO, errno.EROFS)
"""What a write says of the device, by whatever way somebody writes into the file."""


class NewFile:
    """Writes a file whole or not at all: under another name first, synced, then renamed. A context manager.

    Only a file is ever replaced, or what a link leads to: a rename would put a file in the place of a device or a pipe.
    A `private` one is for its owner only, and a link in its place is refused.
    """

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self._path = path
        self._private = private
        self._target = path if private else Path(os.path.realpath(path))
        self._fresh = self._target.with_name(f"{self._target.name}.new")
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        with translating(self._path):
            if not _may_be_replaced(self._path):
                raise JournalError(f"{self._path}: is there and is no file, so it was left alone; name a file")
            if self._private and self._path.is_symlink():
                raise JournalError(f"{self._path}: is a symbolic link, which is not followed; remove it")
            # What lies there under the other name was left by a process that was killed, or is a link of somebody.
            self._fresh.unlink(missing_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = open(os.open(self._fresh, flags, 0o600 if self._private else 0o666), "w+b")
        return self

    def write(self, data: bytes) -> None:
        """Adds bytes."""
        with translating(self._path):
            self.file.write(data)

    @property
    def file(self) -> BinaryIO:
        """The file itself, for who writes in another way."""
        if self._file is None:
            raise Bug("a file that is not open; use it as a context manager")
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, OSError) and error.errno in FAILED_WRITES:
                with translating(self._path):
                    raise error
            if kind is None:
                with translating(self._path):
                    self.file.flush()
                    os.fsync(self.file.fileno())
                    self.file.close()
                    os.replace(self._fresh, self._target)
                    sync_folder(self._target.parent)
        finally:
            with contextlib.suppress(OSError):
                self.file.close()
            self._fresh.unlink(missing_ok=True)


def _may_be_replaced(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextlib.contextmanager
def translating(path: Path) -> Iterator[None]:
    """Whatever the system says becomes an error of ours that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise JournalFull(f"{path}: no room; free some, or write elsewhere") from error
        raise JournalError(f"{path}: cannot be written: {error.strerror}; write elsewhere") from error


HOLDS_BYTES_MAX = 1024 * 1024


class FolderArchive:
    """An archive in a folder, made if it is missing. The work is done in a thread: a slow device holds up nobody."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def keep(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(self._keep, name, data)

    async def close(self) -> None:
        """A folder has no connection."""

    def _keep(self, name: str, data: bytes) -> None:
        path = self._folder / name
        with translating(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            # What a process that was killed has left of a segment of the same shard; nobody else writes these.
            for leftover in self._folder.glob(f"{glob.escape(name.rsplit('-', 2)[0])}-*.new"):
                leftover.unlink(missing_ok=True)
        with NewFile(path) as file:
            file.write(data)
        with translating(path):
            if path.read_bytes() != data:
                raise JournalCorrupt(f"{path}: what was written does not read back; is the device failing?")


class HoldsFile:
    """The holds on a journal, in a small file beside it: `fleet.db-holds`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> bytes:
        """What was saved last; nothing if nobody ever did."""
        with translating(self.path):
            try:
                with open(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
                    self._close_to_others(file.fileno())
                    return file.read(HOLDS_BYTES_MAX)
            except FileNotFoundError:
                return b""

    def save(self, data: bytes) -> None:
        """Replaces it, durably, all or nothing."""
        with NewFile(self.path, private=True) as file:
            file.write(data)

    def _close_to_others(self, file: int) -> None:
        with contextlib.suppress(OSError):  # of another user
            mode = stat.S_IMODE(os.fstat(file).st_mode)
            if mode & 0o077:
                os.fchmod(file, mode & ~0o077)
