"""SQLite's view of a SimDisk: a VFS under which the real journal runs. Translates errors, keeps SQLite's locks.

apsw raises what a callback raised, if SQLite reports the failure; the code that SQLite sees comes from the exception.
So every error of the disk becomes the exception with the code that the real VFS would give.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import apsw

if TYPE_CHECKING:
    from stigmergy.sim.disk import SimDisk, SimFile

_numbers = itertools.count(1)
_SECTOR_BYTES = 4096
"""What the VFS for Linux says, whatever the device's sectors are."""


class SimVfs(apsw.VFS):
    """One per disk, under a name of its own."""

    def __init__(self, disk: SimDisk) -> None:
        self.name = f"stigmergy-sim-{next(_numbers)}"
        self._disk = disk
        self._temporary = itertools.count(1)
        self.locks: dict[str, dict[int, int]] = {}
        # SQLite's clock and randomness come from the default VFS; files come from here.
        super().__init__(self.name, "")

    def release_locks(self) -> None:
        """Nobody who had a lock lives any more."""
        self.locks.clear()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> SimVfsFile:  # type: ignore[override]
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None:
            path = f"temporary-{next(self._temporary)}"
        with _translated(apsw.SQLITE_CANTOPEN):
            file = self._disk.open(path, create=bool(flags[0] & apsw.SQLITE_OPEN_CREATE))
        flags[1] = flags[0]
        return SimVfsFile(self, file, delete_on_close=bool(flags[0] & apsw.SQLITE_OPEN_DELETEONCLOSE))

    def xAccess(self, pathname: str, flags: int) -> bool:
        with _translated(apsw.SQLITE_IOERR_ACCESS):
            size = self._disk.size(pathname)
        # As on Linux: an empty file counts as none, which matters for leftover journals.
        return bool(size) if flags == apsw.SQLITE_ACCESS_EXISTS else size is not None

    def xFullPathname(self, name: str) -> str:
        return name

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with _translated(apsw.SQLITE_IOERR_DELETE):
            if self._disk.size(filename) is None:
                raise _sqlite_error(apsw.IOError, apsw.SQLITE_IOERR_DELETE_NOENT, "no such file")
            self._disk.remove(filename, sync=syncdir)


class SimVfsFile:
    """An open file as SQLite asks for it."""

    def __init__(self, vfs: SimVfs, file: SimFile, *, delete_on_close: bool) -> None:
        self._vfs = vfs
        self._file = file
        self._delete_on_close = delete_on_close

    def xRead(self, amount: int, offset: int) -> bytes:
        with _translated(apsw.SQLITE_IOERR_READ):
            return self._file.read_at(offset, amount)

    def xWrite(self, data: bytes, offset: int) -> None:
        with _translated(apsw.SQLITE_IOERR_WRITE):
            self._file.write_at(offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        with _translated(apsw.SQLITE_IOERR_TRUNCATE):
            self._file.truncate(newsize)

    def xSync(self, flags: int) -> None:
        with _translated(apsw.SQLITE_IOERR_FSYNC):
            self._file.sync()

    def xFileSize(self) -> int:
        return self._file.size()

    def xClose(self) -> None:
        self.xUnlock(apsw.SQLITE_LOCK_NONE)
        if self._delete_on_close:
            with contextlib.suppress(OSError):
                self._vfs._disk.remove(self._file.path)

    def xLock(self, level: int) -> None:
        holders = self._vfs.locks.setdefault(self._file.path, {})
        others = max((held for holder, held in holders.items() if holder != id(self)), default=apsw.SQLITE_LOCK_NONE)
        excluded = others >= apsw.SQLITE_LOCK_PENDING or (
            level >= apsw.SQLITE_LOCK_RESERVED and others >= apsw.SQLITE_LOCK_RESERVED
        )
        if excluded or (level == apsw.SQLITE_LOCK_EXCLUSIVE and others > apsw.SQLITE_LOCK_NONE):
            raise apsw.BusyError("the simulated file is locked")
        holders[id(self)] = max(level, holders.get(id(self), apsw.SQLITE_LOCK_NONE))

    def xUnlock(self, level: int) -> None:
        holders = self._vfs.locks.get(self._file.path, {})
        if level == apsw.SQLITE_LOCK_NONE:
            holders.pop(id(self), None)
        elif id(self) in holders:
            holders[id(self)] = min(level, holders[id(self)])

    def xCheckReservedLock(self) -> bool:
        return any(held >= apsw.SQLITE_LOCK_RESERVED for held in self._vfs.locks.get(self._file.path, {}).values())

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return _SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


@contextlib.contextmanager
def _translated(code: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _sqlite_error(apsw.FullError, apsw.SQLITE_FULL, str(error)) from None
        kind = apsw.CantOpenError if code == apsw.SQLITE_CANTOPEN else apsw.IOError
        raise _sqlite_error(kind, code, str(error)) from None


def _sqlite_error(kind: type[apsw.Error], code: int, text: str) -> apsw.Error:
    error = kind(text)
    vars(error).update(result=code & 0xFF, extendedresult=code)
    return error
