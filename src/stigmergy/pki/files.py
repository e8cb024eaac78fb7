"""Reads and writes small files durably: a name appears, or gets other content, only when that is on the disk."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from stigmergy.base.errors import ConfigError, TrustError

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
PRIVATE: Final = 0o600
PUBLIC: Final = 0o644


def write_file(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Writes or replaces a file. Raises ConfigError."""
    try:
        descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            os.replace(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!a}: {error.strerror or error}; fix the cause, try again") from None


def read_file(path: Path, what: str, *, secret: bool = False) -> bytes:
    """Reads a file. Raises ConfigError if it cannot be read, TrustError for a secret that others may read."""
    try:
        # Not blocking, because opening a pipe would otherwise wait for a writer for ever.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
                raise ConfigError(f"{str(path)!a} is no file of ours; give {what}")
            if secret and (objection := open_to_others(path, status.st_mode)):
                raise TrustError(objection)
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!a}: {error.strerror or error}; give {what}") from None


def open_to_others(path: Path, mode: int) -> str:
    """Why a private file must not be used; empty if only its owner may read it."""
    if not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return ""
    return (
        f"{str(path)!a} is open to others (mode {stat.S_IMODE(mode):04o}); run: chmod 600 {str(path)!a} - and make a "
        "new key if others may have read it"
    )


def make_folder(path: Path) -> None:
    """Makes a folder that only its owner may enter; one that is there stays as it is. Raises ConfigError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {str(path)!a}: {error.strerror or error}") from None
