"""Frames: what a segment is made of, byte by byte. Pure. docs/formats.md is the manual.

A frame is a header of 40 bytes and a payload, at the next multiple of 8. The header holds a magic, the kind, the length
of the payload, the frame's number, and a checksum over all of it under a key of the journal's own: whoever sends us
events cannot put bytes into them that pass for a frame. Frames of a journal are numbered without a gap. So a frame is
the next one only if it has the next number; what an earlier life of the file has left behind it never is.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from blake3 import blake3
from msgspec import Struct

from stigmergy.core.commit import Group, Head, Sealed, Signature
from stigmergy.core.errors import JournalCorrupt
from stigmergy.ports.journal import StoredCommit

T = TypeVar("T")
MAGIC = b"STGF"
FORMAT = 1
_HEADER = struct.Struct("<4sB3xIIQ16s")
_CHECKSUM_BYTES = 16
_SIGNED_BYTES = _HEADER.size - _CHECKSUM_BYTES
HEADER_BYTES = _HEADER.size
ALIGNMENT = 8
KEY_BYTES = 32


class Kind(enum.IntEnum):
    """What a frame holds."""

    SEGMENT = 1
    GROUP = 2
    FIRSTS = 3
    PART = 4
    IDENTITY = 5


class Frame(Struct, frozen=True):
    """A frame that was read and is whole."""

    kind: Kind
    number: int
    payload: bytes
    size_bytes: int
    """With header and alignment: the next one begins so much later."""


class SegmentHead(Struct, array_like=True, frozen=True):
    """The first frame of a segment: what was there before it."""

    format: int
    incarnation: int
    segment: int
    heads: list[Head]
    firsts: dict[int, int]


class _Row(Struct, array_like=True, frozen=True):
    shard: int
    position: int
    epoch: int
    time_ns: int
    events: int
    digest: bytes
    body: bytes


class _Rows(Struct, array_like=True, frozen=True):
    commits: list[_Row]
    signature: Signature


_encoder = msgspec.msgpack.Encoder()
_rows = msgspec.msgpack.Decoder(_Rows)
_heads = msgspec.msgpack.Decoder(SegmentHead)
_firsts = msgspec.msgpack.Decoder(dict[int, int])


def encode_frame(key: bytes, kind: Kind, number: int, payload: bytes) -> bytes:
    """The bytes of a frame."""
    padding = -(HEADER_BYTES + len(payload)) % ALIGNMENT
    start = _HEADER.pack(MAGIC, kind, len(payload), padding, number, bytes(_CHECKSUM_BYTES))[:_SIGNED_BYTES]
    return b"".join((start, _checksum(key, start, payload), payload, bytes(padding)))


def read_frame(key: bytes, data: bytes, offset: int = 0) -> Frame | None:
    """The frame that begins there; None if there is none, or not all of it, or not as it was written."""
    if len(data) - offset < HEADER_BYTES:
        return None
    magic, kind, length, padding, number, checksum = _HEADER.unpack_from(data, offset)
    if magic != MAGIC or padding >= ALIGNMENT or len(data) - offset < HEADER_BYTES + length:
        return None
    body = offset + HEADER_BYTES
    payload = bytes(data[body : body + length])
    if _checksum(key, bytes(data[offset : offset + _SIGNED_BYTES]), payload) != checksum:
        return None
    return Frame(Kind(kind), number, payload, HEADER_BYTES + length + padding)


def size_ahead(data: bytes) -> int:
    """How many bytes the frame takes whose header this is; 0 if it is none."""
    if len(data) < HEADER_BYTES:
        return 0
    magic, _, length, padding, _, _ = _HEADER.unpack_from(data)
    return HEADER_BYTES + length + padding if magic == MAGIC and padding < ALIGNMENT else 0


def frames_anywhere(key: bytes, data: bytes) -> Iterator[Frame]:
    """Every whole frame in these bytes, wherever it begins: to tell a torn end from damage."""
    offset = data.find(MAGIC)
    while offset >= 0:
        frame = read_frame(key, data, offset)
        if frame is not None:
            yield frame
        offset = data.find(MAGIC, offset + 1)


def encode_group(group: Group) -> bytes:
    """The payload of a group."""
    rows = [
        (one.shard, one.position, one.epoch, one.time_ns, one.events, one.digest, one.body) for one in group.commits
    ]
    return _encoder.encode((rows, group.signature))


def decode_group(frame: Frame, where: str) -> list[StoredCommit]:
    """The commits of a group; the last one has the signature."""
    rows = _decoded(_rows, frame, where)
    last = len(rows.commits) - 1
    return [
        StoredCommit(
            Sealed(row.shard, row.position, row.epoch, row.time_ns, row.events, row.digest, row.body),
            rows.signature if number == last else None,
        )
        for number, row in enumerate(rows.commits)
    ]


def encode_head(head: SegmentHead) -> bytes:
    """The payload of a segment's first frame."""
    return _encoder.encode(head)


def decode_head(frame: Frame, where: str) -> SegmentHead:
    """What a segment's first frame says."""
    return _decoded(_heads, frame, where)


def encode_firsts(firsts: dict[int, int]) -> bytes:
    """The payload of a note of where each shard begins."""
    return _encoder.encode(firsts)


def decode_firsts(frame: Frame, where: str) -> dict[int, int]:
    """Where each shard begins that has lost its beginning."""
    return _decoded(_firsts, frame, where)


def _decoded(decoder: msgspec.msgpack.Decoder[T], frame: Frame, where: str) -> T:
    try:
        return decoder.decode(frame.payload)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(f"{where}: frame {frame.number} is whole and makes no sense ({error})") from None


def _checksum(key: bytes, start: bytes, payload: bytes) -> bytes:
    return blake3(start, key=key).update(payload).digest(length=_CHECKSUM_BYTES)
