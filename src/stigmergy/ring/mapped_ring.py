"""A ring on the file system: made, claimed by one of each side, mapped into memory, removed.

Beside the ring `name` are two named pipes, the bells: the consumer reads `name.ready`, the producer `name.room`. Each
locks its own pipe (flock), so that a second one of its side is refused. The lock ends with the process, however that
ends; children that were forked without exec have it too, and keep it. All files have mode 0600; files of other users
are not touched.

The memory is reserved in advance (fallocate): a device without space fails when the ring is made, and not by killing a
process in the middle of a message (SIGBUS). Truncating the file while it is in use still kills both processes.

A ring remembers the boot of the machine that it was made in. After another boot it starts empty: nobody knows which of
its pages a power loss has kept. On /dev/shm nothing is left then anyway.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stigmergy.base.errors import ConfigError, RingDamaged, RingError, RingForeign, RingLocked, StigmergyError
from stigmergy.ring.bell import PipeBell
from stigmergy.ring.layout import BOOT_BYTES, HEADER_BYTES, Memory, check_capacity, check_header, new_header
from stigmergy.ring.port import CAPACITY_BYTES, CAPACITY_BYTES_MAX

GATE_S_MAX = 5.0
"""So long somebody else may take to open or make the same ring."""
_GATE_PAUSE_S = 0.005
_CHUNK_BYTES = 1 << 20
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class MappedRing:
    """A ring, mapped, with its bells, claimed for one side. `leave` gives all of it back."""

    def __init__(self, path: str, capacity_bytes: int | None, claims: str) -> None:
        """Claims the side that hears the bell `claims`: "ready" the consumer, "room" the producer."""
        if capacity_bytes is not None:
            check_capacity(capacity_bytes)
        self._path = path
        self._files = contextlib.ExitStack()
        with _told(path), contextlib.ExitStack() as opening, _gate(path) as file:
            opening.callback(self._files.close)
            self.ready = self._bell("ready", claims)
            self.room = self._bell("room", claims)
            capacity = _make_if_new(file, path, capacity_bytes)
            self._identity = _identity(os.fstat(file))
            self._map = mmap.mmap(file, HEADER_BYTES + capacity)
            self.memory = Memory(memoryview(self._map), path)
            opening.pop_all()

    def leave(self) -> None:
        """Lets go of the claim, and of the memory as soon as nobody reads messages in it any more."""
        self._files.close()
        self.memory.body.release()
        self.memory.words.release()
        with contextlib.suppress(BufferError):
            self._map.close()

    def check_in_place(self) -> None:
        """Raises if the path is no longer this ring: then the other side, if there is one, has another."""
        try:
            found = _identity(os.stat(self._path))
        except OSError:
            found = None
        if found != self._identity:
            raise RingError(
                f"{self._path}: removed or replaced while it was in use, so nobody reads from this one; open it again, "
                "and send again what is not durable"
            )

    def _bell(self, which: str, claims: str) -> PipeBell:
        file = _pipe(f"{self._path}.{which}")
        try:
            if which == claims:
                _claim(file, self._path, claims)
        except BaseException:
            os.close(file)
            raise
        bell = PipeBell(file)
        self._files.callback(bell.close)
        return bell


def remove_ring(path: str | Path) -> None:
    """Removes a ring, with what is in it; nothing happens if there is none. RingLocked while somebody uses it."""
    path = str(path)
    if not os.path.lexists(path):
        return
    with _told(path), contextlib.ExitStack() as files, _gate(path):
        for which in ("ready", "room"):
            file = _pipe(f"{path}.{which}")
            files.callback(os.close, file)
            _claim(file, path, which)
        for suffix in (".ready", ".room", ""):
            os.unlink(path + suffix)


@contextlib.contextmanager
def _gate(path: str) -> Iterator[int]:
    """The ring's file, made if it is missing, while nobody else opens, makes or removes it."""
    deadline_s = time.monotonic() + GATE_S_MAX
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            _check_ours(os.fstat(file), path, stat.S_ISREG)
            _lock(file, path, deadline_s)
            if _is_at(file, path):
                try:
                    yield file
                finally:
                    # Closing is not enough: a mapping keeps the file open, and with it the lock.
                    fcntl.flock(file, fcntl.LOCK_UN)
                return
        finally:
            os.close(file)


