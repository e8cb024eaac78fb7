"""The port of a shard's log as several see it: everybody may follow it, one at a time may write to it.

Where a shard can move between machines, its log is in neither of them. Who is to own the shard follows its log first,
and then claims it: from that moment on whoever wrote before is refused, whatever it believes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stigmergy.ports.journal import Journal, JournalIdentity, SnapshotPart, StoredCommit

READ_COUNT_MAX = 512
"""Commits that one read returns at most, whatever was asked for."""

Grown = Callable[[], None]


class ShardLog(Protocol):
    """The log of one shard.

    Ordering: commits come in order, positions are dense. What was read once reads the same ever after.
    Durability: what a reader gets survives loss of power (of a minority, where there are several machines).
    Concurrency: any number of readers and claimants, in any number of processes. On one object one call at a time.
    Fencing: a claim that succeeds comes after every commit that was ever acknowledged; whoever had claimed before has
        each later write refused with JournalConflict, those under way too.
    Errors: JournalConflict (the log has grown: read on, then claim again), JournalUnknown (claimed or not: claim
        again), JournalCorrupt, JournalForeign, LinkDown (not now: try again). No error of a driver passes unchanged.
    """

    @property
    def identity(self) -> JournalIdentity:
        """The fleet, its number of shards, the incarnation, and as the part this shard alone."""
        ...

    async def first_position(self) -> int:
        """The lowest position still kept, or 1 for a log without commits."""
        ...

    async def snapshots(self) -> list[int]:
        """The positions of stored snapshots, lowest first; noted or not."""
        ...

    async def read_snapshot(self, position: int) -> Sequence[SnapshotPart]:
        """The parts of a snapshot in order; none if there is no such snapshot."""
        ...

    async def read(self, after: int, count_max: int = READ_COUNT_MAX) -> Sequence[StoredCommit]:
        """Commits behind a position, in order, at most so many; none where the log ends. What has just been written
        elsewhere may be missing; `claim` is what decides."""
        ...

    def watch(self, grown: Grown) -> None:
        """Has this called, from now on, soon after the log has grown. A hint: it may be lost."""
        ...

    async def claim(self, after: int, owner: str) -> tuple[Journal, int]:
        """Takes the log over at this position, which must be its end; returns the journal to write to, and the number
        of the claim, which is higher than that of any earlier one."""
        ...

    async def close(self) -> None:
        """Follows no more. A journal that `claim` has returned stays open. Closing twice does nothing."""
        ...
