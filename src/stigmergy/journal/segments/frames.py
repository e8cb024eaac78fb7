"""Frames: the bytes of a segment. Pure. docs/formats.md describes them.

A frame is a header of 40 bytes and a payload, padded to a multiple of 8. The header holds a magic, the kind, the length
of the payload, the frame's number, a checksum of these, and one of all of it, both keyed with a key of the journal. So
a sender of events cannot craft bytes that pass for a frame, or for a header that makes us scan everything behind it.
Frames of a journal are numbered without a gap, and only the next number is the next frame: leftovers of an earlier use
of the file never match.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from blake3 import blake3
from msgspec import Struct, structs

from stigmergy.base.errors import JournalCorrupt
from stigmergy.journal.port import StoredCommit
from stigmergy.shard.commit import CommitRow, Group, Head, Sealed, Signature, digest_commit, row_of, sealed_of

T = TypeVar("T")
MAGIC = b"STGF"
FORMAT = 1
_START = struct.Struct("<4sBBHIQ")
_CHECK_BYTES = 4
_CHECKSUM_BYTES = 16
_SIGNED_BYTES = _START.size + _CHECK_BYTES
HEADER_BYTES = _SIGNED_BYTES + _CHECKSUM_BYTES
ALIGNMENT = 8
BLOCK_BYTES = 4096
KEY_BYTES = 32
INDEX_LENGTH_BYTES = 4
_LENGTH_BYTES = 4
"""What the length of a filling takes, at most, and some of what a frame is filled up with."""


class SegmentFrameKind(enum.IntEnum):
    """What a frame holds."""

    SEGMENT = 1
    GROUP = 2
    FIRSTS = 3
    PART = 4
    IDENTITY = 5
    KEPT = 6
    BLOCKS = 7
    """A large group: as GROUP, but filled up to the end of a block, so that the next can be written in whole ones."""


class SegmentFrame(Struct, frozen=True):
    """A frame that was read and is whole."""

    kind: SegmentFrameKind
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
    filling: bytes = b""
    """Zeros, so that what follows begins with a block."""


class SegmentCommit(CommitRow, array_like=True, frozen=True):
    """A commit, with what of it is needed without opening it."""


class SegmentGroup(Struct, array_like=True, frozen=True):
    """The payload of a group's frame."""

    commits: list[SegmentCommit]
    signature: Signature


class IndexedCommit(Struct, array_like=True, frozen=True):
    """A commit of a large group: the bodies lie behind all of these, in their order."""

    shard: int
    position: int
    epoch: int
    time_ns: int
    events: int
    digest: bytes
    length: int


class SegmentIndex(Struct, array_like=True, frozen=True):
    """What a large group's payload begins with, behind its own length in 4 bytes; then come the bodies."""

    commits: list[IndexedCommit]
    signature: Signature


class KeptCommit(SegmentCommit, array_like=True, frozen=True):
    """A commit that was kept of a segment that has gone, with the signature if it was the last of its group."""

    signature: Signature | None


_encoder = msgspec.msgpack.Encoder()
_rows = msgspec.msgpack.Decoder(SegmentGroup)
_index = msgspec.msgpack.Decoder(SegmentIndex)
_heads = msgspec.msgpack.Decoder(SegmentHead)
_kept_rows = msgspec.msgpack.Decoder(list[KeptCommit])
_firsts = msgspec.msgpack.Decoder(dict[int, int])


def encode_frame(key: bytes, kind: SegmentFrameKind, number: int, payload: bytes) -> bytes:
    """The bytes of a frame."""
    return b"".join(frame_pieces(key, kind, number, [payload]))


def frame_pieces(
    key: bytes, kind: SegmentFrameKind, number: int, payload: Sequence[bytes], offset: int = 0
) -> list[bytes]:
    """The bytes of a frame in pieces: to put a large payload together would be to copy it. `offset` is where it will
    begin; one of kind BLOCKS is filled up to where a block ends."""
    length = sum(len(piece) for piece in payload)
    filling = frame_size(kind, length, offset) - HEADER_BYTES - length
    padding, more = (0, filling) if kind is SegmentFrameKind.BLOCKS else (filling, 0)
    start = _START.pack(MAGIC, kind, padding, more, length, number)
    start += _check(key, start)
    # Of a large group only the index is checked here: in it are the digests of the bodies, which check those.
    checked = payload[:1] if kind is SegmentFrameKind.BLOCKS else payload
    return [start + _checksum(key, start, *checked), *payload, bytes(filling)]


def frame_size(kind: SegmentFrameKind, length: int, offset: int = 0) -> int:
    """How many bytes the frame of a payload of this length takes that begins there."""
    size_bytes = HEADER_BYTES + length
    if kind is SegmentFrameKind.BLOCKS:
        return size_bytes + -(offset + size_bytes) % BLOCK_BYTES
    return size_bytes + -size_bytes % ALIGNMENT


def read_frame(key: bytes, data: bytes, offset: int = 0) -> SegmentFrame | None:
    """The frame that begins there; None if there is none, or not all of it, or not as it was written."""
    size_bytes = size_ahead(key, data, offset)
    if not size_bytes or len(data) - offset < size_bytes:
        return None
    _, kind, _, _, length, number = _START.unpack_from(data, offset)
    body = offset + HEADER_BYTES
    payload = bytes(data[body : body + length])
    checksum = data[offset + _SIGNED_BYTES : body]
    start = bytes(data[offset : offset + _SIGNED_BYTES])
    if kind == SegmentFrameKind.BLOCKS:
        if not _blocks_are_whole(key, start, checksum, payload):
            return None
    elif _checksum(key, start, payload) != checksum:
        return None
    try:
        return SegmentFrame(SegmentFrameKind(kind), number, payload, size_bytes)
    except ValueError:
        raise JournalCorrupt(f"frame {number} is of kind {kind}, which this version does not know") from None