def _lock(file: int, path: str, deadline_s: float) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise RingLocked(f"{path}: somebody has been opening it for {GATE_S_MAX:g} s; see who hangs") from None
        time.sleep(_GATE_PAUSE_S)


def _is_at(file: int, path: str) -> bool:
    """Whether the file still has this name; it may have been removed before we had the lock."""
    try:
        return _identity(os.fstat(file)) == _identity(os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _make_if_new(file: int, path: str, capacity_bytes: int | None) -> int:
    """Makes a ring of a file that is new, or from before the machine was started; the capacity of what is there."""
    size_bytes, boot = os.fstat(file).st_size, _boot()
    start = os.pread(file, HEADER_BYTES, 0)
    # Before the header is there, which comes in one write, a file has nothing but zeros.
    if not any(start) and _is_empty(file, size_bytes):
        return _make(file, capacity_bytes or CAPACITY_BYTES, boot)
    made_in = check_header(start, size_bytes, path)
    capacity = size_bytes - HEADER_BYTES
    if capacity_bytes is not None and capacity_bytes != capacity:
        raise RingForeign(
            f"{path}: has {capacity} bytes, not {capacity_bytes}; ask for as many, or remove the ring when it is empty"
        )
    if made_in != boot:
        return _make(file, capacity, boot)
    return capacity


def _make(file: int, capacity: int, boot: bytes) -> int:
    check_capacity(capacity)
    os.ftruncate(file, 0)
    os.posix_fallocate(file, 0, HEADER_BYTES + capacity)
    salt = int.from_bytes(os.urandom(8), "little")
    os.pwrite(file, new_header(capacity, salt, boot), 0)
    return capacity


def _is_empty(file: int, size_bytes: int) -> bool:
    if size_bytes > HEADER_BYTES + CAPACITY_BYTES_MAX:
        return False
    return not any(any(os.pread(file, _CHUNK_BYTES, offset)) for offset in range(0, size_bytes, _CHUNK_BYTES))


def _pipe(path: str) -> int:
    """A named pipe, made if it is missing, open at both ends."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _check_ours(os.fstat(file), path, stat.S_ISFIFO)
    except BaseException:
        os.close(file)
        raise
    return file


def _claim(file: int, path: str, which: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        side = "consumer" if which == "ready" else "producer"
        raise RingLocked(
            f"{path}: has a {side} already; stop that one first, or give this one a ring of its own"
        ) from None


def _check_ours(found: os.stat_result, path: str, is_wanted: Callable[[int], bool]) -> None:
    if not is_wanted(found.st_mode):
        raise RingForeign(f"{path}: is there and is not part of a ring; name another file, or remove this one")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise RingForeign(
            f"{path}: can be changed or read by others; both sides of a ring run as one user, and its files have mode "
            "0600: remove it, or name another"
        )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return (found.st_dev, found.st_ino)


def _boot() -> bytes:
    """Which start of the machine this is; zeros where it does not tell."""
    try:
        text = _BOOT.read_text(encoding="ascii").strip().replace("-", "")
        return bytes.fromhex(text)[:BOOT_BYTES].ljust(BOOT_BYTES, b"\0")
    except (OSError, ValueError):
        return bytes(BOOT_BYTES)


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Says in our words what the operating system will not do."""
    try:
        yield
    except StigmergyError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise ConfigError(f"{path}: no room for a ring ({reason}); make room, or ask for a smaller one") from None
        raise ConfigError(f"{path}: no ring can be opened here ({reason}); name a place in a folder of yours") from None
    except ValueError as error:
        raise RingDamaged(f"{path}: cannot be mapped ({error}); remove it") from None
