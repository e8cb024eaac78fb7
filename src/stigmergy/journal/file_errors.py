"""Translates errors of the operating system into the journal's own, for journals on files. None passes unchanged."""

from __future__ import annotations

import errno

from stigmergy.base.errors import (
    ConfigError,
    JournalCorrupt,
    JournalError,
    JournalFull,
    JournalLocked,
    JournalUnknown,
    JournalUnreadable,
    StigmergyError,
)

RESTORE = "restore the journal from a copy"
_ACCESS = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EROFS,
        errno.EEXIST,
        errno.ELOOP,
        errno.ENAMETOOLONG,
    }
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def opening_error(error: Exception, path: str) -> StigmergyError:
    """Why the journal could not be opened or made."""
    if isinstance(error, StigmergyError):
        return error
    if isinstance(error, BlockingIOError):
        return JournalLocked(f"{path}: another program has the journal open; stop it first, or look at a copy")
    if isinstance(error, OSError) and error.errno in _FULL:
        return JournalFull(f"{path}: no room on the device to open the journal ({error}); make room and start again")
    if isinstance(error, OSError) and error.errno in _ACCESS:
        return ConfigError(f"{path}: {error.strerror}; check that folder and rights are there")
    return JournalUnknown(f"{path}: the device failed while the journal was opened ({error!r}); check it, start again")


def reading_error(error: Exception, path: str) -> JournalError:
    """Why something stored could not be read."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return unreadable_error(error, path)
    return JournalCorrupt(f"{path}: what is stored cannot be read ({error!r}); check the device, {RESTORE}")


def unreadable_error(error: Exception, path: str) -> JournalUnreadable:
    """The device failed, and what is stored may be whole."""
    return JournalUnreadable(f"{path}: the device failed a read ({error!r}); if it stays so, check it, {RESTORE}")


def is_full(error: Exception) -> bool:
    """Whether there was no room."""
    return isinstance(error, OSError) and error.errno in _FULL


def full_error(path: str) -> JournalFull:
    """There was no room, and that was found before anything was kept."""
    return JournalFull(f"{path}: no room on the device, nothing of this was kept; drop old commits or make room")


def unknown_error(error: BaseException, path: str) -> JournalUnknown:
    """A write or a sync failed half way."""
    return JournalUnknown(
        f"{path}: a write failed half way ({error!r}), so nobody knows whether it was kept; "
        "the journal has stopped, open it again to see"
    )
