"""File operations of journals: check, claim, read, write, replace.

Everything here raises only OSError; the caller translates it. The simulated disk has the same methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Awaitable, Callable, Iterable
from queue import SimpleQueue
from typing import Protocol

from stigmergy.base.errors import Bug, JournalUnknown, StigmergyError

_CHUNK_BYTES = 1 << 20
FILE_MODE = 0o600
FOLDER_MODE = 0o700
OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Files of a journal are for their owner only: made so, and made so again where they are found open to others."""


class FileLock(Protocol):
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

    def claim(self, path: str) -> FileLock:
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


class OsFileLock:
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
        # By its name: opening and closing a SQLite database otherwise would release the locks of this process.
        with contextlib.suppress(OSError):
            mode = os.lstat(path).st_mode
            if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and mode & OTHERS:
                os.chmod(path, stat.S_IMODE(mode) & ~OTHERS)

    def claim(self, path: str) -> FileLock:
        return OsFileLock(path)

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


# The reserve: a file beside a journal that only holds space.
#
# Dropping old commits needs space too, and a full device has none. The reserve is released for that and for nothing
# else, and made again as soon as there is space. It is never read: losing it costs only the space.

RESERVE_BYTES = 4 << 20
RESERVE_BYTES_MIN = 1 << 14
SHARE_OF_FREE_MAX = 8
"""On a small device it is at most this part of what is free when it is made."""


class Reserve:
    """The reserve of one journal. Used by its writer alone; raises OSError."""

    def __init__(self, files: Files, journal: str, size_bytes: int) -> None:
        self.path = f"{journal}-reserve"
        self.size_bytes = size_bytes
        """What it is to have. 0: none is made."""
        self._files = files
        self._fitted = False
        """Whether its size was made to fit the device: from then on it is made in that size or not at all."""

    @property
    def held_bytes(self) -> int:
        """The room that it holds now."""
        return self._files.size(self.path) or 0

    def make(self, beside_bytes: int = 0) -> bool:
        """Makes it, if it is missing and there is room for it and for so much more; whether it is there.

        A larger one, of before, is replaced.
        """
        held_bytes = self.held_bytes
        if held_bytes > self.size_bytes:
            self.give_up()
            held_bytes = 0
        if held_bytes or not self.size_bytes:
            self.size_bytes = held_bytes
            return True
        if not self._fitted:
            share_bytes = self._files.free_bytes(self.path) // SHARE_OF_FREE_MAX
            if share_bytes < min(RESERVE_BYTES_MIN, self.size_bytes):
                return False
            self.size_bytes = min(self.size_bytes, share_bytes)
            self._fitted = True
        if self._files.free_bytes(self.path) < self.size_bytes + beside_bytes:
            return False
        try:
            self._files.reserve(self.path, self.size_bytes)
        except OSError:
            self._files.remove(self.path)
            return False
        return True

    def give_up(self) -> bool:
        """Gives its room back to the device; whether there was any."""
        there = self.held_bytes > 0
        self._files.remove(self.path)
        return there


# Watches the files of an open journal: whether each name still leads to the open file.
#
# A file that is removed, renamed or replaced goes on taking writes that nobody can find again. The device and inode
# behind a name reveal that. They are compared after each sync, before the acknowledgement, and about once a second
# while nothing is written (CHECK_EVERY_S in `journal/port.py`).


class FileWatch:
    """The files of one journal, as they were when it opened them."""

    def __init__(self, files: Files, place: str, paths: Iterable[str]) -> None:
        self._files = files
        self._place = place
        self._seen = {path: files.inode(path) for path in paths}

    def exchange(self, old: str | None, new: str) -> None:
        """From now on this file is watched, in place of another one."""
        if old is not None:
            self._seen.pop(old, None)
        self._seen[new] = self._files.inode(new)

    def check(self) -> None:
        """Raises JournalUnknown if a name leads nowhere, or to another file. Raises OSError."""
        for path, seen in self._seen.items():
            found = self._files.inode(path)
            if found is None or found != seen:
                raise gone_error(self._place, path, replaced=found is not None)


def gone_error(place: str, path: str, *, replaced: bool) -> JournalUnknown:
    """A file of the journal is not where it was."""
    what = "another file is in the place of" if replaced else "somebody removed or renamed"
    return JournalUnknown(
        f"{place}: {what} {path} while the journal was open, and nobody would find what is written now; the node "
        "acknowledges nothing more: put the file back, or restore the journal from a copy, and start again"
    )


# Runs the writes of a journal one at a time, in a thread: a stalled disk must not stall the event loop.
#
# Inline, for the simulator, the write runs in the caller's thread; the caller still yields once, so that a second write
# during the first is caught there too. A started write always finishes, even if its caller is cancelled.

Work = Callable[[], None]


class Writer(Protocol):
    """Runs work, one piece at a time, and what is to be done after each piece once its caller has been told."""

    def run(self, work: Work) -> Awaitable[None]:
        """Begins the work; what it returns is done, or raises, as the work does. Bug while other work is under way."""
        ...

    async def close(self, work: Work) -> None:
        """Waits for work under way, then runs this last piece."""
        ...


class InlineWriter:
    """Does the work where it is asked for."""

    def __init__(self, afterwards: Work) -> None:
        self._afterwards = afterwards
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, work: Work) -> None:
        _check_idle(self._idle.is_set())
        self._idle.clear()
        try:
            work()
            await asyncio.sleep(0)
        finally:
            self._idle.set()
            asyncio.get_running_loop().call_soon(self._afterwards)

    async def close(self, work: Work) -> None:
        await self._idle.wait()
        work()


class _Job:
    """Work on its way to the thread and back."""

    __slots__ = ("error", "future", "loop", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.error: BaseException | None = None


class ThreadWriter:
    """Does the work in one thread, in order."""

    def __init__(self, afterwards: Work, name: str) -> None:
        self._afterwards = afterwards
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._busy = False
        # A daemon, because a program that ends without closing its journal must end; nothing acknowledged is at stake.
        threading.Thread(target=self._work_through, name=name, daemon=True).start()

    def run(self, work: Work) -> asyncio.Future[None]:
        _check_idle(not self._busy)
        self._busy = True
        job = _Job(work)
        self._jobs.put(job)
        return job.future

    async def close(self, work: Work) -> None:
        job = _Job(work)
        self._jobs.put(job)
        self._jobs.put(None)
        await job.future

    def _work_through(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.work()
            except BaseException as error:
                job.error = error
            # The loop is closed when the program gave up waiting: then there is nobody left to tell.
            with contextlib.suppress(RuntimeError):
                job.loop.call_soon_threadsafe(self._settle, job)
            del job
            self._afterwards()

    def _settle(self, job: _Job) -> None:
        """Back on the loop. Only here does the next write become possible, so that the loop sees writes in order."""
        self._busy = False
        if job.future.cancelled():
            return
        if job.error is None:
            job.future.set_result(None)
        else:
            job.future.set_exception(job.error)


def refused_write(error: StigmergyError) -> asyncio.Future[None]:
    """A write that was never started: its caller gets the error, as for any other."""
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refused.set_exception(error)
    return refused


def _check_idle(idle: bool) -> None:
    if not idle:
        raise Bug("a write is under way; wait for it before the next one")
