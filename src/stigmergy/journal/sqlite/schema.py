"""The tables of a journal file, and the checksums of its rows.

`commits.id` is shard * 2**40 + position. So the commits of a shard are adjacent and in order, an append touches one
page of a shard, and no second index is needed. Each row carries a checksum of everything but the body: the body has its
digest, which recovery checks.

`shards` says how far each shard had come when the WAL was last copied into the database, and where it begins. Frames in
the WAL have their own checksums; this table reveals a database page that silently lost its newest rows.
"""

from __future__ import annotations

import struct
import zlib

import msgspec
from msgspec import Struct

from stigmergy.base.errors import Bug, ConfigError, JournalCorrupt, JournalForeign
from stigmergy.journal.file_errors import RESTORE
from stigmergy.journal.port import JournalIdentity, SnapshotPart, StoredCommit
from stigmergy.shard.commit import Group, Head, Sealed, Signature

APPLICATION_ID = 0x5354474D
"""STGM; `file fleet.db` shows it."""
FORMAT = 1
PART_FORMAT = 2
"""Of a journal that keeps some of a fleet's shards: a version that knows of no parts does not take it for all."""
KEYED_FORMAT = 3
"""Of a fleet with a function that says where agents live: a version that knows of none would look in other shards."""
POSITION_BITS = 40
SHARDS_MAX = 1 << 22

DATABASE_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\x00"
_USER_VERSION = struct.Struct(">I")
_USER_VERSION_OFFSET = 60
_APPLICATION_ID_OFFSET = 68

TABLES = """
CREATE TABLE identity(
    only INTEGER PRIMARY KEY CHECK (only = 1),
    fleet TEXT NOT NULL, shards INTEGER NOT NULL, incarnation INTEGER NOT NULL, checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE shards(
    shard INTEGER PRIMARY KEY,
    first INTEGER NOT NULL, head INTEGER NOT NULL, digest BLOB NOT NULL, checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE commits(
    id INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL, time_ns INTEGER NOT NULL, events INTEGER NOT NULL, digest BLOB NOT NULL, signature BLOB,
    checksum INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE TABLE snapshots(
    shard INTEGER NOT NULL, position INTEGER NOT NULL, part INTEGER NOT NULL,
    checksum INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (shard, position, part)
) STRICT;
"""

PART_TABLE = """
CREATE TABLE part(
    only INTEGER PRIMARY KEY CHECK (only = 1), first INTEGER NOT NULL, last INTEGER NOT NULL, checksum INTEGER NOT NULL
) STRICT;
"""
"""Only in a journal that keeps some of the shards."""

KEYED_TABLE = """
CREATE TABLE keyed(
    only INTEGER PRIMARY KEY CHECK (only = 1), shard_by TEXT NOT NULL, first INTEGER, last INTEGER,
    checksum INTEGER NOT NULL
) STRICT;
"""
"""Only in a journal of a fleet with a function that says where agents live; it has what `part` has, too."""

Value = int | str | bytes | float | None
Row = tuple[Value, ...]

INSERT_COMMIT = "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
SELECT_COMMITS = (
    "SELECT id, epoch, time_ns, events, digest, signature, checksum, body FROM commits "
    "WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
)
UPSERT_SHARD = "INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?)"
INSERT_SNAPSHOT = "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?)"
SELECT_SNAPSHOT = (
    "SELECT part, checksum, body FROM snapshots WHERE shard = ? AND position = ? AND part >= ? ORDER BY part LIMIT 1"
)

_encoder = msgspec.msgpack.Encoder()
_signature_decoder = msgspec.msgpack.Decoder(Signature)


class ShardRow(Struct, frozen=True):
    """Where a shard began and how far it had come when this was noted."""

    shard: int
    first: int
    head: int
    digest: bytes


def row_checksum(*values: object) -> int:
    """A checksum against flipped bits, not against people: those the digests and signatures are for."""
    return zlib.crc32(_encoder.encode(values))


def check_database_header(data: bytes, path: str) -> None:
    """Refuses what is not a journal of ours by its first bytes, before anything opens it."""
    if not data.startswith(_MAGIC[: len(data)]):
        raise JournalForeign(f"{path}: not a journal; name the right file, it was not touched")
    if len(data) < DATABASE_HEADER_BYTES:
        raise JournalCorrupt(f"{path}: cut off after {len(data)} bytes; {RESTORE}")
    (application,) = _USER_VERSION.unpack_from(data, _APPLICATION_ID_OFFSET)
    (version,) = _USER_VERSION.unpack_from(data, _USER_VERSION_OFFSET)
    if application != APPLICATION_ID:
        raise JournalForeign(
            f"{path}: a database of another program (application id {application:#x}); name the right file, "
            "it was not touched"
        )
    if version not in (FORMAT, PART_FORMAT, KEYED_FORMAT):
        raise JournalForeign(
            f"{path}: journal format {version}, this version reads {FORMAT} to {KEYED_FORMAT}; "
            "use the version that wrote it"
        )


def format_of(identity: JournalIdentity) -> int:
    """The format of a journal that is made with this identity: the oldest that can say it."""
    if identity.shard_by:
        return KEYED_FORMAT
    return FORMAT if identity.part is None else PART_FORMAT


def identity_row(identity: JournalIdentity) -> Row:
    """What `identity` holds."""
    values = (identity.fleet, identity.shards, identity.incarnation)
    return (1, *values, row_checksum(*values))


