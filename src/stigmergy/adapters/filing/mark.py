"""The mark: a witness, beside the journal, of the newest commit that was acknowledged, and of who has the journal.

SQLite cannot tell an acknowledged transaction with a flipped bit at the end of the WAL from one that never finished;
nor does it miss a WAL that was cut or deleted. The mark is written after each sync and before the acknowledgement,
and is never synced itself. So it never claims too much: it survives the death of the process exactly, and after a
loss of power it may be old but is still true. A journal that holds less than its mark has lost acknowledged commits.
"""

from __future__ import annotations

import struct
import zlib

from msgspec import Struct

from stigmergy.core.errors import JournalCorrupt

_MAGIC = b"stgmark1"
_RECORD = struct.Struct("<8sqqQI")
_CHECKSUM = struct.Struct("<I")
MARK_BYTES = _RECORD.size + _CHECKSUM.size


class Mark(Struct, frozen=True):
    """The last commit of the last acknowledged group; position 0 if there was none yet."""

    incarnation: int
    shard: int
    position: int
    pid: int


def mark_path(path: str) -> str:
    """Where the mark of this journal is: beside its file or folder."""
    return path + "-mark"


def encode_mark(mark: Mark) -> bytes:
    """The mark's bytes. They fit into one sector, so that a torn write leaves the old mark or the new one."""
    record = _RECORD.pack(_MAGIC, mark.incarnation, mark.shard, mark.position, mark.pid)
    return record + _CHECKSUM.pack(zlib.crc32(record))


def read_mark(data: bytes, path: str) -> Mark | None:
    """The mark out of its file; None for one that was never written, or of which nothing has reached the disk.

    Raises JournalCorrupt for anything else. One write puts all of a mark into one sector: no crash leaves a part of it.
    """
    mark = decode_mark(data)
    if mark is None and any(data):
        raise JournalCorrupt(
            f"{path}: the mark is damaged, so nobody knows how far the journal had come; restore both from a copy, or, "
            f"if you are sure that the journal is the newest one, remove {path}"
        )
    return mark


def decode_mark(data: bytes) -> Mark | None:
    """The mark, or None for anything else."""
    if len(data) < MARK_BYTES:
        return None
    record = data[: _RECORD.size]
    magic, incarnation, shard, position, pid = _RECORD.unpack(record)
    if magic != _MAGIC or _CHECKSUM.unpack_from(data, _RECORD.size)[0] != zlib.crc32(record):
        return None
    return Mark(incarnation=incarnation, shard=shard, position=position, pid=pid)
