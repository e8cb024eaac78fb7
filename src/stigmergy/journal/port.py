"""The journal port: where commits become durable. It is also the outbox: nothing leaves before it is in here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from stigmergy.base.errors import ConfigError, JournalForeign
from stigmergy.metrics.histogram import Histogram
from stigmergy.shard.commit import Group, Head, Sealed, Signature
from stigmergy.shard.homes import Homes, shard_of


class JournalIdentity(Struct, frozen=True):
    """Written when a journal is made, and compared at every opening: a journal belongs to one fleet for good."""

    fleet: str
    shards: int
    incarnation: int
    """Changes with every restore from a copy, so that peers do not mistake the copy for the original."""
    part: tuple[int, int] | None = None
    """The first and the last shard kept here, where the log of a fleet has several parts; None: all of them."""
    shard_by: str = ""
    """The name of the fleet's function that says where agents live; empty: the hash of their address does."""

    def __post_init__(self) -> None:
        if self.part is not None and not 0 <= self.part[0] <= self.part[1] < self.shards:
            first, last = self.part
            raise ConfigError(f"shards {first} to {last} are no part of {self.shards} shards; they count from 0")

    @property
    def owned(self) -> range:
        """The shards that are kept here."""
        return range(self.shards) if self.part is None else range(self.part[0], self.part[1] + 1)

    def shards_with(self, address: str) -> Sequence[int]:
        """Where to look for an agent without its fleet: in its shard, or in all if a function says which."""
        return self.owned if self.shard_by else (shard_of(address, self.shards),)

    @property
    def signers_shard(self) -> int:
        """Signers are enrolled and revoked in the log of this shard, and their positions are its positions."""
        return self.owned[0]


def homes_of(identity: JournalIdentity, homes: Homes | None = None) -> Homes:
    """Where a journal's agents live. Raises JournalForeign if the fleet's `homes` are not those it was made with."""
    check_shard_by(identity.shard_by, "" if homes is None else homes.key_name, "this journal")
    return homes or Homes(identity.shards)


def shown_shards(identity: JournalIdentity) -> str:
    """Which shards a journal keeps, for people."""
    if identity.part is None:
        return f"all of the {identity.shards} shards"
    first, last = identity.part
    return f"shard {first}" if first == last else f"shards {first} to {last}"


def check_shard_by(made_with: str, wanted: str, whose: str) -> None:
    """Refuses a journal whose agents were shared out in another way."""
    if made_with != wanted:
        was, now = made_with or "the hash of their address", wanted or "the hash of their address"
        how = f"declare Fleet(…, shard_by={made_with}) again" if made_with else "declare the fleet without shard_by"
        raise JournalForeign(
            f"{whose}: {was} says where its agents live, and now {now} would; that is fixed: {how}, or begin "
            "another journal"
        )


def patience_s(journal: object) -> float:
    """How long a write to this journal may take in any case: its `write_within_s`, where it has one.

    A log that several servers keep needs some seconds to find a new leader, and is not a disk that has failed.
    """
    return float(getattr(journal, "write_within_s", 0.0))


def sync_times(journal: object) -> Histogram | None:
    """How long this journal waits for its disk: its `syncs`, where it has a disk of its own."""
    found: Histogram | None = getattr(journal, "syncs", None)
    return found


CHECK_EVERY_S = 0.5
"""How often a journal on files is asked, while nothing is written to it, whether its files are still in their place."""


def file_check(journal: object) -> Callable[[], Awaitable[None]] | None:
    """How to ask a journal whether its files are still in their place: its `check_files`, where it has files.

    It raises JournalUnknown if somebody has removed, renamed or replaced one. An append that succeeds says as much.
    """
    check: Callable[[], Awaitable[None]] | None = getattr(journal, "check_files", None)
    return check


def keep_within(journal: object, bytes_max: int) -> None:
    """Tells a journal on files that all of them together should stay below this, so that it takes less in advance."""
    fit: Callable[[int], None] | None = getattr(journal, "keep_within", None)
    if fit is not None:
        fit(bytes_max)


class StoredCommit(Struct, frozen=True):
    """A commit as read back, with the signature if it was the last of its group."""

    sealed: Sealed
    signature: Signature | None


class SnapshotPart(Struct, frozen=True):
    """One piece of a snapshot, opaque to the journal. Parts of a snapshot count from 0 and are read back in order."""

    part: int
    body: bytes