def part_row(part: tuple[int, int]) -> Row:
    """What `part` holds."""
    return (1, *part, row_checksum(*part))


def keyed_row(identity: JournalIdentity) -> Row:
    """What `keyed` holds."""
    values = (identity.shard_by, *(identity.part or (None, None)))
    return (1, *values, row_checksum(*values))


def read_identity(
    rows: list[Row], path: str, part_rows: list[Row] | None = None, keyed_rows: list[Row] | None = None
) -> JournalIdentity:
    """The identity out of its table's rows, and those of the tables `part` and `keyed` where there is one of them."""
    damaged = f"{path}: the record of the journal's identity is damaged; {RESTORE}"
    part = None if part_rows is None else _read_part(part_rows, damaged)
    shard_by = ""
    if keyed_rows is not None:
        shard_by, part = _read_keyed(keyed_rows, damaged)
    match rows:
        case [(1, str(fleet), int(shards), int(incarnation), int(checksum))] if checksum == row_checksum(
            fleet, shards, incarnation
        ):
            try:
                return JournalIdentity(fleet, shards, incarnation, part, shard_by)
            except ConfigError:
                raise JournalCorrupt(damaged) from None
        case _:
            raise JournalCorrupt(damaged)


def _read_part(rows: list[Row], damaged: str) -> tuple[int, int]:
    match rows:
        case [(1, int(first), int(last), int(checksum))] if checksum == row_checksum(first, last):
            return (first, last)
        case _:
            raise JournalCorrupt(damaged)


def _read_keyed(rows: list[Row], damaged: str) -> tuple[str, tuple[int, int] | None]:
    match rows:
        case [(1, str(shard_by), int(first), int(last), int(checksum))] if checksum == row_checksum(
            shard_by, first, last
        ):
            return shard_by, (first, last)
        case [(1, str(shard_by), None, None, int(checksum))] if checksum == row_checksum(shard_by, None, None):
            return shard_by, None
        case _:
            raise JournalCorrupt(damaged)


def shard_row(note: ShardRow) -> Row:
    """What `shards` holds."""
    values = (note.shard, note.first, note.head, note.digest)
    return (*values, row_checksum(*values))


def read_shard_note(row: Row, path: str) -> ShardRow:
    """A shard's note out of its row."""
    match row:
        case (int(shard), int(first), int(head), bytes(digest), int(checksum)) if checksum == row_checksum(
            shard, first, head, digest
        ):
            return ShardRow(shard=shard, first=first, head=head, digest=digest)
        case _:
            raise JournalCorrupt(f"{path}: the record of shard {row[0]!r} is damaged; {RESTORE}")


def commit_id(shard: int, position: int) -> int:
    """The row of a commit. With position 0, the one in front of all of a shard's."""
    return shard << POSITION_BITS | position


def commit_rows(group: Group) -> list[Row]:
    """The rows of a group: the signature goes into the last."""
    signature = _encoder.encode(group.signature)
    rows = [_commit_row(sealed, None) for sealed in group.commits[:-1]]
    rows.append(_commit_row(group.commits[-1], signature))
    return rows


def _commit_row(sealed: Sealed, signature: bytes | None) -> Row:
    if sealed.position >> POSITION_BITS:
        raise Bug(f"shard {sealed.shard}: position {sealed.position} does not fit into {POSITION_BITS} bits")
    values = (
        commit_id(sealed.shard, sealed.position),
        sealed.epoch,
        sealed.time_ns,
        sealed.events,
        sealed.digest,
        signature,
    )
    return (*values, row_checksum(*values), sealed.body)


def read_commit(row: Row, path: str) -> StoredCommit:
    """A commit out of its row."""
    match row:
        case (
            int(key),
            int(epoch),
            int(time_ns),
            int(events),
            bytes(digest),
            (bytes() | None) as signature,
            int(checksum),
            bytes(body),
        ) if checksum == row_checksum(key, epoch, time_ns, events, digest, signature):
            sealed = Sealed(
                shard=key >> POSITION_BITS,
                position=key & ((1 << POSITION_BITS) - 1),
                epoch=epoch,
                time_ns=time_ns,
                events=events,
                digest=digest,
                body=body,
            )
            return StoredCommit(sealed, _signature_decoder.decode(signature) if signature is not None else None)
        case _:
            raise JournalCorrupt(f"{path}: the record of commit {row[0]!r} is damaged; {RESTORE}")


def snapshot_row(shard: int, position: int, part: int, body: bytes) -> Row:
    """What `snapshots` holds."""
    return (shard, position, part, _snapshot_checksum(shard, position, part, body), body)


def read_snapshot_part(row: Row, shard: int, position: int, part: int, path: str) -> SnapshotPart:
    """A part of a snapshot out of its row: it must be this part."""
    match row:
        case (int(number), int(checksum), bytes(body)) if number == part and checksum == _snapshot_checksum(
            shard, position, part, body
        ):
            return SnapshotPart(part=part, body=body)
        case _:
            raise JournalCorrupt(
                f"{path}: shard {shard}, snapshot {position}: part {part} is damaged or missing; "
                "use an earlier snapshot, or replay"
            )


def _snapshot_checksum(shard: int, position: int, part: int, body: bytes) -> int:
    """Over the body too: a bad part is told apart from a bad fold."""
    return zlib.crc32(body, row_checksum(shard, position, part))


def note_of(head: Head, first: int) -> ShardRow:
    """What is to be noted of a shard now."""
    return ShardRow(shard=head.shard, first=first, head=head.position, digest=head.digest)
