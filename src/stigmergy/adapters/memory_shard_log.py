"""Logs of shards in memory that several may follow and one at a time writes to: for tests and for the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from stigmergy.adapters.memory import MemoryJournal, MemoryStore
from stigmergy.core.commit import Group
from stigmergy.core.errors import JournalConflict, LinkDown
from stigmergy.ports.following import READ_COUNT_MAX, Grown
from stigmergy.ports.journal import Journal, JournalIdentity, SnapshotPart, StoredCommit


class MemoryShard:
    """What survives all workers: the log of one shard, how often it was claimed, and who follows it."""

    def __init__(self, identity: JournalIdentity) -> None:
        self.store = MemoryStore(identity)
        self.claims = 0
        self.followers: list[Grown] = []


class _ClaimedJournal(MemoryJournal):
    """Written by whoever has claimed last."""

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
