"""The layout of a ring: header, cursors, message headers. Works on any memory, never waits, trusts nothing it reads.

    0      magic, format, capacity, salt, boot (2 words), check
    128    written: where the producer is        256   durable: how far the consumer has kept
    384    number of the last message taken      512   the consumer sleeps      640   the producer sleeps
    768    how many producers, how many consumers there were
    4096   the messages

All words have 8 bytes in native order: a ring never leaves its machine. A cursor is a position (bytes since the ring
was made; modulo the capacity it is a place) and the number of the message that ends there. It is written into two slots
in turn, each with a check: a reader that meets one being written, or torn by a kill, has the other. A message has a
header of 16 bytes (number; length and a check) and begins at a multiple of 16. It never wraps: space at the end that is
too short for it is skipped, with a header that says so.

The memory order it relies on. `memoryview.cast("Q")` reads and writes a word, which CPython does with one access of 8
aligned bytes. The bytes of a message and its header are in place before the cursor moves, and the cursor is read before
they are: `fence` is in between. It releases and takes a lock that nobody else has, which in CPython is an atomic
release followed by an atomic acquire: a full barrier on x86 and, by the rules of ARMv8, on ARM. We have tried it on x86
only. The check of a header covers number and length, so a length is believed only if it was meant for this message; the
body is not checked again, since at 300 MB/s and more a checksum would cost more than the transfer.
"""

from __future__ import annotations

import struct
import sys
import threading
import zlib

from stigmergy.base.errors import ConfigError, RingDamaged, RingForeign
from stigmergy.ring.port import CAPACITY_BYTES_MAX, CAPACITY_BYTES_MIN, MESSAGE_BYTES_MAX

HEADER_BYTES = 4096
FORMAT = 1
MAGIC = int.from_bytes(b"stg-ring", sys.byteorder)
ALIGNMENT = 16
MESSAGE_HEADER_BYTES = 16
BOOT_BYTES = 16

_WORD_BYTES = 8
_LINE = 128 // _WORD_BYTES
"""Two cache lines: some processors fetch them in pairs."""
WRITTEN, DURABLE, TAKEN, CONSUMER_SLEEPS, PRODUCER_SLEEPS, INCARNATIONS = (_LINE * line for line in range(1, 7))
_SLOT = 4
_LOOKS_MAX = 1000
"""A slot is torn for as long as three stores take. Who finds both torn so often looks at damage."""
_FIXED = struct.Struct("=QQQQ16s")
_CHECK_WORD = _FIXED.size // _WORD_BYTES
_SKIP = 0xFFFFFFFF
"""The length of what is skipped at the end."""
_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
START_AGAIN = "stop both sides and remove the ring: the producer sends again what is not durable"

Cursor = tuple[int, int]
"""A position in bytes and the number of the message that ends there."""


