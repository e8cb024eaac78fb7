"""Exports entries of a log for other tools: by agent, type, time and position, in the order of their time.

Nothing is collected: an export needs the memory of a few commits per shard, and no classes. For a commit without
matches it yields None, so that a node can go on in between.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct, structs

from stigmergy.audit.directories import Directories, LiveReading
from stigmergy.audit.listing import LogEntry, list_commit
from stigmergy.base.errors import Bug, ConfigError, JournalForeign
from stigmergy.journal.port import Journal, JournalIdentity, JournalSize, SnapshotPart, StoredCommit, last_before
from stigmergy.shard.commit import Commit, Group, Head, open_commit
from stigmergy.shard.commit_reader import Reading


class Selection(Struct, frozen=True):
    """Which entries. Positions are those of a shard; times are inclusive; a type is a tag, with or without version."""

    agent: str | None = None
    type: str | None = None
    shard: int | None = None
    first: int | None = None
    last: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None

    def takes(self, entry: LogEntry) -> bool:
        """Whether this entry is wanted. An effect is wanted with the event that asked for it."""
        if self.agent is not None and entry.agent != self.agent:
            return False
        if (self.since_ns is not None and entry.time_ns < self.since_ns) or (
            self.until_ns is not None and entry.time_ns > self.until_ns
        ):
            return False
        return self.type is None or self.type in (entry.type, entry.type.partition("@")[0])


class Export:
    """One export of one journal."""

    def __init__(self, journal: Journal, selection: Selection, live: LiveReading | None = None) -> None:
        self._journal = journal
        self._directories = Directories(journal, live)
        self._selection = selection
        self._ranges = self._find_ranges()
        self.commits_read = 0

    @property
    def commits_expected(self) -> int:
        """How many commits will be looked at."""
        return sum(last - first + 1 for _, first, last in self._ranges)

    def commits(self) -> Iterator[Commit]:
        """All commits that have wanted entries, and some that have none, in the order of their time."""
        lanes = [self._commits(*one) for one in self._ranges]
        for commit in heapq.merge(*lanes, key=_written_at):
            self.commits_read += 1
            yield commit

    def reading(self, commit: Commit) -> Reading:
        """What it takes to read the records in a commit; ask for each commit, in order."""
        return self._directories.of(commit)

    def entries(self) -> Iterator[LogEntry | None]:
        """The wanted entries, oldest first."""
        for commit in self.commits():
            wanted, found = self._selection, False
            reading = self._directories.of(commit)
            for entry in list_commit(commit, reading, agent=wanted.agent, type=wanted.type):
                if wanted.takes(entry):
                    found = True
                    yield entry
            if not found:
                yield None

    def _find_ranges(self) -> list[tuple[int, int, int]]:
        """Per shard from where to where. Entries are as old as their commit at most, and as young as the one before."""
        journal, wanted = self._journal, self._selection
        kept = journal.identity.owned
        if wanted.shard is not None and wanted.shard not in kept:
            raise ConfigError(f"shard {wanted.shard}: this journal has shards {kept[0]} to {kept[-1]}")
        only: Sequence[int] = kept if wanted.shard is None else (wanted.shard,)
        if wanted.agent is not None:
            only = journal.identity.shards_with(wanted.agent)
        found: list[tuple[int, int, int]] = []
        for head in journal.heads():
            if head.shard not in only:
                continue
            first, last = journal.first_position(head.shard), head.position
            first, last = max(first, wanted.first or 1), min(last, wanted.last or last)
            if first <= last and wanted.since_ns is not None:
                first = last_before(journal, head.shard, first, last, wanted.since_ns) + 1
            if first <= last and wanted.until_ns is not None:
                # The commit behind the last one by then may have begun before it.
                last = min(last, last_before(journal, head.shard, first, last, wanted.until_ns + 1) + 1)
            if first <= last:
                found.append((head.shard, first, last))
        return found

    def _commits(self, shard: int, first: int, last: int) -> Iterator[Commit]:
        for stored in islice(self._journal.read(shard, after=first - 1), last - first + 1):
            yield open_commit(stored.sealed.body)


def _written_at(commit: Commit) -> Any:
    return (commit.runs[-1].time_ns, commit.shard)


def flat_row(entry: LogEntry, encode_json: Any) -> dict[str, Any]:
    """An entry as one row of a table: what has parts is JSON in a column of text."""
    return {
        "shard": entry.shard,
        "position": entry.position,
        "index": entry.index,
        "kind": entry.kind,
        "time_ns": entry.time_ns,
        "agent": entry.agent,
        "type": entry.type,
        "fields": encode_json(entry.fields).decode(),
        "source": entry.cause.source,
        "command": entry.cause.command,
        "command_id": entry.cause.command_id,
        "effects": encode_json(entry.effects).decode(),
        "refused": entry.refused,
    }


# The parts of a journal, read as one: for listing, exporting and history. It cannot be written,
# and it is not verified as one: each part has its own signers and signatures.


class JoinedJournal:
    """The Journal port over several parts, for reading."""

    def __init__(self, parts: Sequence[Journal]) -> None:
        self._parts = tuple(parts)
        identities = [part.identity for part in parts]
        names = {(identity.fleet, identity.shards, identity.shard_by) for identity in identities}
        owned = [shard for identity in identities for shard in identity.owned]
        if len(names) != 1 or owned != list(range(identities[0].shards)):
            raise JournalForeign("these parts do not make up one journal; look at each of them, or restore a copy")
        self._identity = structs.replace(identities[0], part=None)
        self._by_shard = {shard: part for part in self._parts for shard in part.identity.owned}

    @property
    def identity(self) -> JournalIdentity:
        return self._identity

    def heads(self) -> list[Head]:
        return [head for part in self._parts for head in part.heads()]

    def first_position(self, shard: int) -> int:
        return self._part(shard).first_position(shard)

    def read(self, shard: int, after: int = 0) -> Iterator[StoredCommit]:
        return self._part(shard).read(shard, after)

    def snapshots(self, shard: int) -> list[int]:
        return self._part(shard).snapshots(shard)

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        return self._part(shard).read_snapshot(shard, position)

    def size(self) -> JournalSize:
        sizes = [part.size() for part in self._parts]
        return JournalSize(
            commits=sum(size.commits for size in sizes),
            bytes_used=sum(size.bytes_used for size in sizes),
            bytes_free=min(size.bytes_free for size in sizes),
        )

    async def append(self, group: Group) -> None:
        raise _read_only()

    async def put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        raise _read_only()

    async def drop_snapshot(self, shard: int, position: int) -> None:
        raise _read_only()

    async def drop(self, shard: int, upto: int) -> None:
        raise _read_only()

    async def close(self) -> None:
        for part in self._parts:
            await part.close()

    def _part(self, shard: int) -> Journal:
        part = self._by_shard.get(shard)
        if part is None:
            raise ConfigError(f"shard {shard}: this journal has shards 0 to {self._identity.shards - 1}")
        return part


def _read_only() -> Bug:
    return Bug("parts that are read as one journal cannot be written; open each of them")
