"""Reads SQLite's write-ahead log and tells a torn tail, which is normal, from damage, which is not. Never writes.

SQLite silently ends a WAL at the first frame with a bad checksum, whatever follows: one flipped bit can lose every
later commit. So this module examines the frames behind the last one that SQLite accepts.

The format (https://www.sqlite.org/fileformat2.html#walformat): a header of 32 bytes, then frames of 24 bytes and a
page. Each frame holds a checksum of its page that continues the checksum of the frame before. The last frame of a
transaction, its commit frame, holds the size of the database. A checkpoint lets the WAL start again from the front
with new salts, so frames with other salts are leftovers and mean nothing.

The test: a transaction is written only after the one before it was synced. So a commit frame that is directly followed
by a frame computed as its continuation proves that its transaction was durable. If SQLite does not accept that
transaction, it is damaged. A torn transaction can have any of its frames on the disk, even its commit frame, but
nothing that continues it. Frames left behind by an earlier failed write continue other frames than those now in front
of them, so they are not mistaken for evidence.

This cannot see damage in the very last transaction; the mark (`journal/identity.py`) does.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Callable

from msgspec import Struct

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
_MAGIC_LITTLE = 0x377F0682
_MAGIC_BIG = 0x377F0683
_VERSION = 3007000
_MASK = 0xFFFFFFFF
_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_PAGE_BYTES_MIN = 512
_PAGE_BYTES_MAX = 65536
_CHUNK_BYTES = 1 << 20

Checksum = tuple[int, int]
Read = Callable[[int, int], bytes]
"""Reads (offset, size) from the WAL; fewer bytes at its end."""


class FrameHeader(Struct, frozen=True):
    """One frame's own account of itself."""

    page: int
    database_pages: int
    salts: tuple[int, int]
    checksum: Checksum


