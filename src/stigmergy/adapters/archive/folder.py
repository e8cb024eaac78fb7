"""An archive in a folder, and the file of holds beside a journal. The work of the archive is done in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import stat
from pathlib import Path

from stigmergy.adapters.archive.newfile import NewFile, translating
from stigmergy.core.errors import JournalCorrupt

HOLDS_BYTES_MAX = 1024 * 1024


class FolderArchive:
    """An archive in a folder, made if it is missing. The work is done in a thread: a slow device holds up nobody."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def keep(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(self._keep, name, data)

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
