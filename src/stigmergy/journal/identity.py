"""What a journal on files checks before it trusts itself: its owner, and that it holds what its mark witnessed."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping

from msgspec import Struct

from stigmergy.base.errors import ConfigError, JournalCorrupt, JournalForeign
from stigmergy.journal.port import JournalIdentity, check_shard_by, shown_shards
from stigmergy.shard.commit import Head

# The mark: a file beside the journal that witnesses the newest acknowledged commit and who has the journal open.
#
# SQLite cannot tell an acknowledged transaction with a flipped bit at the end of the WAL from an unfinished one, and
# does not miss a WAL that was cut or deleted. The mark is written after each sync and before the acknowledgement, and
# never synced itself. So it never claims too much: it survives the death of the process exactly, and after a power loss
# it may be old but is still true. A journal that holds less than its mark has lost acknowledged commits.

_MAGIC = b"stgmark1"
_RECORD = struct.Struct("<8sqqQI")
_CHECKSUM = struct.Struct("<I")
MARK_BYTES = _RECORD.size + _CHECKSUM.size


class AcknowledgedHead(Struct, frozen=True):
    """The last commit of the last acknowledged group; position 0 if there was none yet."""

    incarnation: int
    shard: int
    position: int
    pid: int


def mark_path(path: str) -> str:
    """Where the mark of this journal is: beside its file or folder."""
    return path + "-mark"


def encode_mark(mark: AcknowledgedHead) -> bytes:
    """The mark's bytes. They fit into one sector, so that a torn write leaves the old mark or the new one."""
    record = _RECORD.pack(_MAGIC, mark.incarnation, mark.shard, mark.position, mark.pid)
    return record + _CHECKSUM.pack(zlib.crc32(record))


def read_mark(data: bytes, path: str) -> AcknowledgedHead | None:
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


def decode_mark(data: bytes) -> AcknowledgedHead | None:
    """The mark, or None for anything else."""
    if len(data) < MARK_BYTES:
        return None
    record = data[: _RECORD.size]
    magic, incarnation, shard, position, pid = _RECORD.unpack(record)
    if magic != _MAGIC or _CHECKSUM.unpack_from(data, _RECORD.size)[0] != zlib.crc32(record):
        return None
    return AcknowledgedHead(incarnation=incarnation, shard=shard, position=position, pid=pid)


INCARNATION_MAX = (1 << 63) - 1


def check_incarnation(incarnation: int) -> None:
    """Refuses a number that the formats cannot hold."""
    if not 0 <= incarnation <= INCARNATION_MAX:
        raise ConfigError(f"incarnation {incarnation}; possible are 0 to {INCARNATION_MAX}")


def check_identity(found: JournalIdentity, wanted: JournalIdentity, path: str) -> None:
    """Refuses the journal of another fleet."""
    if found.fleet != wanted.fleet:
        raise JournalForeign(f"{path}: belongs to fleet {found.fleet!r}, not to {wanted.fleet!r}; name the right file")
    if found.shards != wanted.shards:
        raise JournalForeign(
            f"{path}: made for {found.shards} shards, not for {wanted.shards}; the number of shards is fixed"
        )
    check_shard_by(found.shard_by, wanted.shard_by, path)
    if found.part != wanted.part:
        raise JournalForeign(f"{path}: keeps {shown_shards(found)}, not {shown_shards(wanted)}; {_remedy(found)}")


def _remedy(found: JournalIdentity) -> str:
    if found.part is None:
        return "name another journal"
    return "an earlier version wrote it with run --processes, this one reads it only: name another --journal"


def check_mark(heads: Mapping[int, Head], identity: JournalIdentity, mark: AcknowledgedHead | None, path: str) -> None:
    """Refuses a journal that holds less than was acknowledged."""
    if mark is None or mark.position == 0 or mark.incarnation != identity.incarnation:
        return
    head = heads.get(mark.shard)
    found = head.position if head else 0
    if found < mark.position:
        raise JournalCorrupt(
            f"{path}: shard {mark.shard} was acknowledged up to {mark.position}, found {found}; "
            "restore the journal from a copy, or, if this is a restored copy, give it an incarnation of its own "
            "(renew_incarnation; docs/running.md, Copies)"
        )


def own_mark(identity: JournalIdentity, mark: AcknowledgedHead | None) -> AcknowledgedHead:
    """The mark from now on: what it said, if it spoke of this incarnation, and our process."""
    if mark is not None and mark.incarnation == identity.incarnation:
        return AcknowledgedHead(identity.incarnation, mark.shard, mark.position, os.getpid())
    return AcknowledgedHead(identity.incarnation, 0, 0, os.getpid())
