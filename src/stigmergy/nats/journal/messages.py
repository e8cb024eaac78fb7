"""The messages of a log on JetStream, byte by byte. Pure. docs/formats.md describes them.

A log is a stream. A group is one message, or, if it is larger than the server accepts, several pieces that count only
with the last. Notes between them record who has claimed the log, where shards begin after a drop, and at intervals the
position of each shard, so that nobody has to read a whole log to find its end or a place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from stigmergy.base.errors import JournalCorrupt, JournalForeign
from stigmergy.journal.port import JournalIdentity, StoredCommit
from stigmergy.shard.commit import CommitRow, Group, Head, Signature, head_of, row_of, sealed_of

T = TypeVar("T")
FORMAT = 1
GROUP = "group"
PIECE = "piece"
END = "end"
NOTE = "note"
KINDS = (GROUP, PIECE, END, NOTE)
"""The kinds of messages: the last token of their subject."""
CLAIMED = "claimed"
DROPPED = "dropped"
INDEXED = "indexed"
PIECE_ROOM_BYTES = 512
"""Room for headers and the frame of a piece, within the server's limit."""
PAYLOAD_BYTES_MIN = 4 * PIECE_ROOM_BYTES


class LogMessage(Struct, frozen=True):
    """A message of a log as read."""

    sequence: int
    kind: str
    payload: bytes


class LogCommit(CommitRow, array_like=True, frozen=True):
    """A commit, with the fields needed without decoding it."""


class LogGroup(Struct, array_like=True, frozen=True):
    """A group, and the epoch it was written with."""

    epoch: int
    commits: list[LogCommit]
    signature: Signature


class LogPiece(Struct, array_like=True, frozen=True):
    """A piece of a group that is larger than a message; pieces count from 0."""

    epoch: int
    number: int
    body: bytes


class ShardNote(Struct, array_like=True, frozen=True):
    """The position of a shard: its first kept commit, and its head."""

    shard: int
    first: int
    first_sequence: int
    """The message where its first commit begins."""
    position: int
    epoch: int
    digest: bytes


class LogNote(Struct, array_like=True, frozen=True):
    """The state of the log at this message. `kind` is why it was written."""

    format: int
    kind: str
    epoch: int
    """The epoch it was written with; 0 in a claim, which makes a new epoch: the sequence of its message."""
    owner: str
    nonce: bytes
    """Makes every claim unique, so that a claimant recognises its own."""
    shards: list[ShardNote]


_encoder = msgspec.msgpack.Encoder()
_groups = msgspec.msgpack.Decoder(LogGroup)
_pieces = msgspec.msgpack.Decoder(LogPiece)
_notes = msgspec.msgpack.Decoder(LogNote)


def encode_group(epoch: int, group: Group) -> bytes:
    return _encoder.encode((epoch, [row_of(one) for one in group.commits], group.signature))


def split_group(epoch: int, payload: bytes, payload_bytes_max: int) -> list[tuple[str, bytes]]:
    """A group as messages, each with its kind: the group itself, or its pieces."""
    room_bytes = payload_bytes_max - PIECE_ROOM_BYTES
    if len(payload) <= room_bytes:
        return [(GROUP, payload)]
    starts = range(0, len(payload), room_bytes)
    return [
        (
            END if number == len(starts) - 1 else PIECE,
            _encoder.encode((epoch, number, payload[start : start + room_bytes])),
        )
        for number, start in enumerate(starts)
    ]


def encode_note(note: LogNote) -> bytes:
    return _encoder.encode(note)


def decode_note(entry: LogMessage) -> LogNote:
    """Decodes a note. Raises JournalForeign if a later version wrote it."""
    note = _decoded(_notes, entry)
    if note.format != FORMAT:
        raise JournalForeign(
            f"message {entry.sequence} has format {note.format}, and this version knows {FORMAT}: use the version that "
            "wrote it, or a later one"
        )
    return note


class Assembler:
    """Reassembles groups from messages in order."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._epoch = 0
        self._start = 0

    def take(self, entry: LogMessage) -> tuple[int, list[StoredCommit]] | None:
        """The group that this message completes, with the sequence of its first message; None if it completes none.

        Pieces followed by something else belong to a group that was given up: they do not count.
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
            self._epoch, self._start = piece.epoch, entry.sequence
        if piece.number != len(self._pieces) or piece.epoch != self._epoch:
            # Its beginning is missing: dropped, or before the reader's start.
            self._pieces.clear()
            return None
        self._pieces.append(piece.body)
        if entry.kind == PIECE:
            return None
        whole = LogMessage(entry.sequence, GROUP, b"".join(self._pieces))
        self._pieces.clear()
        return self._start, _stored(_decoded(_groups, whole))