def _blocks_are_whole(key: bytes, start: bytes, checksum: bytes, payload: bytes) -> bool:
    index = payload[: INDEX_LENGTH_BYTES + int.from_bytes(payload[:INDEX_LENGTH_BYTES], "little")]
    if len(index) < INDEX_LENGTH_BYTES or _checksum(key, start, index) != checksum:
        return False
    return all(digest_commit(sealed.body) == sealed.digest for sealed in _sealed_in(payload, index)[0])


def _sealed_in(payload: bytes, index: bytes) -> tuple[list[Sealed], Signature]:
    """The commits of a large group, and its signature."""
    try:
        rows = _index.decode(index[INDEX_LENGTH_BYTES:])
    except msgspec.DecodeError as error:
        raise JournalCorrupt(f"the index of a large frame is whole and makes no sense ({error})") from None
    found: list[Sealed] = []
    at = len(index)
    for row in rows.commits:
        body = payload[at : at + row.length]
        found.append(Sealed(row.shard, row.position, row.epoch, row.time_ns, row.events, row.digest, body))
        at += row.length
    return found, rows.signature


def size_ahead(key: bytes, data: bytes, offset: int = 0) -> int:
    """How many bytes the frame takes whose header this is, filled up; 0 if it is none."""
    if len(data) - offset < HEADER_BYTES or not data.startswith(MAGIC, offset):
        return 0
    _, _, padding, more, length, _ = _START.unpack_from(data, offset)
    start = data[offset : offset + _START.size]
    if data[offset + _START.size : offset + _SIGNED_BYTES] != _check(key, start):
        return 0
    return HEADER_BYTES + int(length) + int(padding) + int(more)


def frames_anywhere(key: bytes, data: bytes) -> Iterator[SegmentFrame]:
    """Every whole frame in these bytes, wherever it begins: to tell a torn end from damage."""
    offset = data.find(MAGIC)
    while offset >= 0:
        frame = read_frame(key, data, offset)
        if frame is not None:
            yield frame
        offset = data.find(MAGIC, offset + 1)


def encode_group(group: Group) -> bytes:
    """The payload of a group."""
    return _encoder.encode(([row_of(one) for one in group.commits], group.signature))


def encode_blocks(group: Group) -> list[bytes]:
    """The payload of a large group, in pieces: the index, then the bodies as they are."""
    rows = [
        (one.shard, one.position, one.epoch, one.time_ns, one.events, one.digest, len(one.body))
        for one in group.commits
    ]
    index = _encoder.encode((rows, group.signature))
    return [len(index).to_bytes(INDEX_LENGTH_BYTES, "little") + index, *(one.body for one in group.commits)]


def decode_group(frame: SegmentFrame, where: str) -> list[StoredCommit]:
    """The commits of a group; the last one has the signature."""
    if frame.kind is SegmentFrameKind.BLOCKS:
        length = INDEX_LENGTH_BYTES + int.from_bytes(frame.payload[:INDEX_LENGTH_BYTES], "little")
        found, signature = _sealed_in(frame.payload, frame.payload[:length])
        return [
            StoredCommit(sealed, signature if number == len(found) - 1 else None) for number, sealed in enumerate(found)
        ]
    rows = _decoded(_rows, frame, where)
    last = len(rows.commits) - 1
    return [
        StoredCommit(sealed_of(row), rows.signature if number == last else None)
        for number, row in enumerate(rows.commits)
    ]


def encode_kept(commits: Sequence[StoredCommit]) -> bytes:
    """The payload of what was kept of segments that have gone."""
    return _encoder.encode([(*row_of(stored.sealed), stored.signature) for stored in commits])


def decode_kept(frame: SegmentFrame, where: str) -> list[StoredCommit]:
    """The commits that were kept, each with its signature if it had one."""
    return [StoredCommit(sealed_of(row), row.signature) for row in _decoded(_kept_rows, frame, where)]


def encode_head(head: SegmentHead) -> bytes:
    """The payload of a segment's first frame, filled up so that the next frame begins with a block."""
    room_bytes = -(HEADER_BYTES + len(_encoder.encode(head))) % BLOCK_BYTES
    # The length of the filling takes some bytes as well, and a frame is filled up to a multiple of 8 in any case.
    filled = structs.replace(head, filling=bytes(max(0, room_bytes - _LENGTH_BYTES)))
    return _encoder.encode(filled)


def decode_head(frame: SegmentFrame, where: str) -> SegmentHead:
    """What a segment's first frame says."""
    return _decoded(_heads, frame, where)


def encode_firsts(firsts: dict[int, int]) -> bytes:
    """The payload of a note of where shards begin from now on: of those that have lost some of their beginning."""
    return _encoder.encode(firsts)


def decode_firsts(frame: SegmentFrame, where: str) -> dict[int, int]:
    """Where these shards begin from now on."""
    return _decoded(_firsts, frame, where)


def _decoded(decoder: msgspec.msgpack.Decoder[T], frame: SegmentFrame, where: str) -> T:
    try:
        return decoder.decode(frame.payload)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(f"{where}: frame {frame.number} is whole and makes no sense ({error})") from None


def _check(key: bytes, start: bytes) -> bytes:
    return blake3(start, key=key).digest(length=_CHECK_BYTES)


def _checksum(key: bytes, start: bytes, *payload: bytes) -> bytes:
    hasher = blake3(start, key=key)
    for piece in payload:
        hasher.update(piece)
    return hasher.digest(length=_CHECKSUM_BYTES)