class Memory:
    """The bytes of a ring that was made, seen as words and as a place for messages."""

    __slots__ = ("_lock", "body", "capacity", "message_bytes_max", "name", "salt", "words")

    def __init__(self, view: memoryview, name: str) -> None:
        self.name = name
        self.words = view.cast("Q")
        self.salt = self.words[3]
        self.body = view[HEADER_BYTES:]
        self.capacity = len(self.body)
        self.message_bytes_max = min(MESSAGE_BYTES_MAX, self.capacity // 2 - MESSAGE_HEADER_BYTES)
        self._lock = threading.Lock()
        self._lock.acquire()

    def fence(self) -> None:
        """What is before it is seen by the other side before what is after it; see the module's docstring."""
        self._lock.release()
        self._lock.acquire()

    def read_cursor(self, at: int) -> Cursor:
        """What a cursor says now, or said a moment ago."""
        words = self.words
        for _ in range(_LOOKS_MAX):
            first, first_number = words[at], words[at + 1]
            first_good = words[at + 2] == self._check(first, first_number)
            second, second_number = words[at + _SLOT], words[at + _SLOT + 1]
            second_good = words[at + _SLOT + 2] == self._check(second, second_number)
            if first_good and (not second_good or first_number >= second_number):
                return self._sound((first, first_number))
            if second_good:
                return self._sound((second, second_number))
        raise self.damaged("its header makes no sense")

    def write_cursor(self, at: int, position: int, number: int) -> None:
        """Moves a cursor. Only its owner does."""
        words = self.words
        if words[at + 2] == self._check(words[at], words[at + 1]) and (
            words[at + 1] >= words[at + _SLOT + 1]
            or words[at + _SLOT + 2] != self._check(words[at + _SLOT], words[at + _SLOT + 1])
        ):
            at += _SLOT
        words[at], words[at + 1] = position, number
        words[at + 2] = self._check(position, number)

    def write_header(self, offset: int, number: int, length: int) -> None:
        """Says what lies behind this place; the bytes are there already."""
        at = (HEADER_BYTES + offset) // _WORD_BYTES
        self.words[at] = number
        self.words[at + 1] = length | self._header_check(number, length) << 32

    def write_skip(self, offset: int, number: int) -> None:
        """Says that the message of this number is at the beginning of the ring."""
        self.write_header(offset, number, _SKIP)

    def find(self, position: int, number: int, end: int) -> tuple[int, int, int]:
        """The message of this number, which begins here: offset and length of its body, and where the next begins.

        Nothing outside of what was written, up to `end`, is ever looked at or returned. Raises RingDamaged.
        """
        offset = position % self.capacity
        length = self._length(offset, number)
        if length == _SKIP:
            position += self.capacity - offset
            offset = 0
            length = self._length(offset, number)
        framed = framed_bytes(length)
        if length > self.message_bytes_max or position + framed > end or offset + framed > self.capacity:
            raise self.damaged(f"message {number} claims to have {length} bytes")
        return offset + MESSAGE_HEADER_BYTES, length, position + framed

    def damaged(self, what: str) -> RingDamaged:
        """What to tell people."""
        return RingDamaged(f"{self.name}: damaged, {what}; {START_AGAIN}")

    def check_distance(self, written: Cursor, durable: Cursor) -> None:
        """Refuses cursors that cannot belong together."""
        used, messages = written[0] - durable[0], written[1] - durable[1]
        if not 0 <= used <= self.capacity or not 0 <= messages * MESSAGE_HEADER_BYTES <= used:
            raise self.damaged(f"it claims to hold {messages} messages in {used} bytes")

    def _length(self, offset: int, number: int) -> int:
        at = (HEADER_BYTES + offset) // _WORD_BYTES
        found, lengths = self.words[at], self.words[at + 1]
        length = lengths & 0xFFFFFFFF
        if found != number or lengths >> 32 != self._header_check(number, length):
            raise self.damaged(f"message {number} has no header")
        return length

    def _check(self, position: int, number: int) -> int:
        return (number * _ODD ^ position ^ self.salt) & _MASK

    def _header_check(self, number: int, length: int) -> int:
        return ((number * _ODD ^ length * 0x85EBCA6B ^ self.salt) >> 16) & 0xFFFFFFFF

    def _sound(self, cursor: Cursor) -> Cursor:
        if cursor[0] % ALIGNMENT:
            raise self.damaged("a position is no place for a message")
        return cursor


def framed_bytes(length: int) -> int:
    """What a message of this length takes, header and filling included."""
    return (length + MESSAGE_HEADER_BYTES + ALIGNMENT - 1) & -ALIGNMENT


def check_capacity(capacity: int) -> None:
    """Refuses a size that a ring cannot have."""
    if not CAPACITY_BYTES_MIN <= capacity <= CAPACITY_BYTES_MAX or capacity % CAPACITY_BYTES_MIN:
        raise ConfigError(
            f"a ring of {capacity} bytes; possible are multiples of {CAPACITY_BYTES_MIN} up to {CAPACITY_BYTES_MAX}"
        )


def new_header(capacity: int, salt: int, boot: bytes) -> bytes:
    """The header of an empty ring. It is written in one go, so that nobody ever finds half of it."""
    page = bytearray(HEADER_BYTES)
    fixed = _FIXED.pack(MAGIC, FORMAT, capacity, salt, boot)
    page[: _FIXED.size] = fixed
    memory = Memory(memoryview(page), "new")
    memory.words[_CHECK_WORD] = zlib.crc32(fixed)
    memory.write_cursor(WRITTEN, 0, 0)
    memory.write_cursor(DURABLE, 0, 0)
    return bytes(page)


def check_header(start: bytes, size_bytes: int, name: str) -> bytes:
    """Refuses what is no ring of ours, or not all of it. Returns the boot of the machine that it was made in."""
    other = f"{name}: not a ring; name another file, or remove this one"
    if len(start) < HEADER_BYTES:
        raise RingForeign(other)
    magic, version, capacity, _, boot = _FIXED.unpack_from(start)
    if magic != MAGIC:
        raise RingForeign(other)
    check = int.from_bytes(start[_FIXED.size : _FIXED.size + _WORD_BYTES], sys.byteorder)
    if check != zlib.crc32(start[: _FIXED.size]):
        raise RingDamaged(f"{name}: damaged, its header makes no sense; {START_AGAIN}")
    if version != FORMAT:
        raise RingForeign(
            f"{name}: a ring of format {version}, this program knows {FORMAT}; use the same version of stigmergy on "
            "both sides, or remove the ring when it is empty"
        )
    if size_bytes != HEADER_BYTES + capacity:
        raise RingDamaged(f"{name}: {size_bytes} bytes instead of {HEADER_BYTES + capacity}; {START_AGAIN}")
    try:
        check_capacity(capacity)
    except ConfigError as error:
        raise RingDamaged(f"{name}: {error}; {START_AGAIN}") from None
    return bytes(boot)
