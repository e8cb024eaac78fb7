"""The folder where compiled code is kept: whole files or none, and only what is ours is believed. No numba.

To load compiled code is to run it. So a folder or file that belongs to somebody else, or that others can write, is
refused; a file that is cut or changed counts as absent; and a folder that cannot be written is used as it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from blake3 import blake3

from stigmergy.core.errors import ConfigError

CACHE_VARIABLE = "STIGMERGY_CACHE"
FOLDERS_PER_KIND_MAX = 64
"""Each version of a class has a folder. When there are more of one kind, those go that were used longest ago."""
FILE_BYTES_MAX = 64 * 1024 * 1024
"""A longer file is none of ours."""
_MAGIC = b"STGMCODE"
_DIGEST_BYTES = 32
_HEAD_BYTES = len(_MAGIC) + _DIGEST_BYTES
_CONTEXT = "stigmergy 2026 compiled code"
_WRITABLE_BY_OTHERS = 0o022


def cache_folder() -> Path:
    """Where compiled code is kept unless somebody says otherwise."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "stigmergy" / "compiled"


class Store:
    """The folder of one program."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if the folder, or the one it lies in, is not ours."""
        self.folder = folder
        self.trouble: str | None = None
        """Why nothing can be kept, once that is known."""
        for one in (folder.parent, folder):
            try:
                found = os.stat(one)
            except OSError:
                continue
            _check_ours(one, found)

    def read(self, name: str) -> bytes | None:
        """What was written under this name; None if it is not there or not whole. Raises ConfigError if not ours."""
        path = self.folder / name
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(file, "rb") as opened:
                _check_ours(path, os.fstat(file))
                data = opened.read(FILE_BYTES_MAX)
        except OSError:
            return None
        body = data[_HEAD_BYTES:]
        return body if data[:_HEAD_BYTES] == _head(body) else None

    def note_use(self) -> None:
        """Remembers that this one is in use, as far as the folder can be written."""
        with contextlib.suppress(OSError):
            os.utime(self.folder)

    def drop_others(self, kind: str) -> None:
        """Removes folders of this kind that nobody has used for long, if there are too many. Who loaded from one needs
        it no more; who would have to compiles again."""
        with contextlib.suppress(OSError):
            named = re.compile(rf"{re.escape(kind)}-[0-9a-f]+")
            found = [
                path for path in self.folder.parent.iterdir() if named.fullmatch(path.name) and path != self.folder
            ]
            found.sort(key=lambda path: (path.stat().st_mtime, path.name))
            for path in found[: max(len(found) + 1 - FOLDERS_PER_KIND_MAX, 0)]:
                shutil.rmtree(path, ignore_errors=True)

    def write(self, name: str, body: bytes) -> None:
        """Keeps this under a name, or notes the trouble."""
        self._put(name, _head(body) + body)

    def write_for_people(self, name: str, text: str) -> None:
        """The same for a text that is never read back."""
        self._put(name, text.encode())

    def _put(self, name: str, data: bytes) -> None:
        """In place at once or not at all, so that two who do it at the same time do each other no harm."""
        if self.trouble is not None:
            return
        try:
            self.folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o755, exist_ok=True)
            file, temporary = tempfile.mkstemp(dir=self.folder, prefix=f".{name}.")
            try:
                with os.fdopen(file, "wb") as opened:
                    opened.write(data)
                os.chmod(temporary, 0o644)
                os.replace(temporary, self.folder / name)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            self.trouble = error.strerror or str(error)


def _head(body: bytes) -> bytes:
    return _MAGIC + blake3(body, derive_key_context=_CONTEXT).digest()


def _check_ours(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path} belongs to another user (number {found.st_uid}), and to load compiled code is to run it; "
            f"make it yours, remove it, or set {CACHE_VARIABLE} to a folder of your own"
        )
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise ConfigError(
            f"{path} can be written by others, and to load compiled code is to run it; chmod go-w {path}, remove it, "
            f"or set {CACHE_VARIABLE} to a folder that only you can write"
        )
