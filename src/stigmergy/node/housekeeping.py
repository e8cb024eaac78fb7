"""Housekeeping: snapshots in portions between commits, and retention of the log. One small write at a time.

The host calls `sealed` after every commit it seals and `begin_if_due` right after it, asks `next_write` for work when
the journal is free, and calls `durable` when a commit has been written. Nothing here decides about agents.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from stigmergy.agents.messages import SECOND_NS
from stigmergy.audit.retention import ArchiveCounters, Safeguards
from stigmergy.base.clock import Clock
from stigmergy.base.errors import DefinitionError, JournalFull, LinkDown
from stigmergy.diagnostics.codes import Trouble, coded
from stigmergy.journal.port import Journal, SnapshotPart, keep_within
from stigmergy.journal.recovery import Basis
from stigmergy.node.measures import HostMeasures
from stigmergy.node.settings import Settings
from stigmergy.shard.commit import SnapshotNote
from stigmergy.shard.draft import Ready
from stigmergy.shard.inputs import SnapshotStored
from stigmergy.shard.snapshot import SnapshotWriter
from stigmergy.shard.state import ShardState

# The agents that changed since the last snapshot, while they are the minority: then the next one can be incremental.
#
# Names are collected as commits are sealed and merged in bulk, which is cheaper. Once most agents have changed, the
# next snapshot holds all of them anyway, and nothing is collected any more.

MERGED_COUNT_MIN = 1_000
"""So many names at least are collected before they are merged."""


class Changes:
    """The changed agents of one shard."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._lately: list[list[str]] = []
        self._lately_count = 0
        self._are_most = False

    def note(self, touched: Iterable[str], agents_count: int) -> None:
        """A commit has touched these; so many agents there are."""
        if self._are_most:
            return
        names = list(touched)
        if not names:
            return
        self._lately.append(names)
        self._lately_count += len(names)
        if self._lately_count > MERGED_COUNT_MIN + agents_count // 2:
            self._merge(agents_count)

    def few(self, agents_count: int) -> dict[str, None] | None:
        """Their names, if they are at most half of so many agents."""
        self._merge(agents_count)
        return None if self._are_most else self._names

    def add(self, earlier: Changes) -> None:
        """What changed before counts as well: the snapshot that would have held it was given up."""
        self._are_most = self._are_most or earlier._are_most
        if self._are_most:
            self._forget()
        else:
            self._lately += [list(earlier._names), *earlier._lately]
            self._lately_count += len(earlier._names) + earlier._lately_count

    def _merge(self, agents_count: int) -> None:
        for names in self._lately:
            self._names.update(dict.fromkeys(names))
        self._lately, self._lately_count = [], 0
        if 2 * len(self._names) > agents_count:
            self._are_most = True
            self._forget()

    def _forget(self) -> None:
        self._names = {}
        self._lately, self._lately_count = [], 0


CHAINS_KEPT = 2
"""The newest snapshot and the one before it, each with what it adds to: if one is damaged, the other still serves."""


class HousekeepingCounters(ArchiveCounters):
    """What was tidied, and archived before."""

    snapshots: int = 0
    snapshot_bytes: int = 0
    snapshots_given_up: int = 0
    commits_dropped: int = 0
    commits_dropped_unarchived: int = 0
    """On a full device, where that is allowed. They are gone."""
    commits_dropped_unsent: int = 0
    """For want of room, before the receiver of the uplink had them; it will be told."""


class _ShardRecord(Struct):
    """What housekeeping knows of one shard."""

    state: ShardState
    events: int = 0
    tail_bytes: int = 0
    since_ns: int = 0
    took_ns: int = 0
    size_bytes: int = 0
    changes: Changes = field(default_factory=Changes)
    """Since the last snapshot."""
    taking: SnapshotWriter | None = None
    taken_changes: Changes = field(default_factory=Changes)
    """Those that the snapshot under way holds."""
    noted: list[tuple[int, int]] = []
    """Finished snapshots, oldest first: position and base."""
    digest: bytes = b""
    """Of the last finished one, if it was taken since the start: only such a one can be added to."""
    stands_alone: bool = False
    """Whether the newest snapshot was made by this run, so that an incremental one may add to it."""
    awaiting_note: tuple[SnapshotNote, int] | None = None


