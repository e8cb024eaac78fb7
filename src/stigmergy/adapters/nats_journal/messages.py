"""The messages of a log on JetStream, byte by byte. Pure. docs/formats.md is the manual.

A log is a stream. A group is one message, or, where it is larger than the server takes, several pieces, of which
nothing counts before the last. Notes lie between them: who has claimed the log, where shards begin after a drop, and
every so often where each shard stands, so that nobody has to read a whole log to find the end or a place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from stigmergy.core.commit import Group, Head, Signature
from stigmergy.core.errors import JournalCorrupt, JournalForeign
from stigmergy.core.rows import CommitRow, row_of, sealed_of
from stigmergy.ports.journal import JournalIdentity, StoredCommit

T = TypeVar("T")
FORMAT = 1
GROUP = "group"
PIECE = "piece"
END = "end"
NOTE = "note"
KINDS = (GROUP, PIECE, END, NOTE)
"""The last token of a message's subject says what it is."""
CLAIMED = "claimed"
DROPPED = "dropped"
INDEXED = "indexed"
PIECE_ROOM_BYTES = 512
"""What headers and the frame of a piece may take of what a server lets through."""
PAYLOAD_BYTES_MIN = 4 * PIECE_ROOM_BYTES


class Entry(Struct, frozen=True):
    """A message of a log as it was read."""

    sequence: int
    kind: str
    payload: bytes


class LogCommit(CommitRow, array_like=True, frozen=True):
    """A commit, with what of it is needed without opening it."""


class LogGroup(Struct, array_like=True, frozen=True):
    """A group, and the claim that it was written under."""

    claim: int
    commits: list[LogCommit]
    signature: Signature


class LogPiece(Struct, array_like=True, frozen=True):
    """A piece of a group that is larger than a message; pieces count from 0."""

    claim: int
    number: int
    body: bytes


class ShardNote(Struct, array_like=True, frozen=True):
    """Where a shard stands: what is kept of it, and its head."""

    shard: int
    first: int
    first_sequence: int
    """Of the message that its first commit begins with."""
    position: int
    epoch: int
    digest: bytes


class LogNote(Struct, array_like=True, frozen=True):
    """Says how things stand with everything before it. `kind` is why it was written."""

    format: int
    kind: str
    claim: int
    """Under which it was written; 0 in the claim itself, whose number is that of its message."""
    owner: str
    nonce: bytes
    """So that no two claims are the same bytes: whoever reads one back knows whether it is his own."""
    shards: list[ShardNote]


_encoder = msgspec.msgpack.Encoder()
_groups = msgspec.msgpack.Decoder(LogGroup)
_pieces = msgspec.msgpack.Decoder(LogPiece)
_notes = msgspec.msgpack.Decoder(LogNote)


def encode_group(claim: int, group: Group) -> bytes:
    """The payload of a group."""
    return _encoder.encode((claim, [row_of(one) for one in group.commits], group.signature))


def split_group(claim: int, payload: bytes, payload_bytes_max: int) -> list[tuple[str, bytes]]:
    """What a group is written as: itself, or its pieces; each with its kind."""
    room_bytes = payload_bytes_max - PIECE_ROOM_BYTES
    if len(payload) <= room_bytes:
        return [(GROUP, payload)]
    starts = range(0, len(payload), room_bytes)
    return [
        (
            END if number == len(starts) - 1 else PIECE,
            _encoder.encode((claim, number, payload[start : start + room_bytes])),
        )
        for number, start in enumerate(starts)
    ]


def encode_note(note: LogNote) -> bytes:
    """The payload of a note."""
    return _encoder.encode(note)


def decode_note(entry: Entry) -> LogNote:
    """What a note says. Raises JournalForeign if a later version wrote it."""
    note = _decoded(_notes, entry)
    if note.format != FORMAT:
        raise JournalForeign(
            f"message {entry.sequence} has format {note.format}, and this version knows {FORMAT}: use the version that "
            "wrote it, or a later one"
        )
    return note


class Assembler:
    """Puts groups together again, from messages as they come in order."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._claim = 0
        self._start = 0

    def take(self, entry: Entry) -> tuple[int, list[StoredCommit]] | None:
        """The group that this message completes, with the number of the message that it began with; None if none.

        Pieces that something else follows belong to a group that was given up: they count for nothing.
        """
        if entry.kind == GROUP:
            self._pieces.clear()
            return entry.sequence, _stored(_decoded(_groups, entry))
        if entry.kind not in (PIECE, END):
            self._pieces.clear()
            return None
        piece = _decoded(_pieces, entry)
        if piece.number == 0:
            self._pieces.clear()
            self._claim, self._start = piece.claim, entry.sequence
        if piece.number != len(self._pieces) or piece.claim != self._claim:
            # Its beginning is not there: dropped, or before where the reader began.
            self._pieces.clear()
            return None
        self._pieces.append(piece.body)
        if entry.kind == PIECE:
            return None
        whole = Entry(entry.sequence, GROUP, b"".join(self._pieces))
        self._pieces.clear()
        return self._start, _stored(_decoded(_groups, whole))


def describe(identity: JournalIdentity) -> dict[str, str]:
    """Whose log a stream is, as its metadata says it."""
    found = {
        "stigmergy.format": str(FORMAT),
        "stigmergy.fleet": identity.fleet,
        "stigmergy.shards": str(identity.shards),
        "stigmergy.incarnation": str(identity.incarnation),
        "stigmergy.shard_by": identity.shard_by,
    }
    if identity.part is not None:
        found["stigmergy.part"] = f"{identity.part[0]}-{identity.part[1]}"
    return found


def read_identity(metadata: Mapping[str, str], where: str) -> JournalIdentity:
    """Whose log it is. Raises JournalForeign if it is none of ours, or of a later version."""
    form = metadata.get("stigmergy.format")
    if form != str(FORMAT):
        what = (
            "is no log of stigmergy" if form is None else f"is a log of format {form}, and this version knows {FORMAT}"
        )
        raise JournalForeign(f"{where} {what}; name another server or fleet, or use the version that made it")
    try:
        first, _, last = metadata.get("stigmergy.part", "").partition("-")
        return JournalIdentity(
            fleet=metadata["stigmergy.fleet"],
            shards=int(metadata["stigmergy.shards"]),
            incarnation=int(metadata["stigmergy.incarnation"]),
            part=(int(first), int(last)) if first else None,
            shard_by=metadata.get("stigmergy.shard_by", ""),
        )
    except (KeyError, ValueError) as error:
        raise JournalForeign(f"{where}: its metadata was changed ({error}); restore it, or name another") from None


def head_of_note(note: ShardNote) -> Head:
    """The head that a note tells of."""
    return Head(shard=note.shard, position=note.position, epoch=note.epoch, digest=note.digest)


def _stored(group: LogGroup) -> list[StoredCommit]:
    last = len(group.commits) - 1
    return [
        StoredCommit(sealed_of(row), group.signature if number == last else None)
        for number, row in enumerate(group.commits)
    ]


def _decoded(decoder: msgspec.msgpack.Decoder[T], entry: Entry) -> T:
    try:
        return decoder.decode(entry.payload)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(
            f"message {entry.sequence} of the log is no {entry.kind} ({error}); somebody else has written to the "
            "stream, or it is damaged: restore from a copy"
        ) from None
