"""Writes files whole or not at all: under another name first, synced, then renamed. Errors are those of the journal."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from stigmergy.core.errors import Bug, JournalError, JournalFull

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