class Housekeeper:
    """Snapshots and retention for the shards of one host."""

    def __init__(
        self,
        states: Iterable[ShardState],
        open_images: Callable[[int], Mapping[str, Any]],
        journal: Journal,
        settings: Settings,
        clock: Clock,
        tell: Callable[[int, SnapshotStored], None],
        bases: Iterable[Basis],
        safeguards: Safeguards,
    ) -> None:
        """`open_images` are a shard's agents that its open draft has changed, as they were before it. `bases` are what
        the shards were recovered from, in their order; `safeguards` limit retention."""
        self._open_images = open_images
        self._journal = journal
        self._settings = settings
        self._tell = tell
        self.measures: HostMeasures | None = None
        if settings.retention.keep_bytes is not None:
            keep_within(journal, settings.retention.keep_bytes)
        self._monotonic_ns = clock.monotonic_ns
        now_ns = clock.monotonic_ns()
        self._records = {state.shard: _ShardRecord(state=state, since_ns=now_ns) for state in states}
        self._last_check_ns = now_ns
        self._obsolete: list[tuple[int, int]] = []
        """Snapshots to drop: shard and position."""
        self._part_next = False
        """Whether a part of a snapshot comes before the next drop."""
        self.doing = ""
        """What the last write was for, in a word for a profile."""
        self._no_room = False
        """Even dropping found no room: it is tried again with the next check of retention."""
        self._is_short = False
        """A snapshot found no room. Without newer snapshots ever less may be dropped, while commits fill what is left:
        so the log that may go goes now, and the next snapshot finds room."""
        self.counters = HousekeepingCounters()
        self.safeguards = safeguards
        if safeguards.archivist is not None:
            safeguards.archivist.counters = self.counters
        self._troubles: dict[int, str] = {}
        """Per shard that cannot be snapshotted at present, why: its log grows, and starts take longer."""
        for number, basis in zip(self._records, bases, strict=True):
            self._adopt(number, basis)

    @property
    def troubles(self) -> list[Trouble]:
        """What keeps it from tidying, in words: what concerns all shards first."""
        own = (Trouble("snapshot-failed", why, shard=shard) for shard, why in sorted(self._troubles.items()))
        return [*coded("retention-blocked", self.safeguards.troubles), *own]

    def _adopt(self, shard: int, basis: Basis) -> None:
        """After a restart: what the shard was recovered from. The first new snapshot is full, so that it stands alone.

        A snapshot newer than the one that was used is no snapshot, unless the log has noted it since: it was never
        finished, or is damaged. Nothing may be dropped on account of it. An older one covers less, so it does no harm
        as the one to fall back on. One that was noted since may add to the one before it, which is then kept as well:
        the log up to it may be gone already, because of the node that took it.
        """
        record = self._records[shard]
        record.events, record.tail_bytes = basis.tail_events, basis.tail_bytes
        record.size_bytes = basis.snapshot_bytes
        used = basis.chain[-1][0] if basis.chain else 0
        in_chain = dict(basis.chain)
        for position in self._journal.snapshots(shard):
            if position <= used:
                record.noted.append((position, in_chain.get(position, 0)))
            elif position in basis.noted:
                record.noted.append((position, record.noted[-1][0] if record.noted else 0))
            else:
                self._obsolete.append((shard, position))

    def snapshot_ages_s(self) -> dict[int, float]:
        """Per shard, since when its last snapshot was begun, or since the start."""
        now_ns = self._monotonic_ns()
        return {shard: (now_ns - record.since_ns) / SECOND_NS for shard, record in self._records.items()}

    def sealed(self, ready: Ready) -> None:
        """A commit was sealed: counts it, and keeps images for a snapshot under way."""
        record = self._records[ready.sealed.shard]
        record.events += ready.sealed.events
        record.tail_bytes += len(ready.sealed.body)
        record.changes.note(ready.touched, len(record.state.agents))
        if record.taking is not None:
            record.taking.keep_images(ready.touched)

    def begin_if_due(self, monotonic_ns: int, *, force: bool = False) -> None:
        """Begins snapshots that are due. Call it between `seal` and the next `step`, when the drafts are empty."""
        rule = self._settings.snapshots
        for record in self._records.values():
            if record.taking is not None or record.awaiting_note is not None or not record.events:
                continue
            waited_s = (monotonic_ns - record.since_ns) / SECOND_NS
            due = record.events >= rule.every_events or waited_s >= rule.every_s
            grown = record.tail_bytes >= rule.tail_ratio * record.size_bytes
            rested = waited_s * rule.share_max >= record.took_ns / SECOND_NS
            if force or (due and grown and rested):
                self._begin(record, monotonic_ns)

    def next_write(self, wall_ns: int, monotonic_ns: int) -> Awaitable[None] | None:
        """Something small to write, if there is something: a part of a snapshot, or something to drop."""
        # Under constant load one snapshot follows another. So the rarest comes first, and drops take turns with parts.
        if self._check_due(monotonic_ns):
            self._last_check_ns = monotonic_ns
            self._no_room = False
            self.doing = "dropped log"
            return self._retain(wall_ns)
        taking = next((record for record in self._records.values() if record.taking is not None), None)
        if self._obsolete and not self._no_room and (taking is None or not self._part_next):
            self._part_next = True
            self.doing = "dropped snapshots"
            return self._drop_snapshot()
        self._part_next = False
        self.doing = "snapshots"
        return None if taking is None else self._write_part(taking)

    def has_work(self, monotonic_ns: int) -> bool:
        """Whether there is something to write, so that commits and this take turns."""
        taking = any(record.taking is not None for record in self._records.values())
        return taking or (bool(self._obsolete) and not self._no_room) or self._check_due(monotonic_ns)

    def durable(self, ready: Ready) -> None:
        """A commit is on disk: a snapshot that it notes counts from now on, and older ones may go."""
        record = self._records[ready.sealed.shard]
        for note in ready.commit.snapshots:
            if record.awaiting_note is None or record.awaiting_note[0].position != note.position:
                continue
            _, base = record.awaiting_note
            record.awaiting_note = None
            record.noted.append((note.position, base))
            record.digest = note.digest
            record.stands_alone = True
            self.counters.snapshots += 1
            self._plan_obsolete(record)

    async def make_room(self) -> bool:
        """The disk is full: drops everything that may be dropped; whether that was anything. Raises JournalFull."""
        for record in self._records.values():
            if record.taking is not None:
                self._give_up(record, record.taking)
        made_room = bool(self._obsolete)
        while self._obsolete:
            await self._journal.drop_snapshot(*self._obsolete[-1])
            self._obsolete.pop()
        before = self.counters.commits_dropped
        for record in self._records.values():
            await self._drop(record, self._spare(record, self._droppable(record, full=True)), full=True)
        return made_room or self.counters.commits_dropped > before

    def _begin(self, record: _ShardRecord, monotonic_ns: int) -> None:
        state = record.state
        changed = record.changes.few(len(state.agents))
        depth = 0
        for _, base in reversed(record.noted):
            if not base:
                break
            depth += 1
        incremental = (
            bool(record.noted)
            and record.stands_alone
            and bool(record.digest)
            and depth < self._settings.snapshots.incremental_max
            and changed is not None
        )
        base = record.noted[-1][0] if incremental else 0
        # What was left of an unfinished snapshot of this position is replaced, and must not be dropped any more.
        self._obsolete = [one for one in self._obsolete if one != (state.shard, state.position)]
        record.taking = SnapshotWriter(
            state,
            base=base,
            base_digest=record.digest if incremental else b"",
            changed=changed if incremental else None,
        )
        record.taken_changes, record.changes = record.changes, Changes()
        record.events = record.tail_bytes = 0
        record.since_ns = monotonic_ns

    async def _write_part(self, record: _ShardRecord) -> None:
        taking = record.taking
        if taking is None:
            return
        number = taking.parts_count
        shard = record.state.shard
        try:
            body = taking.next_part(self._open_images(shard))
        except DefinitionError as error:
            self._troubles[shard] = f"no snapshot of shard {shard}: {error}"
            self._give_up(record, taking)
            return
        if body is not None:
            try:
                await self._journal.put_snapshot(shard, taking.position, [SnapshotPart(part=number, body=body)])
            except JournalFull:
                self._give_up(record, taking)
                self._is_short = True
            return
        note = taking.note()
        self._troubles.pop(shard, None)
        record.taking = None
        record.took_ns = self._monotonic_ns() - record.since_ns
        if self.measures is not None:
            self.measures.snapshot.observe(record.took_ns)
        record.size_bytes = taking.size_bytes
        record.awaiting_note = (note, taking.base)
        self.counters.snapshot_bytes += taking.size_bytes
        self._tell(shard, SnapshotStored(note=note))

    def _give_up(self, record: _ShardRecord, taking: SnapshotWriter) -> None:
        """A snapshot can wait; the log goes on. What it had changed counts for the next one."""
        record.taking = None
        record.changes.add(record.taken_changes)
        self.counters.snapshots_given_up += 1
        self._obsolete.append((record.state.shard, taking.position))

    async def _drop_snapshot(self) -> None:
        shard, position = self._obsolete[-1]
        try:
            await self._journal.drop_snapshot(shard, position)
        except JournalFull:
            self._no_room = True
        else:
            self._obsolete.remove((shard, position))

    def _check_due(self, monotonic_ns: int) -> bool:
        return self._is_short or (
            monotonic_ns - self._last_check_ns >= int(self._settings.retention.check_every_s * SECOND_NS)
        )

    def _plan_obsolete(self, record: _ShardRecord) -> None:
        """Keeps the newest snapshots with what they add to; the others are dropped when there is time."""
        by_position = dict(record.noted)
        needed: dict[int, None] = {}
        chains = 0
        for position, _ in reversed(record.noted):
            if position in needed:
                continue
            if chains == CHAINS_KEPT:
                break
            chains += 1
            link = position
            while link:
                needed[link] = None
                link = by_position.get(link, 0)
        shard = record.state.shard
        self._obsolete += [(shard, position) for position, _ in record.noted if position not in needed]
        record.noted = [(position, base) for position, base in record.noted if position in needed]

    def _droppable(self, record: _ShardRecord, *, full: bool = False) -> int:
        """The highest position that may be dropped: covered by the oldest snapshot kept, owed to nobody, not held."""
        if not record.noted:
            return 0
        covered = record.noted[0][0]
        state = record.state
        for lowest in (state.outbox.lowest_position(), state.blocks.lowest_position()):
            covered = covered if lowest is None else min(covered, lowest - 1)
        return self.safeguards.unheld(self._journal, record.state.shard, covered, full=full)

    def _spare(self, record: _ShardRecord, droppable: int) -> int:
        """What of it may go for want of room: with an uplink, not at once what its receiver does not have."""
        shard = record.state.shard
        return self.safeguards.spare(shard, self._journal.first_position(shard), droppable)

    async def _retain(self, wall_ns: int) -> None:
        """Drops what the rules of retention let go."""
        rule = self._settings.retention
        size = self._journal.size()
        is_short, self._is_short = self._is_short or size.bytes_free < rule.reserve_bytes, False
        for record in self._records.values():
            droppable = self._droppable(record)
            spare, unneeded = self._spare(record, droppable), self.safeguards.unneeded(record.state.shard, droppable)
            upto = 0
            if is_short:
                upto = spare
            if rule.keep_s is not None:
                upto = max(upto, self._last_before(record, unneeded, wall_ns - int(rule.keep_s * SECOND_NS)))
            if rule.keep_bytes is not None and size.bytes_used > rule.keep_bytes:
                first = self._journal.first_position(record.state.shard)
                count = record.state.position - first + 1
                excess = first - 1 + int(count * (1 - rule.keep_bytes / size.bytes_used)) + 1
                upto = max(upto, min(excess, spare))
            try:
                await self._drop(record, upto)
            except JournalFull:
                # To drop takes a little room as well. Without it the log goes on as long as it can.
                self._no_room = True

    def _last_before(self, record: _ShardRecord, limit: int, time_ns: int) -> int:
        """The last position, up to a limit, whose commit is older than this: found by halving."""
        shard = record.state.shard
        low, high = self._journal.first_position(shard) - 1, limit
        while low < high:
            middle = (low + high + 1) // 2
            try:
                stored: Any = next(iter(self._journal.read(shard, after=middle - 1)), None)
            except LinkDown:
                # A journal elsewhere that cannot be read now. What is old is older at the next check.
                return 0
            if stored is not None and stored.sealed.time_ns < time_ns:
                low = middle
            else:
                high = middle - 1
        return low

    async def _drop(self, record: _ShardRecord, upto: int, *, full: bool = False) -> None:
        """Drops what the archive has; what it has not yet is dropped later, or not at all. `full`: the device is."""
        shard = record.state.shard
        first = self._journal.first_position(shard)
        if upto < first:
            return
        upto = self.safeguards.archived(shard, upto, full=full)
        if upto >= first:
            unarchived = max(0, upto - max(first - 1, self.safeguards.archived(shard, upto)))
            self.counters.commits_dropped_unsent += upto - max(first - 1, self.safeguards.sent(shard, upto))
            await self._journal.drop(shard, upto)
            self.counters.commits_dropped += upto - first + 1
            self.counters.commits_dropped_unarchived += unarchived
