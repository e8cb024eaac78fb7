"""Translates errors of SQLite and the operating system into the journal's own. No driver error passes unchanged.

There are three situations, because the same code means different things: while opening, while reading, while writing. A
write that failed for lack of space is rolled back and known; any other failed write is unknown until a restart.
"""

from __future__ import annotations

import apsw

from stigmergy.base.errors import (
    ConfigError,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    JournalForeign,
    JournalFull,
    JournalLocked,
    StigmergyError,
)
from stigmergy.journal import file_errors
from stigmergy.journal.file_errors import RESTORE, full_error, unknown_error, unreadable_error


def opening_error(error: Exception, path: str) -> StigmergyError:
    """Why the journal could not be opened or made."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return JournalLocked(f"{path}: another program has the journal open; stop it first, or look at a copy")
    if isinstance(error, apsw.NotADBError):
        return JournalForeign(f"{path}: not a journal ({error}); name the right file, it was not touched")
    if isinstance(error, apsw.FullError):
        return JournalFull(f"{path}: no room on the device to open the journal ({error}); make room and start again")
    if isinstance(error, apsw.CantOpenError | apsw.PermissionsError | apsw.ReadOnlyError | apsw.AuthError):
        return ConfigError(f"{path}: cannot be opened for writing ({error}); check that folder and rights are there")
    if isinstance(error, apsw.CorruptError):
        return JournalCorrupt(f"{path}: {error}; {RESTORE}")
    return file_errors.opening_error(error, path)


def reading_error(error: Exception, path: str) -> JournalError:
    """Why something stored could not be read."""
    if isinstance(error, apsw.IOError | apsw.BusyError | apsw.LockedError | apsw.NoMemError | apsw.CantOpenError):
        return unreadable_error(error, path)
    return file_errors.reading_error(error, path)


def writing_error(error: Exception, path: str) -> JournalError:
    """What a failed write means for what was to be written."""
    if isinstance(error, apsw.FullError):
        return full_error(path)
    if isinstance(error, apsw.ConstraintError):
        return JournalConflict(f"{path}: the position is taken ({error}); another owner wrote, reload and decide again")
    return unknown_error(error, path)