class JournalSize(Struct, frozen=True):
    """What a journal weighs, for retention and for people."""

    commits: int
    bytes_used: int
    """By all of its files: also those that hold room in advance."""
    bytes_free: int


class Journal(Protocol):
    """Keeps commits, signatures and snapshots of all shards of one owner.

    Ordering: positions of a shard are dense, from 1 upward; `read` returns them in order.
    Durability: `append` returns only when the whole group survives loss of power; all of a group is kept or nothing.
    Duplication: none; a position is written once, a second write raises JournalConflict.
    Concurrency: one owner. At most one `append`, `put_snapshot` or `drop` at a time; a second one while one is under
        way raises Bug. Readers may read between them. Opening takes an exclusive lock, or raises JournalLocked.
    Errors: JournalFull (nothing of the group kept, the journal is usable), JournalConflict (nothing kept),
        JournalUnknown (kept or not: unknown; every later write raises JournalUnknown too; reopen to resolve); also
        where somebody has taken away the file that is open,
        JournalCorrupt on reading. No error of a driver or of the operating system passes through unchanged.
    """

    @property
    def identity(self) -> JournalIdentity:
        """The fleet, number of shards, incarnation and part this journal was made with."""
        ...

    def heads(self) -> list[Head]:
        """The last commit of each shard that has one, by shard."""
        ...

    def first_position(self, shard: int) -> int:
        """The lowest position still kept, or 1 for a shard without commits."""
        ...

    def read(self, shard: int, after: int = 0) -> Iterator[StoredCommit]:
        """The commits behind a position, in order. Does not check digests or signatures: recovery does."""
        ...

    def append(self, group: Group) -> Awaitable[None]:
        """Makes a group durable, all or nothing. What it returns is done when the group survives loss of power.

        May be an `async def`. One that begins at once, before anybody awaits it, saves the commit a turn of the loop.
        """
        ...

    async def put_snapshot(self, shard: int, position: int, parts: Sequence[SnapshotPart]) -> None:
        """Stores parts of a snapshot. A snapshot counts only when a later commit notes it."""
        ...

    def snapshots(self, shard: int) -> list[int]:
        """The positions of stored snapshots, lowest first; noted or not."""
        ...

    def read_snapshot(self, shard: int, position: int) -> Iterator[SnapshotPart]:
        """The parts of a snapshot in order; none if there is no such snapshot."""
        ...

    async def drop_snapshot(self, shard: int, position: int) -> None:
        """Forgets a snapshot; nothing happens if there is none."""
        ...

    async def drop(self, shard: int, upto: int) -> None:
        """Forgets commits up to and including a position. The caller has made sure that a snapshot covers them."""
        ...

    def size(self) -> JournalSize:
        """What is used and what is free, as far as the device tells."""
        ...

    async def close(self) -> None:
        """Releases the lock. Waits for a write under way. Closing twice does nothing."""
        ...


def last_before(journal: Journal, shard: int, first: int, last: int, time_ns: int) -> int:
    """The last position from `first` to `last` whose commit is older than this, or `first` - 1: found by halving."""
    low, high = first - 1, last
    while low < high:
        middle = (low + high + 1) // 2
        stored = next(iter(journal.read(shard, after=middle - 1)), None)
        if stored is not None and stored.sealed.time_ns < time_ns:
            low = middle
        else:
            high = middle - 1
    return low


# The port of a shard's log on shared storage: everybody may follow it, one at a time may write to it.
#
# If a shard can move between machines, its log is on neither of them. The next owner first follows the log and then
# claims it: from then on writes of the previous owner are refused, whatever it believes.

READ_COUNT_MAX = 512
"""Commits that one read returns at most, whatever was asked for."""

Grown = Callable[[], None]

Guard = Callable[[], bool]
"""Whether a host may act for its shards at this moment. A host whose shards can move to another owner is given one.

It reads the owner's own clock and never waits: an owner that was paused or cut off learns late that it has lost them.
A host that is told no ends at once, without effects and without safe actions. Those are the next owner's.
"""


class ShardLog(Protocol):
    """The log of one shard.

    Ordering: commits come in order, positions are dense. What was read once reads the same ever after.
    Durability: what a reader gets survives loss of power (of a minority, where there are several machines).
    Concurrency: any number of readers and claimants, in any number of processes. On one object one call at a time.
    Fencing: a claim that succeeds comes after every commit that was ever acknowledged; an earlier claimant has each
        later write refused with JournalConflict, those under way too.
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
