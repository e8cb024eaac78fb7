"""Memory that grows without being copied: the rows of a table. No numba.

Rows are in anonymous memory of the operating system, which moves pages instead of bytes to grow and allocates none that
nobody has touched: a table of a million agents grows in well under a millisecond. Large areas use huge pages, which are
faster to allocate and to look up.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
ROWS_MIN = 1024
LARGE_BYTES = 4 * 1024 * 1024
"""From this size on large pages are asked for."""


def fresh_bytes(size: int) -> Bytes:
    """New memory, all zero."""
    return np.frombuffer(_fresh(size), np.uint8)[:size]


class Rows:
    """Bytes of rows of one width. `data` is valid until `grow` is called: hold on to nothing made of it."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.room = ROWS_MIN
        """How many rows there is room for."""
        self._memory = _fresh(self.room * width)
        self.data: Bytes = np.frombuffer(self._memory, np.uint8)

    def grow(self, count: int) -> None:
        """Sees to it that there is room for so many rows; new ones are zero."""
        if count <= self.room:
            return
        self.room = max(count, 2 * self.room)
        size = self.room * self._width
        del self.data
        try:
            self._memory.resize(max(size, mmap.PAGESIZE))
            _ask_for_large_pages(self._memory, size)
        except (BufferError, OSError, SystemError, ValueError):
            # Somebody points into it, or this system cannot move memory: then it is copied.
            before, self._memory = self._memory, _fresh(size)
            self._memory[: len(before)] = before[:]
        self.data = np.frombuffer(self._memory, np.uint8)

    def fill(self, first: int, end: int, row: bytes) -> None:
        """Makes these rows equal to this one."""
        part: Any = self.data[first * self._width : end * self._width].reshape(end - first, self._width)
        part[:] = np.frombuffer(row, np.uint8)

    def one(self, number: int) -> bytes:
        """The bytes of a row."""
        return self.data[number * self._width : (number + 1) * self._width].tobytes()


def _fresh(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _ask_for_large_pages(memory, size)
    return memory


def _ask_for_large_pages(memory: mmap.mmap, size: int) -> None:
    if size >= LARGE_BYTES:
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
