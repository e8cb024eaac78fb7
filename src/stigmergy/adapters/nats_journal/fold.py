"""Where the shards of a log stand: a fold of its messages. Pure. Begin it from a note, or from the log's beginning."""

from __future__ import annotations

from collections.abc import Mapping

from stigmergy.adapters.nats_journal.messages import (
    CLAIMED,
    FORMAT,
    NOTE,
    Assembler,
    Entry,
    LogNote,
    ShardNote,
    decode_note,
    head_of_note,
)
from stigmergy.core.commit import Head, head_of
from stigmergy.core.errors import JournalCorrupt
from stigmergy.ports.journal import StoredCommit


class LogState:
    """Heads and beginnings of all shards of a log, up to one of its messages."""

    def __init__(self) -> None:
        self.sequence = 0
        """Of the last message that was taken."""
        self.heads: dict[int, Head] = {}
        self.firsts: dict[int, int] = {}
        """The lowest position of each shard that has commits."""
        self.first_sequences: dict[int, int] = {}
        """The message that it begins with."""
        self.claim = 0
        """The number of the last claim."""
        self.owner = ""
        """Who claimed last."""
        self.since_note_count = 0
        self.since_note_bytes = 0
        self._assembler = Assembler()

    @property
    def lowest_sequence(self) -> int:
        """No message before this one is needed."""
        return min(self.first_sequences.values(), default=self.sequence + 1)

    @property
    def commits(self) -> int:
        """How many are kept, in all."""
        return sum(head.position - self.firsts[shard] + 1 for shard, head in self.heads.items())

    def begin_at(self, sequence: int) -> None:
        """The log begins with this message: what was before was dropped."""
        self.sequence = sequence - 1

    def take(self, entry: Entry) -> list[StoredCommit]:
        """The next message; returns the commits that it completes."""
        if entry.sequence != self.sequence + 1:
            raise JournalCorrupt(
                f"message {entry.sequence} of the log comes behind {self.sequence}; some were deleted: restore a copy"
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

    def begin_from(self, entry: Entry) -> None:
        """Begins with what a note says."""
        self.sequence = entry.sequence
        note = decode_note(entry)
        self.claim = note.claim
        self._take_note(entry, note)

    def wrote(self, count: int, size_bytes: int) -> None:
        """So many messages of ours were added."""
        self.sequence += count
        self.since_note_count += count
        self.since_note_bytes += size_bytes

    def advance(self, moved: Mapping[int, Head], lowest: Mapping[int, int], start: int) -> None:
        """A group of ours was added: its heads, the lowest position of each of its shards, and where it begins."""
        for shard, position in lowest.items():
            if shard not in self.firsts:
                self.firsts[shard], self.first_sequences[shard] = position, start
        self.heads.update(moved)

    def dropped(self, shard: int, first: int, first_sequence: int) -> None:
        """A shard begins later from now on."""
        self.firsts[shard], self.first_sequences[shard] = first, first_sequence

    def note(self, kind: str, owner: str = "", nonce: bytes = b"") -> LogNote:
        """A note of how things stand."""
        shards = [
            ShardNote(shard, self.firsts[shard], self.first_sequences[shard], head.position, head.epoch, head.digest)
            for shard, head in sorted(self.heads.items())
        ]
        claim = 0 if kind == CLAIMED else self.claim
        return LogNote(FORMAT, kind, claim, owner, nonce, shards)

    def _take_note(self, entry: Entry, note: LogNote) -> None:
        if note.kind == CLAIMED:
            self.claim, self.owner = entry.sequence, note.owner
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
                "somebody else has written to the stream: restore from a copy"
            )
        self.heads[sealed.shard] = head_of(sealed)