def describe(identity: JournalIdentity) -> dict[str, str]:
    """A stream's metadata: whose log it is."""
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
    """Whose log it is. Raises JournalForeign if it is not a log of ours, or of a later version."""
    form = metadata.get("stigmergy.format")
    if form != str(FORMAT):
        what = (
            "is not a stigmergy log" if form is None else f"is a log of format {form}, and this version knows {FORMAT}"
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
    return Head(shard=note.shard, position=note.position, epoch=note.epoch, digest=note.digest)


def _stored(group: LogGroup) -> list[StoredCommit]:
    last = len(group.commits) - 1
    return [
        StoredCommit(sealed_of(row), group.signature if number == last else None)
        for number, row in enumerate(group.commits)
    ]


def _decoded(decoder: msgspec.msgpack.Decoder[T], entry: LogMessage) -> T:
    try:
        return decoder.decode(entry.payload)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(
            f"message {entry.sequence} of the log is not a valid {entry.kind} ({error}); another program wrote to the "
            "stream, or it is damaged: restore from a copy"
        ) from None


# The position of each shard of a log: a fold of its messages. Pure. Start from a note, or from the log's beginning.


class LogState:
    """Heads and first positions of all shards of a log, up to one of its messages."""

    def __init__(self) -> None:
        self.sequence = 0
        """The last folded message."""
        self.heads: dict[int, Head] = {}
        self.firsts: dict[int, int] = {}
        """The first position of each shard that has commits."""
        self.first_sequences: dict[int, int] = {}
        """The message where that commit begins."""
        self.epoch = 0
        """The epoch of the last claim."""
        self.owner = ""
        self.since_note_count = 0
        self.since_note_bytes = 0
        self._assembler = Assembler()

    @property
    def lowest_sequence(self) -> int:
        """The first message that is still needed."""
        return min(self.first_sequences.values(), default=self.sequence + 1)

    @property
    def commits(self) -> int:
        """The number of kept commits of all shards."""
        return sum(head.position - self.firsts[shard] + 1 for shard, head in self.heads.items())

    def begin_at(self, sequence: int) -> None:
        """The log begins with this message: earlier ones were dropped."""
        self.sequence = sequence - 1

    def take(self, entry: LogMessage) -> list[StoredCommit]:
        """Folds the next message; returns the commits that it completes."""
        if entry.sequence != self.sequence + 1:
            raise JournalCorrupt(
                f"message {entry.sequence} of the log follows {self.sequence}; some were deleted: restore a copy"
            )
        self.sequence = entry.sequence
        self.since_note_count += 1
        self.since_note_bytes += len(entry.payload)
        found = self._assembler.take(entry)
        if entry.kind == NOTE:
            self._take_note(entry, decode_note(entry))
        if found is None:
            return []
        start, commits = found
        for stored in commits:
            self._move(stored, start)
        return commits

    def begin_from(self, entry: LogMessage) -> None:
        """Starts from a note."""
        self.sequence = entry.sequence
        note = decode_note(entry)
        self.epoch = note.epoch
        self._take_note(entry, note)

    def wrote(self, count: int, size_bytes: int) -> None:
        """We added this many messages."""
        self.sequence += count
        self.since_note_count += count
        self.since_note_bytes += size_bytes

    def advance(self, moved: Mapping[int, Head], lowest: Mapping[int, int], start: int) -> None:
        """We added a group: its heads, the first position of each of its shards, and its first message."""
        for shard, position in lowest.items():
            if shard not in self.firsts:
                self.firsts[shard], self.first_sequences[shard] = position, start
        self.heads.update(moved)

    def dropped(self, shard: int, first: int, first_sequence: int) -> None:
        """A shard begins later from now on."""
        self.firsts[shard], self.first_sequences[shard] = first, first_sequence

    def note(self, kind: str, owner: str = "", nonce: bytes = b"") -> LogNote:
        """A note of the current state."""
        shards = [
            ShardNote(shard, self.firsts[shard], self.first_sequences[shard], head.position, head.epoch, head.digest)
            for shard, head in sorted(self.heads.items())
        ]
        epoch = 0 if kind == CLAIMED else self.epoch
        return LogNote(FORMAT, kind, epoch, owner, nonce, shards)

    def _take_note(self, entry: LogMessage, note: LogNote) -> None:
        if note.kind == CLAIMED:
            self.epoch, self.owner = entry.sequence, note.owner
        self.heads = {one.shard: head_of_note(one) for one in note.shards}
        self.firsts = {one.shard: one.first for one in note.shards}
        self.first_sequences = {one.shard: one.first_sequence for one in note.shards}
        self.since_note_count = self.since_note_bytes = 0

    def _move(self, stored: StoredCommit, start: int) -> None:
        sealed = stored.sealed
        head = self.heads.get(sealed.shard)
        if head is None:
            self.firsts[sealed.shard], self.first_sequences[sealed.shard] = sealed.position, start
        elif sealed.position != head.position + 1:
            raise JournalCorrupt(
                f"shard {sealed.shard}: position {sealed.position} follows {head.position} in the log; "
                "another program wrote to the stream: restore from a copy"
            )
        self.heads[sealed.shard] = head_of(sealed)
