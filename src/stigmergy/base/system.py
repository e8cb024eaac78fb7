"""The machine's own clocks, entropy and threads: the Clock, Entropy and Threads ports over the operating system."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import queue
import secrets
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
THREADS_COUNT_MAX = 32


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""The numbers of these options in malloc.h."""


class SystemClock:
    """The Clock port: CLOCK_REALTIME, and for durations CLOCK_BOOTTIME, which goes on while the machine sleeps: leases
    and silences run out meanwhile."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, as this machine believes."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment; for durations only."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SystemEntropy:
    """The Entropy port: the kernel's generator, fit for keys."""

    def token(self, size_bytes: int) -> bytes:
        """So many fresh random bytes."""
        return secrets.token_bytes(size_bytes)


_SERIALS = ("/etc/machine-id", "/sys/firmware/devicetree/base/serial-number", "/sys/class/dmi/id/product_uuid")


def place_of(path: Path) -> bytes:
    """What tells a file or folder from a copy of it: its number on its disk, when that was given, and the machine, by
    what it says of itself. A file that was restored, copied, or is on a cloned card in another machine has another."""
    found = path.stat()
    said = [f"{found.st_ino}.{getattr(found, 'st_birthtime_ns', 0)}".encode()]
    for serial in _SERIALS:
        with contextlib.suppress(OSError):
            said.append(Path(serial).read_bytes()[:64])
    return b"\0".join(said)


class SystemThreads:
    """The Threads port. Threads are made when they are needed, kept, and no reason for a process to live on."""

    def __init__(self, count_max: int = THREADS_COUNT_MAX, name: str = "stigmergy") -> None:
        self._count_max = count_max
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = queue.SimpleQueue()
        self._count = 0
        self._busy = 0

    def run(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Begins a call, or has it wait for a free thread."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._busy += 1
        if self._busy > self._count and self._count < self._count_max:
            self._count += 1
            # The interpreter waits for the threads of an executor when it ends, however long they hang.
            threading.Thread(target=self._work, name=f"{self._name}-{self._count}", daemon=True).start()
        self._calls.put((call, future))
        return future

    def _work(self) -> None:
        while True:
            call, future = self._calls.get()
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits
                future.get_loop().call_soon_threadsafe(self._tell, future, result, error)

    def _tell(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            # What ends programs and loops must not end ours from a sensor's thread.
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))


def written_by_thread(begin: str = "") -> dict[str, int]:
    """Bytes that threads of this process had the kernel write to disks, in whole pages, by the names of those that are
    alive and are called so at the beginning; what all others wrote is under no name. Empty where Linux does not count
    it."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, IndexError, ValueError):
        rest = _written_by("self") if not begin else 0
        for thread in threading.enumerate():
            if thread.name.startswith(begin):
                with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
                    size_bytes = _written_by(f"self/task/{thread.native_id}")
                    found[thread.name] = found.get(thread.name, 0) + size_bytes
                    rest -= size_bytes
        if not begin:
            found[""] = max(0, rest)
    return found


def _written_by(whom: str) -> int:
    with open(f"/proc/{whom}/io", "rb") as file:
        return int(file.read().partition(b"\nwrite_bytes: ")[2].split()[0])


def make_process_ours(*, large_commits: bool = False) -> None:
    """Sets this process up for a node that is all it does. Not for programs that embed one: they have their own needs.

    What is there now is taken out of the garbage collector's rounds, which then come less often: a fleet makes many
    small objects and no cycles. And the journal's thread, which needs the interpreter for moments only, gets it after
    a tenth of a millisecond and not after five, so that the disk works while the next commit is being stepped.

    With `large_commits`, as compiled agents have them, memory of some megabytes is kept when it is freed: to get it
    from the system each time anew, page by page, took a third of the time of a commit.
    """
    if large_commits:
        _keep_freed_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    sys.setswitchinterval(0.0001)


def _keep_freed_memory() -> None:
    """Tells the allocator of the C library; another one than glibc's has no such call, and is left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, size_bytes in ((_MMAP_THRESHOLD, 64 << 20), (_TRIM_THRESHOLD, 256 << 20), (_TOP_PAD, 16 << 20)):
            mallopt(option, size_bytes)