class Wal:
    """A WAL as it lies on the disk. Frames count from 1."""

    def __init__(self, read: Read, size_bytes: int) -> None:
        self._read = read
        self.size_bytes = size_bytes
        self.page_bytes = 0
        self._big_endian = False
        self._salts = (0, 0)
        self._checksum = (0, 0)
        self.has_header = self._read_header()

    def _read_header(self) -> bool:
        data = self._read(0, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            return False
        magic, version, page_bytes, _, salt_1, salt_2, check_1, check_2 = _HEADER.unpack(data)
        big_endian = magic == _MAGIC_BIG
        plausible = (
            magic in (_MAGIC_LITTLE, _MAGIC_BIG)
            and version == _VERSION
            and _PAGE_BYTES_MIN <= page_bytes <= _PAGE_BYTES_MAX
            and page_bytes & (page_bytes - 1) == 0
            and checksum((0, 0), data[:24], big_endian) == (check_1, check_2)
        )
        if plausible:
            self.page_bytes, self._big_endian = page_bytes, big_endian
            self._salts, self._checksum = (salt_1, salt_2), (check_1, check_2)
        return plausible

    @property
    def frames(self) -> int:
        """How many whole frames the file has room for, good or not."""
        return max(0, self.size_bytes - HEADER_BYTES) // self.frame_bytes if self.has_header else 0

    @property
    def frame_bytes(self) -> int:
        return FRAME_HEADER_BYTES + self.page_bytes

    def header(self, frame: int) -> FrameHeader:
        """The header of a frame, unchecked."""
        data = self._read(self._offset(frame), FRAME_HEADER_BYTES)
        page, database_pages, salt_1, salt_2, check_1, check_2 = _FRAME.unpack(data)
        return FrameHeader(page, database_pages, (salt_1, salt_2), (check_1, check_2))

    def valid_frames(self) -> int:
        """The last commit frame up to which everything checks: where SQLite ends this WAL. Slow, for tests and
        tools."""
        running, last_commit = self._checksum, 0
        for frame in range(1, self.frames + 1):
            header = self.header(frame)
            running = self._continue(running, frame)
            if header.salts != self._salts or header.checksum != running or header.page == 0:
                break
            if header.database_pages:
                last_commit = frame
        return last_commit

    def pages(self, valid_frames: int) -> set[int]:
        """The pages that the first frames hold."""
        return {self.header(frame).page for frame in range(1, valid_frames + 1)}

    def find_damage(self, valid_frames: int) -> str | None:
        """Says what is wrong with a WAL of which SQLite accepts so many frames, or None for an ordinary, torn or no
        tail."""
        if not self.has_header:
            # The header is synced before the first frame is written, and one sector holds it: it cannot be torn.
            if self._is_blank_behind_header():
                return None
            return "the header of its write-ahead log is damaged, and commits lie behind it"
        for frame in range(valid_frames + 2, self.frames + 1):
            if self.header(frame).salts == self._salts and self._was_commit(frame - 1) and self._follows(frame):
                return f"its write-ahead log is damaged behind frame {valid_frames}, and commits lie behind that"
        return None

    def _is_blank_behind_header(self) -> bool:
        return not any(
            any(self._read(offset, _CHUNK_BYTES)) for offset in range(HEADER_BYTES, self.size_bytes, _CHUNK_BYTES)
        )

    def _follows(self, frame: int) -> bool:
        """Whether this frame was computed as the continuation of the one before, by that one's own or its true
        checksum."""
        wanted = self.header(frame).checksum
        if self._continue(self._stored(frame - 1), frame) == wanted:
            return True
        # The checksum of the one before may itself be what was damaged.
        return self._continue(self._continue(self._stored(frame - 2), frame - 1), frame) == wanted

    def _was_commit(self, frame: int) -> bool:
        """Whether this is a commit frame, or was one before its size field was damaged.

        The checksum can be run backwards: from the frame's own checksum and page follow the two words that must have
        stood before it. If the page number comes out right, then the size that comes out is the one that was written.
        """
        header = self.header(frame)
        if header.database_pages:
            return True
        one, two = rewind(header.checksum, self._page(frame), self._big_endian)
        before_one, before_two = self._stored(frame - 1)
        words = (one - before_one - before_two) & _MASK, (two - before_two - one) & _MASK
        page, database_pages = words if self._big_endian else (_swap(words[0]), _swap(words[1]))
        return page == header.page and database_pages != 0

    def _stored(self, frame: int) -> Checksum:
        return self.header(frame).checksum if frame else self._checksum

    def _continue(self, seed: Checksum, frame: int) -> Checksum:
        data = self._read(self._offset(frame), self.frame_bytes)
        return checksum(seed, data[:8] + data[FRAME_HEADER_BYTES:], self._big_endian)

    def _page(self, frame: int) -> bytes:
        return self._read(self._offset(frame) + FRAME_HEADER_BYTES, self.page_bytes)

    def _offset(self, frame: int) -> int:
        return HEADER_BYTES + (frame - 1) * self.frame_bytes


def checksum(seed: Checksum, data: bytes, big_endian: bool) -> Checksum:
    """SQLite's WAL checksum, continued from a seed. The data is a multiple of 8 bytes."""
    one, two = seed
    words = iter(_words(data, big_endian))
    for first, second in zip(words, words, strict=True):
        one = (one + first + two) & _MASK
        two = (two + second + one) & _MASK
    return one, two


def rewind(end: Checksum, data: bytes, big_endian: bool) -> Checksum:
    """The seed from which the data leads to this checksum."""
    one, two = end
    words = iter(reversed(_words(data, big_endian)))
    for second, first in zip(words, words, strict=True):
        two = (two - second - one) & _MASK
        one = (one - first - two) & _MASK
    return one, two


def _words(data: bytes, big_endian: bool) -> array.array[int]:
    words = array.array("I", data)
    if big_endian != (sys.byteorder == "big"):
        words.byteswap()
    return words


def _swap(word: int) -> int:
    return int.from_bytes(word.to_bytes(4, "big"), "little")
