"""Frames: bytes to messages and back. Reads MAVLink 1 and 2, writes 2. Whatever comes, it only counts what is bad.

A frame whose checksum does not fit is not believed, nor is its length: the search goes on at the next byte. Signatures
are passed over and not checked; a link that strangers can reach needs protection of its own.
"""

from __future__ import annotations

from msgspec import Struct

from stigmergy.adapters.mavlink.messages import LAYOUTS, MavMessage, checksum

MAGIC_1, MAGIC_2 = 0xFE, 0xFD
SIGNED_FLAG = 0x01
HEADER_1, HEADER_2, CHECKSUM, SIGNATURE = 6, 10, 2, 13
FRAME_BYTES_MAX = HEADER_2 + 255 + CHECKSUM + SIGNATURE


class Frame(Struct, frozen=True):
    """A message and who sent it."""

    system: int
    component: int
    sequence: int
    message: MavMessage


class FrameCounters(Struct):
    """What a link has brought."""

    frames: int = 0
    unknown: int = 0
    """Messages that we have no layout for; they are well."""
    bad_bytes: int = 0
    """Bytes that were part of no frame, or of a damaged one."""


class Parser:
    """Finds frames in a stream of bytes. Keeps less than one frame between two calls."""

    def __init__(self) -> None:
        self._buffer = b""
        self.counters = FrameCounters()

    def feed(self, data: bytes) -> list[Frame]:
        """The messages that are complete now, in order."""
        buffer = self._buffer + data
        found: list[Frame] = []
        at = 0
        while at < len(buffer):
            if buffer[at] not in (MAGIC_1, MAGIC_2):
                at += 1
                self.counters.bad_bytes += 1
                continue
            end = _end(buffer, at)
            if end is None or end > len(buffer):
                break
            frame = None if end == at else self._read(buffer, at, end)
            if frame is None:
                at += 1
                self.counters.bad_bytes += 1
                continue
            if isinstance(frame, Frame):
                found.append(frame)
                self.counters.frames += 1
            at = end
        self._buffer = buffer[at:]
        return found

    def finish(self) -> list[Frame]:
        """No more belongs to what came last, because a datagram holds whole frames. Returns what a false start hid."""
        found: list[Frame] = []
        while self._buffer:
            rest, self._buffer = self._buffer[1:], b""
            self.counters.bad_bytes += 1
            found += self.feed(rest)
        return found

    def _read(self, buffer: bytes, at: int, end: int) -> Frame | bool | None:
        """The frame; True for a message that we do not know; None if this is no frame."""
        if buffer[at] == MAGIC_2:
            header, length = HEADER_2, buffer[at + 1]
            sequence, system, component = buffer[at + 4], buffer[at + 5], buffer[at + 6]
            number = int.from_bytes(buffer[at + 7 : at + 10], "little")
        else:
            header, length = HEADER_1, buffer[at + 1]
            sequence, system, component, number = buffer[at + 2 : at + 6]
        layout = LAYOUTS.get(number)
        body_end = at + header + length
        if layout is None:
            # Its checksum cannot be checked. It is believed if another frame, or nothing yet, follows.
            if end < len(buffer) and buffer[end] not in (MAGIC_1, MAGIC_2):
                return None
            self.counters.unknown += 1
            return True
        told = int.from_bytes(buffer[body_end : body_end + CHECKSUM], "little")
        if told != checksum(bytes([layout.seed]), checksum(buffer[at + 1 : body_end])):
            return None
        payload = buffer[at + header : body_end]
        if header == HEADER_1:
            payload = payload[: layout.base_bytes]
        return Frame(system, component, sequence, layout.unpack(payload))


class Writer:
    """Makes frames of one sender, numbered."""

    def __init__(self, system: int, component: int) -> None:
        self._system = system
        self._component = component
        self._sequence = 0

    def frame(self, message: MavMessage) -> bytes:
        """The bytes of a message, as MAVLink 2."""
        layout = LAYOUTS[message.NUMBER]
        payload = layout.pack(message)
        payload = payload[:1] + payload[1:].rstrip(b"\0")  # zeros at the end are left out, but for the first byte
        head = bytes((len(payload), 0, 0, self._sequence, self._system, self._component))
        self._sequence = (self._sequence + 1) % 256
        body = head + message.NUMBER.to_bytes(3, "little") + payload
        value = checksum(bytes([layout.seed]), checksum(body))
        return bytes([MAGIC_2]) + body + value.to_bytes(2, "little")


def _end(buffer: bytes, at: int) -> int | None:
    """Where the frame that begins here would end; None if that cannot be seen yet."""
    if buffer[at] == MAGIC_1:
        return at + HEADER_1 + buffer[at + 1] + CHECKSUM if len(buffer) > at + 1 else None
    if len(buffer) <= at + 2:
        return None
    flags = buffer[at + 2]
    if flags & ~SIGNED_FLAG:
        # Flags that we do not know change what follows: such a frame is not for us. It ends before it begins.
        return at
    return at + HEADER_2 + buffer[at + 1] + CHECKSUM + (SIGNATURE if flags & SIGNED_FLAG else 0)
