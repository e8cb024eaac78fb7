"""The journal on JetStream: the port's methods over a claimed log. Open or claim a log to get one.

Writes run on the caller's event loop, one at a time, each after the message before it. Heads, sizes and the list of
snapshots, which the port needs at once, are kept here; reads go through a link in a thread and block their caller, like
reads of a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, field

from stigmergy.base.errors import (
    Bug,
    JournalConflict,
    JournalCorrupt,
    JournalFull,
    JournalUnknown,
    LinkDown,
    StigmergyError,
)
from stigmergy.journal.port import JournalIdentity, JournalSize, SnapshotPart, StoredCommit
from stigmergy.nats.address import NatsAddress
from stigmergy.nats.journal.messages import (
    DROPPED,
    INDEXED,
    NOTE,
    Assembler,
    LogMessage,
    LogState,
    encode_group,
    encode_note,
    split_group,
)
from stigmergy.nats.journal.snapshots import Catalogue, SnapshotStore, StoredSnapshot, check_parts
from stigmergy.nats.journal.stream import READ_WITHIN_S, TRY_S, WRITE_WITHIN_S, LogPlace, LogStream
from stigmergy.nats.link import NatsLink
from stigmergy.nats.threaded import BlockingLink
from stigmergy.shard.commit import Group, Head, advance, check_drop

# A cache of commits: the newest that we wrote, and those that were read on the way to others.

RECENT_BYTES_MAX = 2 * 1024 * 1024
"""For one log. A worker may own many."""
AHEAD_BYTES_MAX = 64 * 1024 * 1024
"""While a node starts, or a log is inspected."""


class Recent:
    """The end of the written log, as far as it fits: a follower close behind needs no server."""

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: dict[tuple[int, int], StoredCommit] = {}
        self._order: deque[tuple[int, int]] = deque()

    def take(self, group: Group) -> None:
        """Adds a durable group."""
        last = group.commits[-1]
        for sealed in group.commits:
            key = (sealed.shard, sealed.position)
            self._kept[key] = StoredCommit(sealed, group.signature if sealed is last else None)
            self._order.append(key)
            self._bytes += len(sealed.body)
        while self._bytes > self._bytes_max:
            self._bytes -= len(self._kept.pop(self._order.popleft()).sealed.body)

    def find(self, shard: int, position: int) -> StoredCommit | None:
        return self._kept.get((shard, position))


class Ahead:
    """Commits of other shards that came with those of one shard: they are read next, and need not be fetched again.

    Each is returned once. Those that do not fit are fetched again.
    """

    def __init__(self, bytes_max: int = AHEAD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: dict[tuple[int, int], StoredCommit] = {}

    def put(self, stored: StoredCommit) -> None:
        """Adds a commit that nobody has asked for yet."""
        sealed = stored.sealed
        key = (sealed.shard, sealed.position)
        if key not in self._kept and self._bytes + len(sealed.body) <= self._bytes_max:
            self._kept[key] = stored
            self._bytes += len(sealed.body)

    def take(self, shard: int, position: int) -> StoredCommit | None:
        stored = self._kept.pop((shard, position), None)
        if stored is not None:
            self._bytes -= len(stored.sealed.body)
        return stored

    def clear(self) -> None:
        """Empties it, when no more whole logs are read."""
        self._kept.clear()
        self._bytes = self._bytes_max = 0


T = TypeVar("T")
NOTE_EVERY_COUNT = 1_000
NOTE_EVERY_BYTES = 8 * 1024 * 1024
"""The most that is read of a log to find its end, or a place in it."""
FREE_BYTES_UNKNOWN = 1 << 50
"""Reported as free where we see no limit."""
LIVE_READ_S = 2.0
"""The longest that a read may block the event loop of a running node; then it raises LinkDown, and the reader tries
again later. Before the first write nothing runs that it could block."""
LINK_WITHIN_S = 3.0
CLOSE_S = 5.0


class LogOwnership(Struct):
    """Whether we own a log, as far as we know. The link that announces it may read this on another thread."""

    is_over: bool = False


class OpenedLog(Struct):
    """The result of opening or claiming a log; the journal takes it over."""

    place: LogPlace
    address: NatsAddress
    identity: JournalIdentity
    state: LogState
    catalogue: Catalogue
    bytes_used: int
    bytes_max: int
    """The limit of the stream or the account; 0 if there is none."""
    epoch: int
    """0 for one that only reads."""
    let_go: Callable[[], Awaitable[None]] | None = None
    """Ends the announcement that we are the owner."""
    ownership: LogOwnership = field(default_factory=LogOwnership)


class SharedReader:
    """A link in a thread for several journals; closed with the last of them."""

    def __init__(self, reader: BlockingLink) -> None:
        self._reader = reader
        self.users = 1

    def run(self, work: Callable[[NatsLink], Awaitable[T]], within_s: float) -> T:
        return self._reader.run(work, within_s)

    def close(self) -> None:
        """Releases one use."""
        self.users -= 1
        if self.users <= 0:
            self._reader.close()


class NatsJournal:
    """The Journal port on a stream. Reads also raise LinkDown if no server answers."""

    write_within_s = WRITE_WITHIN_S + LINK_WITHIN_S + 2 * TRY_S
    """How long a write may take before it counts as failed: longer than the election of a new leader."""

    def __init__(
        self, opened: OpenedLog, *, link: NatsLink | None = None, reader: BlockingLink | SharedReader | None = None
    ) -> None:
        """On a shared link, or on its own. A given `reader` is closed with the journal."""
        self._opened = opened
        self._state = opened.state
        self._catalogue = opened.catalogue
        self._bytes_used = opened.bytes_used
        self._link = link
        self._owns_link = link is None
        self._reader = reader
        self._recent = Recent()
        self._ahead = Ahead()
        self._read_within_s = READ_WITHIN_S
        self._writing: asyncio.Task[None] | None = None
        self._failure: JournalUnknown | JournalConflict | None = None
        self._closed = False

    # ------------------------------------------------------------------ state

    @property
    def identity(self) -> JournalIdentity:
        return self._opened.identity

    @property
    def epoch(self) -> int:
        """The epoch that we write with."""
        return self._opened.epoch

    def heads(self) -> list[Head]:
        self._check_open()
        return [self._state.heads[shard] for shard in sorted(self._state.heads)]

    def first_position(self, shard: int) -> int:
        self._check_open()
        return self._state.firsts.get(shard, 1)

    def snapshots(self, shard: int) -> list[int]:
        self._check_open()
        return sorted(self._catalogue.get(shard, {}))

    def size(self) -> JournalSize:
        self._check_open()
        limit = self._opened.bytes_max
        free = max(0, limit - self._bytes_used) if limit else FREE_BYTES_UNKNOWN
        return JournalSize(commits=self._state.commits, bytes_used=self._bytes_used, bytes_free=free)

    # ------------------------------------------------------------------ reading

    def read(self, shard: int, after: int = 0) -> Iterator[StoredCommit]:
        position = max(after + 1, self.first_position(shard))
        sequence = 0
        assembler = Assembler()
        while True:
            self._check_kept(shard, position)
            head = self._state.heads.get(shard)
            if head is None or position > head.position:
                return
            known = self._recent.find(shard, position) or self._ahead.take(shard, position)
            if known is not None:
                position, sequence = position + 1, 0
                yield known
                continue
            sequence = sequence or self._blocking(partial(self._start_of, shard, position - 1))
            entries = self._blocking(partial(self._fetch, sequence))
            sequence = self._next(shard, position, sequence, entries)
            for entry in entries:
                for stored in (assembler.take(entry) or (0, []))[1]:
                    if stored.sealed.shard != shard:
                        self._ahead.put(stored)
                    if stored.sealed.shard != shard or stored.sealed.position < position:
                        continue
                    self._check_kept(shard, position)
                    if stored.sealed.position != position:
                        raise JournalCorrupt(f"shard {shard}: position {position} is missing; restore from a copy")
                    position += 1
                    yield stored

    def _check_kept(self, shard: int, position: int) -> None:
        if position < self.first_position(shard):
            raise Bug(f"shard {shard}: position {position} was dropped while it was to be read")

    def _next(self, shard: int, position: int, sequence: int, entries: Sequence[LogMessage]) -> int:
        """The sequence to read on from. The first message must be the one asked for: else it is gone."""
        if entries[0].sequence != sequence:
            self._check_kept(shard, position)
            raise JournalCorrupt(
                f"{self._opened.place.stream} begins at message {entries[0].sequence}, expected {sequence}; "
                "another program has deleted messages: restore from a copy"
            )
        return entries[-1].sequence + 1

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        self._check_open()
        stored = self._catalogue.get(shard, {}).get(position)
        for number in range(stored.parts if stored is not None else 0):
            assert stored is not None
            yield self._blocking(partial(self._read_part, shard, position, stored.epoch, number))

    async def _start_of(self, shard: int, after: int, link: NatsLink) -> int:
        log = LogStream(link, self._opened.place, self._read_within_s)
        first = self._state.first_sequences[shard]
        return await log.start_of(shard, after, first, self._state.sequence)

    async def _fetch(self, sequence: int, link: NatsLink) -> list[LogMessage]:
        log = LogStream(link, self._opened.place, self._read_within_s)
        return await log.fetch_some(sequence, self._state.sequence)

    async def _read_part(self, shard: int, position: int, epoch: int, number: int, link: NatsLink) -> SnapshotPart:
        return await SnapshotStore(link, self._opened.place.name).read(shard, position, epoch, number)

    def _blocking(self, work: Callable[[NatsLink], Awaitable[T]]) -> T:
        self._check_open()
        if self._reader is None:
            name = f"{self._opened.place.stream} reads"
            self._reader = BlockingLink(self._opened.address, name=name, open_s=self._read_within_s)
        return self._reader.run(work, 2 * self._read_within_s)

    # ------------------------------------------------------------------ writing

    def append(self, group: Group) -> Awaitable[None]:
        try:
            self._check_writable()
            moved = advance(self._state.heads, group, self.identity.owned)
            return self._begin(self._append(group, moved))
        except StigmergyError as error:
            return _refused(error)

    async def put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        self._check_writable()
        if not parts:
            return
        if not check_parts(parts, self._catalogue.get(shard, {}).get(position), self.epoch):
            raise Bug(f"shard {shard}, snapshot {position}: parts must follow those that are stored")
        await self._begin(self._put_snapshot(shard, position, tuple(parts)))

    async def drop_snapshot(self, shard: int, position: int) -> None:
        self._check_writable()
        await self._begin(self._drop_snapshot(shard, position))

    async def drop(self, shard: int, upto: int) -> None:
        self._check_writable()
        check_drop(self._state.heads, shard, upto)
        await self._begin(self._drop(shard, upto))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._writing is not None:
                await asyncio.wait([self._writing])
        finally:
            # Even if nobody waits for an unanswered write: else we would announce our ownership forever.
            await self._let_go()

    async def _let_go(self) -> None:
        self._opened.ownership.is_over = True
        let_go, self._opened.let_go = self._opened.let_go, None
        if let_go is not None:
            with contextlib.suppress(LinkDown, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await let_go()
        if self._owns_link and self._link is not None:
            await self._link.close()
        if self._reader is not None:
            await asyncio.to_thread(self._reader.close)  # a server that hangs would block the event loop

    async def _append(self, group: Group, moved: dict[int, Head]) -> None:
        self._read_within_s = LIVE_READ_S
        self._ahead.clear()
        log = await self._log()
        if self._state.since_note_count >= NOTE_EVERY_COUNT or self._state.since_note_bytes >= NOTE_EVERY_BYTES:
            # Without room for a note, the next reader only has more to read.
            with contextlib.suppress(JournalFull):
                await self._write_note(log, INDEXED)
        start = self._state.sequence + 1
        payload = encode_group(self.epoch, group)
        for kind, piece in split_group(self.epoch, payload, log.link.max_payload_bytes):
            await self._write(log, kind, piece)
        lowest: dict[int, int] = {}
        for sealed in group.commits:
            lowest.setdefault(sealed.shard, sealed.position)
        self._state.advance(moved, lowest, start)
        self._recent.take(group)
        with contextlib.suppress(LinkDown):
            # A hint. A follower that misses it polls a little later.
            await log.link.tell(self._opened.place.grown_subject, str(self._state.sequence).encode())

    async def _write(self, log: LogStream, kind: str, payload: bytes) -> None:
        await log.write(kind, payload, self._state.sequence)
        self._state.wrote(1, len(payload))
        self._bytes_used += len(payload)

    async def _write_note(self, log: LogStream, kind: str) -> None:
        await self._write(log, NOTE, encode_note(self._state.note(kind)))
        self._state.since_note_count = self._state.since_note_bytes = 0

    async def _put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        snapshot_store, kept = (
            SnapshotStore((await self._log()).link, self._opened.place.name),
            self._catalogue.setdefault(shard, {}),
        )
        if parts[0].part == 0 and position in kept:
            await snapshot_store.drop(shard, position, self.epoch)
            del kept[position]
        for part in parts:
            # Also part of a failed put may be stored.
            kept[position] = StoredSnapshot(self.epoch, part.part + 1)
            await snapshot_store.put(shard, position, self.epoch, part)

    async def _drop_snapshot(self, shard: int, position: int) -> None:
        snapshot_store = SnapshotStore((await self._log()).link, self._opened.place.name)
        await snapshot_store.drop(shard, position, self.epoch)
        self._catalogue.get(shard, {}).pop(position, None)

    async def _drop(self, shard: int, upto: int) -> None:
        if shard not in self._state.heads or upto < self._state.firsts[shard]:
            return
        log = await self._log()
        sequence = await find_group(log, self._state, shard, upto + 1)
        self._state.dropped(shard, upto + 1, sequence)
        is_noted = False
        with contextlib.suppress(JournalFull):
            await self._write_note(log, DROPPED)
            is_noted = True
        await log.purge(self._state.lowest_sequence)
        if not is_noted:
            # There may be room now. If not, the next opening finds the log's beginning by itself.
            with contextlib.suppress(JournalFull):
                await self._write_note(log, DROPPED)
        self._bytes_used = int((await log.info()).state["bytes"])

    async def _log(self) -> LogStream:
        """The stream, on a link of the current event loop."""
        if self._link is None:
            self._link = NatsLink(self._opened.address, name=f"{self._opened.place.stream} writes")
            self._link.start()
        if not self._link.is_up:
            # Wait for the link: the caller needs its payload limit next. If it stays down, the write itself waits.
            with contextlib.suppress(StigmergyError):
                await self._link.wait_up(LINK_WITHIN_S)
        return LogStream(self._link, self._opened.place)

    def _begin(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """A write that has begun is finished, even if its caller is cancelled."""
        if self._writing is not None:
            work.close()
            raise Bug("a write is under way; wait for it before the next one")
        self._writing = asyncio.get_running_loop().create_task(_translating_errors(work))
        self._writing.add_done_callback(self._finished)
        return asyncio.shield(self._writing)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        error = JournalUnknown("the write was cancelled") if task.cancelled() else task.exception()
        if isinstance(error, JournalUnknown | JournalConflict):
            self._failure = error
            # Another owner may have the log by now: stop announcing that it is ours.
            self._opened.ownership.is_over = True

    # ------------------------------------------------------------------ checks

    def _check_open(self) -> None:
        if self._closed:
            raise Bug("the journal is closed; open it again")

    def _check_writable(self) -> None:
        self._check_open()
        if not self.epoch:
            raise Bug("the journal is open for reading only")
        if self._writing is not None:
            raise Bug("a write is under way; wait for it before the next one")
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))


async def find_group(log: LogStream, state: LogState, shard: int, position: int) -> int:
    """The first message of the group with this commit."""
    sequence = await log.start_of(shard, position - 1, state.first_sequences[shard], state.sequence)
    assembler = Assembler()
    while sequence <= state.sequence:
        for entry in await log.fetch_some(sequence, state.sequence):
            sequence = entry.sequence + 1
            start, commits = assembler.take(entry) or (0, [])
            if any(one.sealed.shard == shard and one.sealed.position == position for one in commits):
                return start
    raise JournalCorrupt(f"shard {shard}: position {position} is not in the log; restore from a copy")


async def _translating_errors(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except LinkDown as error:
        raise JournalUnknown(f"{error}; a restart finds out what was written") from None


def _refused(error: StigmergyError) -> asyncio.Future[None]:
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refused.set_exception(error)
    return refused
