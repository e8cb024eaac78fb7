"""A journal in memory, for tests and for agents that may forget. It never touches a disk.

`MemoryJournalStore` stands for the disk: it outlives the journal that writes to it, so a test can kill a process and
start another on the same store. "Durable" here means that the store is still referenced.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from stigmergy.base.errors import (
    Bug,
    ConfigError,
    JournalConflict,
    JournalForeign,
    JournalFull,
    JournalLocked,
    JournalUnknown,
    LinkDown,
)
from stigmergy.journal.port import (
    READ_COUNT_MAX,
    Grown,
    Journal,
    JournalIdentity,
    JournalSize,
    SnapshotPart,
    StoredCommit,
    check_shard_by,
)
from stigmergy.shard.commit import Group, Head, advance, check_drop, head_of

SCHEME = "memory:"
CAPACITY_BYTES = 1 << 30
"""What a store takes by default before it says that it is full: a forgotten test must not eat the machine."""


class MemoryJournalStore:
    """What survives the death of a process: commits and snapshots of one journal, and who owns it."""

    def __init__(self, identity: JournalIdentity, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.identity = identity
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.owner: MemoryJournal | None = None
        self.commits: dict[int, list[StoredCommit]] = {}
        self.snapshots: dict[tuple[int, int], list[SnapshotPart]] = {}

    def reserve(self, size_bytes: int) -> None:
        """Takes room, or raises JournalFull and takes none."""
        if self.used_bytes + size_bytes > self.capacity_bytes:
            raise JournalFull(
                f"{size_bytes} bytes do not fit beside {self.used_bytes} of {self.capacity_bytes}; drop old commits"
            )
        self.used_bytes += size_bytes

    def renew_incarnation(self, incarnation: int) -> None:
        """Makes a copied store a journal of its own."""
        self.identity = msgspec.structs.replace(self.identity, incarnation=incarnation)


class MemoryJournal:
    """The Journal port over a MemoryJournalStore. Each write gives way to the event loop once, as a disk would."""

    def __init__(self, store: MemoryJournalStore) -> None:
        if store.owner is not None:
            raise JournalLocked("the store belongs to a journal that is open; close that one, or reopen it")
        store.owner = self
        self._store = store
        self._heads = {shard: head_of(kept[-1].sealed) for shard, kept in store.commits.items() if kept}
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @property
    def identity(self) -> JournalIdentity:
        return self._store.identity

    def reopen(self) -> MemoryJournal:
        """As if the process had died and another one had started: this journal is dead, the new one has the store."""
        if self._store.owner is self:
            self._store.owner = None
        return MemoryJournal(self._store)

    def heads(self) -> list[Head]:
        self._check_open()
        return [self._heads[shard] for shard in sorted(self._heads)]

    def first_position(self, shard: int) -> int:
        kept = self._kept(shard)
        return kept[0].sealed.position if kept else 1

    def read(self, shard: int, after: int = 0) -> Iterator[StoredCommit]:
        position = max(after + 1, self.first_position(shard))
        while kept := self._kept(shard):
            first = kept[0].sealed.position
            if position < first:
                raise Bug(f"shard {shard}: position {position} was dropped while it was to be read")
            if position > kept[-1].sealed.position:
                return
            yield kept[position - first]
            position += 1

    async def append(self, group: Group) -> None:
        self._begin()
        try:
            moved = advance(self._heads, group, self.identity.owned)
            await asyncio.sleep(0)
            self._check_owner()
            self._store.reserve(sum(len(sealed.body) for sealed in group.commits))
            for sealed in group.commits:
                signature = group.signature if sealed is group.commits[-1] else None
                self._store.commits.setdefault(sealed.shard, []).append(StoredCommit(sealed, signature))
            self._heads.update(moved)
        finally:
            self._idle.set()

    async def put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        self._begin()
        try:
            await asyncio.sleep(0)
            self._check_owner()
            kept = self._store.snapshots.get((shard, position), [])
            replaced_bytes = 0
            if parts and parts[0].part == 0:
                replaced_bytes = sum(len(part.body) for part in kept)
                kept = []
            if [part.part for part in parts] != list(range(len(kept), len(kept) + len(parts))):
                raise Bug(f"shard {shard}, snapshot {position}: parts must follow the {len(kept)} that are stored")
            self._store.reserve(sum(len(part.body) for part in parts) - replaced_bytes)
            if parts:
                self._store.snapshots[shard, position] = [*kept, *parts]
        finally:
            self._idle.set()

    def snapshots(self, shard: int) -> list[int]:
        self._check_open()
        return sorted(position for kept_shard, position in self._store.snapshots if kept_shard == shard)

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        self._check_open()
        return iter(self._store.snapshots.get((shard, position), ()))

    async def drop_snapshot(self, shard: int, position: int) -> None:
        self._begin()
        try:
            await asyncio.sleep(0)
            self._check_owner()
            self._forget_snapshot(shard, position)
        finally:
            self._idle.set()

    async def drop(self, shard: int, upto: int) -> None:
        self._begin()
        try:
            check_drop(self._heads, shard, upto)
            await asyncio.sleep(0)
            self._check_owner()
            kept = self._store.commits.get(shard, [])
            count = bisect_right(kept, upto, key=lambda stored: stored.sealed.position)
            self._store.used_bytes -= sum(len(stored.sealed.body) for stored in kept[:count])
            del kept[:count]
        finally:
            self._idle.set()

    def size(self) -> JournalSize:
        self._check_open()
        return JournalSize(
            commits=sum(len(kept) for kept in self._store.commits.values()),
            bytes_used=self._store.used_bytes,
            bytes_free=self._store.capacity_bytes - self._store.used_bytes,
        )

    async def close(self) -> None:
        await self._idle.wait()
        self._closed = True
        if self._store.owner is self:
            self._store.owner = None

    def _forget_snapshot(self, shard: int, position: int) -> None:
        parts = self._store.snapshots.pop((shard, position), [])
        self._store.used_bytes -= sum(len(part.body) for part in parts)

    def _kept(self, shard: int) -> list[StoredCommit]:
        self._check_open()
        return self._store.commits.get(shard, [])

    def _check_open(self) -> None:
        if self._closed:
            raise Bug("the journal is closed; open it again")
        self._check_owner()

    def _check_owner(self) -> None:
        """A journal whose store was reopened is a dead process: what it had under way is not kept."""
        if self._store.owner is not self:
            raise JournalUnknown("the store has been reopened by another journal; this one is dead")

    def _begin(self) -> None:
        self._check_open()
        if not self._idle.is_set():
            raise Bug("a write is under way; wait for it before the next one")
        self._idle.clear()


def open_journal(url: str, identity: JournalIdentity, *, store: MemoryJournalStore | None = None) -> MemoryJournal:
    """Opens a fresh store, or the one given, which must belong to the same fleet and number of shards."""
    if not url.startswith(SCHEME):
        raise ConfigError(f"journal URL {url!r}: expected {SCHEME!r}")
    if store is None:
        store = MemoryJournalStore(identity)
    known, wanted = ((one.fleet, one.shards, one.part) for one in (store.identity, identity))
    if known != wanted:
        raise JournalForeign(
            f"the store belongs to fleet {known[0]!r} with {known[1]} shards{_some(known[2])}, not to "
            f"{wanted[0]!r} with {wanted[1]}{_some(wanted[2])}; name the right one"
        )
    check_shard_by(store.identity.shard_by, identity.shard_by, "the store")
    return MemoryJournal(store)


def _some(part: tuple[int, int] | None) -> str:
    return "" if part is None else f", of which it keeps {part[0]} to {part[1]}"


# Logs of shards in memory, for tests and the simulator: any number of followers, one writer at a time.


class MemoryShard:
    """What survives all workers: the log of one shard, how often it was claimed, and who follows it."""

    def __init__(self, identity: JournalIdentity) -> None:
        self.store = MemoryJournalStore(identity)
        self.claims = 0
        self.followers: list[Grown] = []


class _ClaimedJournal(MemoryJournal):
    """Written by the last claimant."""

    def __init__(self, shard: MemoryShard, reach: MemoryShardLog) -> None:
        super().__init__(shard.store)
        self._shard = shard
        self._reach = reach

    async def append(self, group: Group) -> None:
        self._reach.check()
        await super().append(group)
        for grown in list(self._shard.followers):
            grown()

    def _check_owner(self) -> None:
        if self._store.owner is not self:
            raise JournalConflict("the shard was claimed by another owner; this one has no say any more")


class MemoryShardLog:
    """The ShardLog port over a MemoryShard."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self._grown: list[Grown] = []
        self.is_cut = False
        """Set it, and nothing gets through any more: LinkDown."""

    @property
    def identity(self) -> JournalIdentity:
        return self._shard.store.identity

    async def first_position(self) -> int:
        kept = self._commits()
        return kept[0].sealed.position if kept else 1

    async def snapshots(self) -> list[int]:
        self.check()
        return sorted(position for _, position in self._shard.store.snapshots)

    async def read_snapshot(self, position: int) -> Sequence[SnapshotPart]:
        self.check()
        return list(self._shard.store.snapshots.get((self.identity.owned[0], position), ()))

    async def read(self, after: int, count_max: int = READ_COUNT_MAX) -> Sequence[StoredCommit]:
        kept = self._commits()
        if not kept:
            return []
        start = max(0, after + 1 - kept[0].sealed.position)
        return kept[start : start + min(count_max, READ_COUNT_MAX)]

    def watch(self, grown: Grown) -> None:
        self._grown.append(grown)
        self._shard.followers.append(grown)

    async def claim(self, after: int, owner: str) -> tuple[Journal, int]:
        kept = self._commits()
        end = kept[-1].sealed.position if kept else 0
        if end != after:
            raise JournalConflict(f"the log ends at {end}, not at {after}; read on, then claim again")
        self._shard.claims += 1
        self._shard.store.owner = None
        return _ClaimedJournal(self._shard, self), self._shard.claims

    async def close(self) -> None:
        for grown in self._grown:
            self._shard.followers.remove(grown)
        self._grown.clear()

    def check(self) -> None:
        """Raises LinkDown while the log is out of reach."""
        if self.is_cut:
            raise LinkDown("the log cannot be reached; try again")

    def _commits(self) -> list[StoredCommit]:
        self.check()
        return self._shard.store.commits.get(self.identity.owned[0], [])
